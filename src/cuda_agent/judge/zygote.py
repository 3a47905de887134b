"""A pre-imported process that forks referees and confined runners.

Importing torch and inductor takes seconds, forking milliseconds. The zygote holds no secret, never runs foreign code, starts
no thread and makes no device call, so a fork of it is as good as a fresh interpreter.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cuda_agent.judge.wire import Channel
from cuda_agent.sandbox import Level, Policy, fork_confined, kill_tree

Role = Literal["referee", "runner"]


@dataclass(frozen=True)
class Exit:
    """How a confined process ended; data, never a verdict."""

    code: int | None = None
    signal: int | None = None
    killed_for: str | None = None


class Worker:
    """A forked process as the orchestrator sees it."""

    OUTPUT_KEPT = 16 << 10

    def __init__(self, pid: int, channel: socket.socket, status_fd: int, output_fd: int) -> None:
        self.pid = pid
        self.channel = channel  # the end that talks to the worker; given to a referee for runners
        self._status_fd = status_fd
        self._output = bytearray()
        self._output_fd = output_fd
        self._ended = False
        self.level = Level.NONE
        self._exit = Exit()
        self._drain = threading.Thread(target=self._read_output, daemon=True)
        self._drain.start()

    def output(self) -> str:
        """The last of what it printed."""
        return bytes(self._output).decode(errors="replace")

    def kill(self) -> None:
        if not self._ended:
            kill_tree(self.pid)

    def wait(self) -> Exit:
        """Kill if need be, and say how it ended."""
        if not self._ended:
            self._read_status()
        return self._exit

    def close(self) -> Exit:
        self.channel.close()
        self.kill()
        ended = self.wait()
        self._drain.join(timeout=5)
        return ended

    def _read_status(self) -> None:
        with os.fdopen(self._status_fd) as status:
            for line in status:
                record = json.loads(line)
                if "level" in record:
                    self.level = Level(record["level"])
                else:
                    self._exit = Exit(record.get("exit"), record.get("signal"), record.get("killed_for"))
        self._ended = True

    def _read_output(self) -> None:
        with os.fdopen(self._output_fd, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 16):
                self._output += chunk
                del self._output[: -self.OUTPUT_KEPT]


class Zygote:
    """Client of the zygote process; thread-safe."""

    def __init__(self, kind: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        env = {
            **os.environ,
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() must not initialise CUDA before the fork
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # inductor's worker pool would be one more process in every runner
            "CUDA_MODULE_LOADING": "LAZY",
        }
        package = str(Path(__file__).resolve().parents[2])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [package, env.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cuda_agent.judge.zygote", str(theirs.fileno()), kind],
            pass_fds=[theirs.fileno()],
            env=env,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the orchestrator's to handle
        )
        theirs.close()
        self._channel = Channel(ours)
        self._lock = threading.Lock()

    def spawn(self, role: Role, policy: Policy) -> Worker:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        output_read, output_write = os.pipe()
        request = {
            "role": role,
            "policy": {
                "memory_bytes": policy.memory_bytes,
                "processes": policy.processes,
                "file_bytes": policy.file_bytes,
                "wall_s": policy.wall_s,
                "writable": [str(p) for p in policy.writable],
                "hidden": [str(p) for p in policy.hidden],
                "address_space": policy.address_space,
                "devices": policy.devices,
            },
        }
        try:
            with self._lock:
                self._channel.send(request, [theirs.fileno(), output_write])
                answer, fds = self._channel.recv(timeout=120)
        except BaseException:
            ours.close()
            os.close(output_read)
            raise
        finally:
            theirs.close()
            os.close(output_write)
        return Worker(answer["pid"], ours, fds[0], output_read)

    def close(self) -> None:
        self._channel.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _serve(control: Channel, kind: str) -> None:
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401  (the reason for this process)

    import cuda_agent.judge.referee
    import cuda_agent.judge.runner

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children reap themselves
    while True:
        request, (channel_fd, output_fd) = control.recv()
        policy = request["policy"]
        policy |= {"writable": tuple(map(Path, policy["writable"])), "hidden": tuple(map(Path, policy["hidden"]))}
        main: Callable[[int, str], None] = (
            cuda_agent.judge.referee.main if request["role"] == "referee" else cuda_agent.judge.runner.main
        )
        if request["role"] == "referee":
            pid, status_fd = _fork_referee(lambda: main(channel_fd, kind), [channel_fd, output_fd], control)
        else:
            child = fork_confined(
                lambda: main(channel_fd, kind), Policy(**policy), close_fds_except=[channel_fd], output_fd=output_fd
            )
            pid, status_fd = child.pid, child.status_fd
        os.close(channel_fd)
        os.close(output_fd)
        control.send({"pid": pid}, [status_fd])
        os.close(status_fd)


def _fork_referee(main: Callable[[], None], keep: list[int], control: Channel) -> tuple[int, int]:
    """Our own code: not confined, but it dies with the zygote."""
    status_read, status_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(status_write)
        return pid, status_read
    try:
        from cuda_agent.sandbox import die_with_parent

        os.setsid()
        die_with_parent()
        control.close()
        os.close(status_read)
        os.dup2(keep[1], 1)
        os.dup2(keep[1], 2)
        main()
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    from cuda_agent.judge.wire import ChannelClosed

    try:
        _serve(Channel.from_fd(int(sys.argv[1])), sys.argv[2])
    except ChannelClosed:
        os._exit(0)
