"""Candidates that go wrong natively: each gives a bounded, named verdict, and the next judgement is right."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cuda_agent.candidate import Candidate
from cuda_agent.judge import LocalJudge, Settings
from tests.judge.conftest import RIGHT, Ask, single

LIMITED = Settings(mode="training", timeout_s=6.0, compile_timeout_s=5.0)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV"),
        ("import os; os._exit(0)", "crashed", "code 0"),
        ("import os; os.abort()", "crashed", "SIGABRT"),
        ("while True: pass", "timed_out", "6 s"),
        ("import ctypes; ctypes.CDLL(None).sleep(1000)", "timed_out", "endless"),
        ("return torch.empty(1 << 50, dtype=torch.uint8)", "out_of_memory", "memory"),
        (
            "import threading, time\nfor _ in range(1000): threading.Thread(target=time.sleep, args=(99,)).start()\n"
            "time.sleep(5)",
            "crashed",
            "threads",
        ),
    ],
)
def test_a_fault_is_named_and_the_next_judgement_is_right(ask: Ask, body: str, status: str, words: str) -> None:
    start = time.monotonic()
    verdict = ask(single(body), settings=LIMITED)
    assert (verdict.status, verdict.reward) == (status, -1), verdict.message
    assert words in verdict.message
    assert time.monotonic() - start < 60
    assert ask(single(RIGHT), settings=LIMITED).status == "accepted"


def test_ten_gigabytes_on_stdout_cost_time_not_memory(ask: Ask) -> None:
    body = "import os\nfor _ in range(10_000): os.write(1, b'x' * 1_000_000)\nreturn torch.relu(x) * self.weight"
    verdict = ask(single(body), settings=LIMITED)
    assert verdict.reward == -1 and verdict.status == "timed_out", verdict.message
    assert len(verdict.log) <= 4000


def test_memory_taken_piece_by_piece_ends_at_the_limit(judge: LocalJudge, ask: Ask) -> None:
    body = "self.held = []\nwhile True: self.held.append(torch.ones(1 << 24))"
    verdict = ask(single(body), settings=Settings(mode="training", timeout_s=60.0, memory_bytes=3 << 30))
    assert (verdict.status, verdict.reward) == ("out_of_memory", -1), verdict.message


def test_a_compiler_that_never_ends_is_stopped(ask: Ask) -> None:
    endless = b"""
template <int N, long M> struct Deep {
    static const long value = Deep<N - 1, 2 * M>::value + Deep<N - 1, 2 * M + 1>::value;
};
template <long M> struct Deep<0, M> { static const long value = M; };
extern "C" void f(float* x, long n) { x[0] = Deep<40, 1>::value; }
"""
    files = {
        "model_new.py": b"import ops\nclass ModelNew: pass\n",
        "kernels/f.cpp": endless,
    }
    start = time.monotonic()
    verdict = ask(Candidate(files, "launchers"), settings=LIMITED)
    assert verdict.reward == -1
    assert verdict.status in ("timed_out", "build_failed")  # memory may end before time does
    assert time.monotonic() - start < 30


def test_closing_the_judge_leaves_nothing_running(tmp_path: Path) -> None:
    marker = f"left-{os.getpid()}"
    sleeper = f"subprocess.Popen(['sleep', '977'], env={{'LEFT': '{marker}'}}, start_new_session=True)"
    body = f"import subprocess, time\n{sleeper}\n"
    with LocalJudge("cpu", cache=tmp_path) as judge:
        from cuda_agent.judge import Job
        from tests.judge.conftest import task

        judge.submit(Job(task(), single(body + RIGHT), Settings(mode="search"))).result(timeout=120)
        pending = judge.submit(Job(task(), single("while True: pass"), LIMITED))
        time.sleep(1.0)
    assert pending.future.cancelled() or pending.future.done()
    assert not _processes_with(marker)


def _processes_with(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if marker.encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return [pid for pid in found if int(pid) != os.getpid()]
