"""A pre-imported process that forks referees and confined runners.

Importing torch and inductor takes seconds, forking milliseconds. The zygote holds no secret, never runs foreign code,
starts no thread and makes no device call, so a fork of it is as good as a fresh interpreter.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

from cuda_agent.judge.wire import Channel
from cuda_agent.sandbox import Child, Exit, Level, Policy

Role = Literal["referee", "runner"]


# Of every process that is timed, so that all are timed alike.
ENVIRONMENT = {
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # torch.cuda.is_available() must not initialise CUDA before the fork
    "TORCHINDUCTOR_VEC_ISA_OK": "1",  # compiling a probe says what /proc/cpuinfo says, three seconds later
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # inductor's worker pool would be one more process in every runner
    "CUDA_MODULE_LOADING": "LAZY",
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's pool would be threads in a process that forks
    "GOMP_SPINCOUNT": "10000",  # an idle pool must not spin for milliseconds beside the next process's turn
    # Freed memory stays mapped: else each large CPU tensor costs a page fault per 4 KiB
    "GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1099511627776",
}
# Threads that are woken together may share a core for milliseconds until the kernel moves one.
BOUND = {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}


class Worker:
    """A forked process as the orchestrator sees it. How it ends and what it prints is data, never a verdict."""

    OUTPUT_KEPT = 16 << 10

    def __init__(self, pid: int, channel: socket.socket, status_fd: int, output_fd: int) -> None:
        self.child = Child(pid, status_fd)
        self.channel = channel  # the end that talks to the worker; a runner's is lent to its referee
        self._output = bytearray()
        self._drain = threading.Thread(target=self._read_output, args=(output_fd,), daemon=True)
        self._drain.start()

    @property
    def level(self) -> Level:
        return self.child.wait_level(timeout=10) or Level.NONE

    def output(self) -> str:
        """The last of what it printed."""
        return bytes(self._output).decode(errors="replace")

    def ended(self, patience_s: float = 1.0) -> Exit | None:
        """How it ended by itself, None if it did not within `patience_s`."""
        return self.child.wait(patience_s)

    def close(self) -> None:
        """End it with all its descendants; nothing of it is left when this returns. It may be called again."""
        self.channel.close()
        if self.child.status_fd >= 0:
            if self.child.poll() is None:
                self.child.kill()
            self.child.close()
        self._drain.join(timeout=5)

    def _read_output(self, fd: int) -> None:
        with os.fdopen(fd, "rb", buffering=0) as stream:
            while chunk := stream.read(1 << 16):
                self._output += chunk
                del self._output[: -self.OUTPUT_KEPT]


class Zygote:
    """Client of the zygote process; thread-safe."""

    def __init__(self, kind: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        env = {**os.environ, **ENVIRONMENT, **(BOUND if kind == "cpu" else {})}
        package = str(Path(__file__).resolve().parents[2])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [package, env.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cuda_agent.judge.forkserver", str(theirs.fileno()), kind],
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
        request = {"role": role, "policy": policy.to_json()}
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
        self._channel.hang_up()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
