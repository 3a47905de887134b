"""Stopping a confined tree for a while, and knowing that it stood still."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cuda_agent.sandbox.policy import Level, Policy
from cuda_agent.sandbox.watch import Watcher


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
            # The second list holds what was forked while the first was made: those on it have stopped forking.
            if all(_stopped(pid) for pid in tree) and set(self._tree()) == set(tree):
                break
            if time.monotonic() > deadline:
                _signal(tree, signal.SIGCONT)
                raise NotStill(f"a process did not stop within {self._patience_s:g} s")
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
                raise NotStill("a process ran while it was stopped")

    def _tree(self) -> list[int]:
        """All descendants of the keeper, but our init."""
        if not _LISTS_CHILDREN:
            found = dict(Watcher(Policy(), self._keeper).members())
            return [pid for pid, status in found.items() if not self._is_init(status["PPid"])]
        return [pid for pid, parent in _descendants(self._keeper) if not self._is_init(parent)]

    def _is_init(self, parent: int) -> bool:
        return parent == self._keeper and self._level is Level.NAMESPACES


# Depends on the kernel's configuration; going through all of /proc takes milliseconds, and a window waits for it.
_LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _descendants(root: int) -> Iterator[tuple[int, int]]:
    """(pid, parent)."""
    pending = [root]
    while pending:
        parent = pending.pop()
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with suppress(OSError):
                    for child in map(int, Path(f"/proc/{parent}/task/{thread}/children").read_bytes().split()):
                        yield child, parent
                        pending.append(child)


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
