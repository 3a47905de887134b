"""The timer lease: one timing at a time, whatever dies."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_agent.backends import get_backend

HOLD = """
import sys, time
from cuda_agent.backends.lease import lease
with lease("cpu", shared=sys.argv[1] == "shared"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
print("done", flush=True)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path))


def holder(mode: str, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLD, mode, str(seconds)], stdout=subprocess.PIPE, text=True)


def held(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"


def finish(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_excludes_another_process() -> None:
    other = holder("exclusive", 0.4)
    held(other)
    with get_backend("cpu").timer_lease():
        assert other.stdout is not None
        assert other.stdout.readline() == "done\n"  # it had let go before we got it
    finish(other)


def test_readers_share_and_exclude_a_writer() -> None:
    other = holder("shared", 60)
    held(other)
    with get_backend("cpu").timer_lease(shared=True):
        pass
    writer = holder("exclusive", 0)
    assert writer.stdout is not None
    assert select.select([writer.stdout], [], [], 0.5)[0] == []
    finish(other)
    held(writer)
    finish(writer)


def test_is_released_when_the_holder_is_killed() -> None:
    other = holder("exclusive", 60)
    held(other)
    other.send_signal(signal.SIGKILL)
    with get_backend("cpu").timer_lease():
        pass
    finish(other)


def test_a_waiting_writer_is_not_starved_by_new_readers() -> None:
    first = holder("shared", 60)
    held(first)
    writer = holder("exclusive", 0.2)
    time.sleep(0.7)  # it waits for `first` and keeps the gate
    late = holder("shared", 0)
    time.sleep(0.5)
    finish(first)
    held(writer)
    held(late)
    finish(writer)
    finish(late)
