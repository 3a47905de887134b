"""A frozen tree stands still, all of it, or says that it did not."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from cuda_agent.sandbox import Child, Frozen, Level, NotStill, Policy, freeze

from .conftest import LEVELS, finish, start

pytestmark = pytest.mark.parametrize("level", LEVELS)


def running(main: Callable[[mmap.mmap], None], level: Level) -> tuple[Child, int, mmap.mmap]:
    """A confined `main(page)` whose workers count in a shared page; it is returned once the first counts."""
    page = mmap.mmap(-1, 4096)
    child, output = start(lambda: main(page), Policy(wall_s=30), level)
    deadline = time.monotonic() + 10
    while not any(page[:64]) and time.monotonic() < deadline:
        time.sleep(0.01)
    child.wait_level(5)
    return child, output, page


def count(page: mmap.mmap, at: int) -> None:
    while True:
        page[at] = (page[at] + 1) % 256


def family(page: mmap.mmap) -> None:
    """Two threads, a child, and a grandchild whose parent has gone."""
    threading.Thread(target=count, args=(page, 0), daemon=True).start()
    if os.fork() == 0:
        if os.fork() == 0:
            count(page, 1)
        os._exit(0)
    if os.fork() == 0:
        count(page, 2)
    count(page, 3)


@pytest.mark.parametrize("lists_children", [True, False])
def test_all_stand_still_and_go_on_afterwards(
    level: Level, lists_children: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeze, "_LISTS_CHILDREN", lists_children and freeze._LISTS_CHILDREN)
    child, output, page = running(family, level)
    try:
        deadline = time.monotonic() + 10
        while not all(page[:4]) and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in range(3):
            with Frozen(child.pid, level):
                before = bytes(page[:4])
                time.sleep(0.1)
                assert bytes(page[:4]) == before
            changed = bytes(page[:4])
            deadline = time.monotonic() + 5
            while any(a == b for a, b in zip(changed, page[:4], strict=True)) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert time.monotonic() < deadline
    finally:
        child.kill()
        finish(child, output)


def test_one_that_wakes_itself_is_found_out(level: Level) -> None:
    class Event(ctypes.Structure):
        _fields_ = (("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int),
                    ("pad", ctypes.c_char * 48))  # fmt: skip

    def main(page: mmap.mmap) -> None:
        signal.signal(signal.SIGCONT, lambda *_: None)  # the kernel stops a timer whose signal is ignored
        libc = ctypes.CDLL(None, use_errno=True)
        timer = ctypes.c_void_p()
        event = Event(None, signal.SIGCONT, 0)
        assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0
        every = (ctypes.c_long * 4)(0, 20_000_000, 0, 20_000_000)
        assert libc.timer_settime(timer, 0, every, None) == 0
        count(page, 0)

    child, output, _ = running(main, level)
    try:
        with pytest.raises(NotStill, match="ran while it was stopped"), Frozen(child.pid, level):
            time.sleep(0.1)
    finally:
        child.kill()
        finish(child, output)
