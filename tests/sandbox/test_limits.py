"""Limits hold at every level: with namespaces, and where a machine allows none."""

from __future__ import annotations

import mmap
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from cuda_agent.sandbox import Level, Policy
from cuda_agent.sandbox.watch import Watcher

from .conftest import LEVELS, needs_namespaces, run_confined

MIB = 1 << 20
pytestmark = pytest.mark.parametrize("level", LEVELS)


def test_exit_codes_and_output_arrive(level: Level) -> None:
    outcome = run_confined(lambda: sys.exit(7), level=level)
    assert (outcome.exit.code, outcome.exit.signal, outcome.exit.killed_for) == (7, None, None)
    assert outcome.child.level is level
    assert run_confined(lambda: os.kill(os.getpid(), signal.SIGSEGV), level=level).exit.signal == signal.SIGSEGV
    assert run_confined(os.abort, level=level).exit.signal == signal.SIGABRT


def test_an_exception_is_printed_and_ends_with_one(level: Level) -> None:
    def main() -> None:
        raise ValueError("of the foreign code")

    outcome = run_confined(main, level=level)
    assert outcome.exit.code == 1
    assert "ValueError: of the foreign code" in outcome.output


def test_memory_hog_is_killed(level: Level) -> None:
    def main() -> None:
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1024) * 1024 * 8))
            time.sleep(0.005)

    outcome = run_confined(main, Policy(memory_bytes=200 * MIB, wall_s=30), level)
    assert outcome.exit.killed_for == "memory"


def test_memory_of_all_processes_counts(level: Level) -> None:
    def main() -> None:
        for _ in range(4):
            if os.fork() == 0:
                hoard = bytearray(os.urandom(1024) * 1024 * 80)
                time.sleep(60)
                print(len(hoard))
        time.sleep(60)

    assert run_confined(main, Policy(memory_bytes=256 * MIB, wall_s=30), level).exit.killed_for == "memory"


def test_memfds_that_are_mapped_nowhere_count(level: Level) -> None:
    def main() -> None:
        descriptor = os.memfd_create("hoard")
        while True:
            os.write(descriptor, bytes(4 * MIB))
            time.sleep(0.02)

    assert run_confined(main, Policy(memory_bytes=200 * MIB, wall_s=30), level).exit.killed_for == "memory"


def test_an_arena_that_many_processes_map_counts_once(level: Level) -> None:
    size = 256 * MIB
    arena = os.memfd_create("arena")
    os.ftruncate(arena, size)
    ours = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE  # a fork shares it, and it counts

    def main() -> None:
        for _ in range(3):
            if os.fork() == 0:
                mmap.mmap(arena, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
                time.sleep(1.5)
                os._exit(0)
        for _ in range(3):
            os.wait()

    outcome = run_confined(main, Policy(memory_bytes=ours + 2 * size, wall_s=30), level, keep=(arena,))
    assert (outcome.exit.code, outcome.exit.killed_for) == (0, None), outcome.output


def test_thread_bomb_is_killed(level: Level) -> None:
    def main() -> None:
        while True:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

    assert run_confined(main, Policy(processes=100, wall_s=30), level).exit.killed_for == "processes"


def test_fork_bomb_is_killed(level: Level) -> None:
    def main() -> None:
        while True:
            if os.fork() == 0:
                time.sleep(60)

    assert run_confined(main, Policy(processes=100, wall_s=30), level).exit.killed_for == "processes"


def test_endless_loop_is_killed(level: Level) -> None:
    def main() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            pass

    assert run_confined(main, Policy(wall_s=0.3), level).exit.killed_for == "time"


def test_descriptors_do_not_leak(level: Level) -> None:
    read, write = os.pipe()
    kept, _ = os.pipe()
    outcome = run_confined(lambda: print(sorted(map(int, os.listdir("/proc/self/fd")))), level=level, keep=(kept,))
    os.close(write)
    os.close(read)
    listed = eval(outcome.output)
    assert listed[:3] == [0, 1, 2]
    assert kept in listed and read not in listed and write not in listed
    assert len(listed) <= 5  # and the one of listdir itself


def test_rlimits(level: Level) -> None:
    def main() -> None:
        for name in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS):
            print(resource.getrlimit(name)[1])

    policy = Policy(memory_bytes=4096 * MIB, file_bytes=5 * MIB, address_space=True)
    assert run_confined(main, policy, level).output.split() == ["0", str(5 * MIB), str(4096 * MIB)]


def test_standard_input_is_empty(level: Level) -> None:
    assert run_confined(lambda: print(repr(sys.stdin.read())), level=level).output == "''\n"


@needs_namespaces
def test_watching_is_cheap(level: Level) -> None:
    watcher = Watcher(Policy(memory_bytes=1 << 40), os.getpid())
    watcher.excess()
    assert 0.02 <= watcher.poll_s <= 0.25
    assert Path("/proc/self/status").exists()
