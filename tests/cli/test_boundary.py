"""A user's mistake is one sentence and a documented exit code; a program gets one JSON object."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cuda_agent.cli import boundary
from cuda_agent.cli.console import reserved_stdout

ROOT = Path(__file__).resolve().parents[2]
TASK = """\
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""


@pytest.fixture
def task(tmp_path: Path) -> str:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return str(path)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cuda_agent.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})


MISTAKES = [
    (["nonsense"], "usage_error", "No such command 'nonsense'"),
    (["judge"], "usage_error", "Missing argument 'MODEL'"),
    (["judge", "TASK", "x", "--device", "tpu"], "usage_error", "'tpu' is not one of"),
    (["judge", "TASK", "x", "--rtol", "-1"], "usage_error", "--rtol"),
    (["judge", "TASK", "x", "--nonsense"], "usage_error", "No such option"),
    (["judge", "TASK", "/no/such/candidate"], "usage_error", "/no/such/candidate: no such file or folder"),
    (["judge", "/no/such/task.py", "x"], "unusable_task", "/no/such/task.py: no such file or folder"),
    (["optimize", "/no/such/task.py"], "unusable_task", "/no/such/task.py: no such file or folder"),
    (["demo", "/no/such/folder"], "unusable_task", "/no/such/folder: no such file or folder"),
]


@pytest.mark.parametrize(("arguments", "status", "says"), MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    arguments: list[str], status: str, says: str, task: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [task if argument == "TASK" else argument for argument in arguments]
    assert boundary.run(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("cuda-agent: ")
    assert err.count("\n") == 1
    assert says in err

    assert boundary.run([*arguments, "--json"]) == 2
    out, err = capfd.readouterr()
    assert err == ""
    answer = json.loads(out)
    assert answer["status"] == status
    assert says in answer["message"]


def test_the_output_folder_is_refused_before_any_work(
    task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert boundary.run(["optimize", task, "--out", str(tmp_path / "mine")]) == 2
    assert "holds files that are no earlier result" in capfd.readouterr().err
    assert boundary.run(["optimize", task, "--out", task]) == 2
    assert "is a file" in capfd.readouterr().err


class TestAFaultOfOurs:
    @pytest.fixture(autouse=True)
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def raise_it(**_: object) -> int:
            raise ZeroDivisionError("a bug\nin two lines")

        monkeypatch.setattr("cuda_agent.cli.commands.run_doctor", raise_it)

    def test_says_how_to_see_the_traceback(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert boundary.run(["doctor"]) == 3
        err = capfd.readouterr().err
        assert "Internal error (ZeroDivisionError: a bug in two lines)" in err
        assert "CUDA_AGENT_DEBUG=1" in err
        assert "Traceback" not in err

    def test_shows_it_on_request(self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_AGENT_DEBUG", "1")
        assert boundary.run(["doctor"]) == 3
        assert "Traceback" in capfd.readouterr().err


def test_stdout_is_kept_for_the_answer(capfd: pytest.CaptureFixture[str]) -> None:
    with reserved_stdout():
        os.write(1, b"native noise\n")
        subprocess.run(["echo", "a child's noise"], check=True)
        print("python noise", flush=True)
    print("answer", flush=True)
    out, err = capfd.readouterr()
    assert out == "answer\n"
    assert "native noise" in err
    assert "a child's noise" in err
    assert "python noise" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_search_and_leaves_nothing_running(task: str, tmp_path: Path, number: signal.Signals) -> None:
    marker = f"{number.name}-{tmp_path.name}-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "cuda_agent.cli", "optimize", task, "--out", str(tmp_path / "out"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "CUDA_AGENT_TEST_MARKER": marker, "CUDA_AGENT_CACHE": str(tmp_path / "cache")},
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(carriers(marker)) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert b"Traceback" not in err
    if number == signal.SIGINT:
        assert json.loads(out)["status"] == "interrupted"
    deadline = time.monotonic() + 10
    while carriers(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert carriers(marker) == []


def carriers(marker: str) -> list[str]:
    """Processes whose environment has the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if marker.encode() in path.read_bytes() and b"State:\tZ" not in (path.parent / "status").read_bytes():
                found.append((path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended meanwhile, or is not ours to read
            continue
    return found


class TestTheReference:
    """docs/cli.md and `--help` name the same commands and options."""

    COMMANDS = ("judge", "optimize", "demo", "doctor")

    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_option_is_documented(self, command: str) -> None:
        document = (ROOT / "docs" / "cli.md").read_text()
        section = document.partition(f"## cuda-agent {command}\n")[2].partition("\n## ")[0]
        options = re.compile(r"(?<![\w`-])--?[a-z][a-z-]*")
        assert set(options.findall(section)) == set(options.findall(run(command, "--help").stdout))

    def test_every_command_is_documented(self) -> None:
        listed = re.findall(r"^  (\w+)  ", run("--help").stdout.partition("Commands:")[2], re.MULTILINE)
        assert listed == ["judge", "optimize", "doctor", "demo"]
        assert set(listed) == set(self.COMMANDS)
