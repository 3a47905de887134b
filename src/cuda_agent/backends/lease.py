"""A reader/writer lock between processes, one per device; the kernel releases it when its holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cuda_agent.paths import cache_dir


@contextmanager
def lease(device: str, shared: bool = False) -> Iterator[None]:
    """Hold the lock of `device`, waiting for it as long as it takes.

    A waiting writer keeps the gate, so that a stream of readers cannot starve it. Not re-entrant. Forks that keep the
    descriptor keep the lock; confined processes do not, their descriptors are closed.
    """
    folder = cache_dir() / "leases"
    folder.mkdir(exist_ok=True)
    name = "".join(letter if letter.isalnum() else "-" for letter in device)
    gate = _open(folder / f"{name}.gate")
    lock = -1
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)
        lock = _open(folder / f"{name}.lock")
        fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        os.close(gate)
        gate = -1
        yield
    finally:
        for descriptor in (lock, gate):
            if descriptor >= 0:
                os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
