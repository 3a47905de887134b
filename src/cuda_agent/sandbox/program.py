"""Running a program (a compiler, an agent's shell) confined, with bounded output."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cuda_agent.sandbox.child import Child, wait_readable
from cuda_agent.sandbox.policy import Level, Policy
from cuda_agent.sandbox.support import level_cap

LAUNCH = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launch.py"))]
_LAST_WORDS_S = 0.2


class Stopped(Exception):
    """The program was ended because its caller no longer wants it."""


@dataclass(frozen=True)
class Completed:
    """A program's end. returncode: exit status, negative signal number, None where we killed it or it never started.

    output: stdout and stderr as they came; where `truncated`, the middle is cut and the cut says how many bytes it
    took.
    seconds: wall time, confinement included.
    """

    returncode: int | None
    output: str
    truncated: bool
    timed_out: bool
    killed_for: Literal["memory", "processes"] | None
    level: Level
    seconds: float


class _HeadAndTail:
    """Keeps the first and the last half of `limit` bytes of a stream of any length."""

    def __init__(self, limit: int) -> None:
        self.half = max(limit // 2, 1)
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self.half - len(self.head)
        if room > 0:
            self.head += chunk[:room]
            chunk = chunk[room:]
        self.tail += chunk[-self.half :]
        if len(self.tail) > 4 * self.half:
            del self.tail[: -self.half]

    def text(self) -> tuple[str, bool]:
        tail = self.tail[-self.half :]
        cut = self.total - len(self.head) - len(tail)
        middle = f"\n[… {cut} bytes cut …]\n".encode() if cut else b""
        return (bytes(self.head) + middle + bytes(tail)).decode(errors="replace"), cut > 0


@functools.cache
def namespaces_refused() -> str | None:
    """Why this machine cannot give `Level.NAMESPACES`; None: it can. Safe beside threads."""
    done = subprocess.run([*LAUNCH, "probe"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        return done.stderr.strip() or "the attempt died"
    reason = json.loads(done.stdout)
    return None if reason is None else str(reason)


def _offered_level() -> Level:
    cap = level_cap()
    return Level.LIMITS if cap is Level.NAMESPACES and namespaces_refused() is not None else cap


def spawn(
    argv: Sequence[str],
    policy: Policy,
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    output_limit: int = 64 * 1024,
    level: Level | None = None,
    stop: int | None = None,
) -> Completed:
    """Run `argv` confined in `cwd` with exactly `env`, and wait for it. May be called from any thread.

    stop: a descriptor; once it is readable, the program is ended and Stopped is raised.

    All that it started is dead when this returns, and also when this is interrupted. `cwd` stays visible, but is
    writable only if `policy.writable` names it. A program that cannot be started ends with 127 or 126 and a line of
    output, as in a shell. Raises RuntimeError where confinement itself failed.
    """
    started = time.monotonic()
    policy.require_paths()
    # The launcher runs without site, and so does not know that its interpreter is an environment's.
    policy = replace(policy, readable=(*policy.readable, Path(sys.prefix), Path(sys.base_prefix)))
    chosen = min(level or Level.NAMESPACES, _offered_level(), key=lambda item: item.rank)
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    output_read, output_write = os.pipe2(os.O_CLOEXEC)
    settings = {
        "argv": [os.fspath(part) for part in argv],
        "env": dict(env),
        "cwd": os.path.abspath(cwd),
        "policy": policy.to_json(),
        "level": chosen,
        "parent": os.getpid(),
    }
    try:
        keeper = subprocess.Popen(
            [*LAUNCH, json.dumps(settings), str(status_write), str(output_write)],
            stdin=subprocess.DEVNULL,
            pass_fds=(status_write, output_write),
            cwd="/",
            start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
        )
    except OSError:
        os.close(status_read)
        os.close(output_read)
        raise
    finally:
        os.close(status_write)
        os.close(output_write)
    child = Child(keeper.pid, status_read)
    output = _HeadAndTail(output_limit)
    try:
        _drain(output_read, output, child, stop)
        end = child.wait()
    finally:
        child.kill()
        keeper.wait()
        child.close()
        os.close(output_read)
    assert end is not None
    if end.error:
        raise RuntimeError(f"confining {argv[0]} failed: {end.error}")
    code = -end.signal if end.signal is not None else end.code
    text, truncated = output.text()
    timed_out = end.killed_for == "time"
    killed_for = end.killed_for if end.killed_for in ("memory", "processes") else None
    returncode = None if end.killed_for else code
    seconds = time.monotonic() - started
    return Completed(returncode, text, truncated, timed_out, killed_for, child.level or chosen, seconds)


def _drain(descriptor: int, output: _HeadAndTail, child: Child, stop: int | None) -> None:
    """Until nobody can write any more, or until the tree has ended and what it left in the pipe is read."""
    while True:
        watched = [descriptor] if child.exit else [descriptor, child.status_fd]
        if stop is not None:
            watched.append(stop)
        ready = wait_readable(watched, _LAST_WORDS_S if child.exit else None)
        if stop in ready:
            raise Stopped
        if child.status_fd in ready:
            child.poll()
        if not ready:
            return
        if descriptor not in ready:
            continue
        chunk = os.read(descriptor, 1 << 20)
        if not chunk:
            return
        output.add(chunk)
