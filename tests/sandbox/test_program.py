"""Programs: compilers, shells."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.sandbox import Completed, Level, Policy, spawn
from cuda_agent.sandbox.program import _HeadAndTail

from .conftest import LEVELS, needs_namespaces

ENV = {"PATH": os.environ["PATH"]}


def shell(script: str, policy: Policy | None = None, level: Level | None = None, cwd: str = "/") -> Completed:
    return spawn(["sh", "-c", script], policy or Policy(wall_s=30), cwd=cwd, env=ENV, level=level)


@pytest.mark.parametrize("level", LEVELS)
def test_result_of_a_program(level: Level) -> None:
    done = shell("echo out; echo err >&2; exit 3", level=level)
    assert (done.returncode, done.output, done.truncated, done.timed_out) == (3, "out\nerr\n", False, False)
    assert done.level is level
    assert shell("kill -SEGV $$", level=level).returncode == -11


def test_environment_is_exactly_what_was_given() -> None:
    os.environ["CUDA_AGENT_TEST_SECRET"] = "secret"
    try:
        assert "secret" not in shell("env").output
    finally:
        del os.environ["CUDA_AGENT_TEST_SECRET"]


def test_missing_program_ends_like_in_a_shell() -> None:
    done = spawn(["no-such-compiler"], Policy(wall_s=30), cwd="/", env=ENV)
    assert done.returncode == 127
    assert "no-such-compiler: No such file or directory" in done.output


@pytest.mark.parametrize("level", LEVELS)
def test_two_gigabytes_of_output_are_bounded(level: Level) -> None:
    done = shell("echo first; head -c 2000000000 /dev/zero; echo last", level=level)
    assert done.returncode == 0
    assert done.truncated
    assert len(done.output) < 70_000
    assert done.output.startswith("first\n") and done.output.endswith("last\n")
    assert "bytes cut" in done.output


@pytest.mark.parametrize("level", LEVELS)
def test_a_program_that_never_ends_is_killed_with_all_it_started(level: Level, tmp_path: Path) -> None:
    script = "setsid sh -c 'while :; do date +%N > beat; sleep 0.02; done' & trap '' TERM; while :; do sleep 1; done"
    done = shell(script, Policy(wall_s=0.5, writable=(tmp_path,)), level, str(tmp_path))
    assert done.timed_out
    assert done.returncode is None
    before = (tmp_path / "beat").read_text()
    time.sleep(0.2)
    assert (tmp_path / "beat").read_text() == before


@pytest.mark.parametrize("level", LEVELS)
def test_memory_hog(level: Level) -> None:
    code = "import time\nhoard=[]\nwhile 1: hoard.append(b'x' * 2**23); time.sleep(0.005)"
    done = spawn([sys.executable, "-c", code], Policy(memory_bytes=200 << 20, wall_s=30), cwd="/", env=ENV, level=level)
    assert done.killed_for == "memory"


def test_address_space_limit_reaches_the_program() -> None:
    policy = Policy(memory_bytes=400 << 20, wall_s=30, address_space=True)
    done = spawn([sys.executable, "-c", "bytearray(2**30)"], policy, cwd="/", env=ENV)
    assert "MemoryError" in done.output


@needs_namespaces
def test_a_compiler_writes_only_where_it_may(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "one.cpp").write_text('extern "C" int one() { return 1; }')
    policy = Policy(wall_s=60, writable=(tmp_path / "build",))
    done = spawn(["g++", "-shared", "-fPIC", "one.cpp", "-o", "build/one.so"], policy, cwd=tmp_path, env=ENV)
    assert done.returncode == 0, done.output
    assert (tmp_path / "build" / "one.so").exists()
    done = spawn(["g++", "-shared", "-fPIC", "one.cpp", "-o", "one.so"], policy, cwd=tmp_path, env=ENV)
    assert done.returncode != 0
    assert "Read-only file system" in done.output


def test_from_many_threads() -> None:
    results: list[Completed] = []
    threads = [threading.Thread(target=lambda: results.append(shell("echo $PPID"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.returncode for done in results] == [0] * 6


def test_interrupt_leaves_nothing_running(tmp_path: Path) -> None:
    program = f"""
        import os
        from pathlib import Path
        from cuda_agent.sandbox import Policy, spawn
        folder = Path({str(tmp_path)!r})
        script = "while :; do date +%N > beat; sleep 0.02; done"
        spawn(["sh", "-c", script], Policy(writable=(folder,)), cwd=folder, env=dict(os.environ))
    """
    caller = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (tmp_path / "beat").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    caller.send_signal(2)
    caller.wait(20)
    before = (tmp_path / "beat").read_text()
    time.sleep(0.2)
    assert (tmp_path / "beat").read_text() == before


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(2, 64))
def test_head_and_tail_keep_what_they_say(chunks: list[bytes], limit: int) -> None:
    kept, whole = _HeadAndTail(limit), b"".join(chunks)
    for chunk in chunks:
        kept.add(chunk)
    text, truncated = kept.text()
    half = max(limit // 2, 1)
    if len(whole) <= 2 * half:
        assert text == whole.decode(errors="replace") and not truncated
    else:
        assert truncated and f"[… {len(whole) - 2 * half} bytes cut …]" in text


@needs_namespaces
def test_an_environment_that_lies_in_a_masked_folder_is_seen(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    program = """
        import sys
        from cuda_agent.sandbox import Policy, spawn

        done = spawn([sys.executable, "-c", "import sys; print(sys.prefix)"], Policy(wall_s=30), cwd="/", env={})
        print(done.output, end="")
    """
    package = Path(__file__).resolve().parents[2] / "src"
    said = subprocess.run(
        [tmp_path / "venv/bin/python", "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(package)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == f"{tmp_path / 'venv'}\n"
