"""Stopping a confined tree for a while, and knowing that it stood still."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cuda_agent.sandbox.policy import Level


class NotStill(Exception):
    """It could not be stopped, or it ran while it was stopped (a timer of its own can send SIGCONT)."""


class Frozen:
    """A context in which every process of a confined tree is stopped (SIGSTOP). The watch over its limits goes on.

    keeper: `Child.pid`. level: the child's, since at NAMESPACES the keeper's own child is our init.

    Raises NotStill on entry if the tree does not stop within `patience_s`, on exit if it used the processor.
    """

    def __init__(self, keeper: int, level: Level, patience_s: float = 2.0) -> None:
        self._keeper = keeper
        self._level = level
        self._patience_s = patience_s
        self._ran: dict[int, int] = {}

    def __enter__(self) -> Frozen:
        deadline = time.monotonic() + self._patience_s
        while True:
            tree = self._tree()
            if all(_stopped(pid) for pid in tree):  # none of them can have forked since it was listed
                break
            if time.monotonic() > deadline:
                _signal(tree, signal.SIGCONT)
                raise NotStill(f"the candidate did not stop within {self._patience_s:g} s when it was told to")
            _signal(tree, signal.SIGSTOP)
            time.sleep(0.0005)
        self._ran = {pid: _ran_ns(pid) for pid in tree}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        ran = any(_ran_ns(pid) > before for pid, before in self._ran.items())
        _signal(self._ran, signal.SIGCONT)
        if ran:
            _signal(self._tree(), signal.SIGCONT)
            if error is None:
                raise NotStill("the candidate ran while it was stopped, beside a measurement of what it is compared to")

    def _tree(self) -> list[int]:
        """All descendants of the keeper, but our init."""
        found, pending = [], _children(self._keeper)
        if self._level is Level.NAMESPACES:
            pending = [pid for init in pending for pid in _children(init)]
        while pending:
            pid = pending.pop()
            found.append(pid)
            pending.extend(_children(pid))
        return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
    return found


def _signal(tree: Iterable[int], number: signal.Signals) -> None:
    for pid in tree:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _stopped(pid: int) -> bool:
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError):
                state = Path(f"/proc/{pid}/task/{thread}/stat").read_bytes().rpartition(b")")[2].split()[0]
                if state not in b"TtZX":
                    return False
    return True


def _ran_ns(pid: int) -> int:
    """Processor time of all its threads so far, in nanoseconds (in steps of 10 ms on kernels without schedstat)."""
    total = 0
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                total += _thread_ns(f"/proc/{pid}/task/{thread}")
    return total


def _thread_ns(folder: str) -> int:
    with suppress(FileNotFoundError):
        return int(Path(folder, "schedstat").read_bytes().split()[0])
    fields = Path(folder, "stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) * (10**9 // os.sysconf("SC_CLK_TCK"))
