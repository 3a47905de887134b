"""The folder that optimize leaves: whole, readable, and never written over something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.candidate import Candidate
from cuda_agent.judge.verdict import Device, Errors, Interval, Roofline, Times, Verdict
from cuda_agent.optimize import Trial
from cuda_agent.report import render_report
from cuda_agent.result import OutputRefused, check_output, is_result, write_result
from cuda_agent.task import Task

TASK = Task("relu", "class Model: ...\n", "relu.py")
CANDIDATE = Candidate(
    {
        "model_new.py": b"class ModelNew: ...\n",
        "ops.py": b"",
        "kernels/relu.cpp": b"// a\n// b\n",
        "kernels/schedule.json": b'{"relu": {"VEC": 8}}',
    },
    "launchers",
)
ACCEPTED = Verdict(
    task="relu",
    status="accepted",
    reward=3,
    times=Times(
        eager=Interval(ms=40.2, low=39.9, high=40.6),
        compile=Interval(ms=12.0, low=11.8, high=12.2),
        candidate=Interval(ms=5.04, low=5.01, high=5.07),
    ),
    speedup_eager=7.98,
    speedup_compile=2.38,
    errors=Errors(worst=0.013, max_abs=1e-5, eager_worst=0.012, checked=1_000_000),
    oracle="float64",
    precision="full",
    roofline=Roofline(bytes=64_000_000, floor_ms=4.8, fraction=0.95),
    isolation="namespaces",
    device=Device(kind="cpu", name="a CPU"),
    versions={"torch": "2.13.0"},
    flags=["noisy machine"],
)
REJECTED = Verdict(
    task="relu", status="incorrect", reward=-1, message="wrong | value", device=Device(kind="cpu", name="a CPU")
)
HISTORY = [Trial("VEC=4", CANDIDATE, REJECTED, 1.0), Trial("VEC=8", CANDIDATE, ACCEPTED, 2.0)]


class TestTheFolder:
    def test_it_holds_all_that_it_takes_to_run_and_to_judge_it_again(self, tmp_path: Path) -> None:
        write_result(tmp_path / "new" / "out", TASK, CANDIDATE, ACCEPTED, HISTORY)
        out = tmp_path / "new" / "out"
        assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()) == [
            "REPORT.md",
            "kernels/relu.cpp",
            "kernels/schedule.json",
            "model.py",
            "model_new.py",
            "ops.py",
            "verdict.json",
        ]
        assert (out / "model.py").read_text() == TASK.source
        assert Verdict.model_validate_json((out / "verdict.json").read_text()) == ACCEPTED
        assert is_result(out)

    def test_an_earlier_result_is_replaced_and_a_persons_notes_are_kept(self, tmp_path: Path) -> None:
        write_result(tmp_path, TASK, CANDIDATE, ACCEPTED, HISTORY)
        (tmp_path / "NOTES.md").write_text("mine")
        files = {**CANDIDATE.files, "kernels/other.cpp": b""}
        del files["kernels/relu.cpp"]
        check_output(tmp_path)
        write_result(tmp_path, TASK, Candidate(files, "launchers"), ACCEPTED, HISTORY)
        assert not (tmp_path / "kernels" / "relu.cpp").exists()
        assert (tmp_path / "kernels" / "other.cpp").exists()
        assert (tmp_path / "NOTES.md").read_text() == "mine"

    def test_other_folders_are_refused_unless_forced(self, tmp_path: Path) -> None:
        (tmp_path / "kernels").mkdir()
        (tmp_path / "kernels" / "precious.cu").touch()
        with pytest.raises(OutputRefused, match="--force"):
            check_output(tmp_path)
        check_output(tmp_path, force=True)
        write_result(tmp_path, TASK, CANDIDATE, ACCEPTED, HISTORY)
        assert (tmp_path / "kernels" / "precious.cu").exists()

    def test_an_empty_or_missing_folder_is_taken(self, tmp_path: Path) -> None:
        check_output(tmp_path)
        check_output(tmp_path / "a" / "b")
        assert list((tmp_path / "a" / "b").iterdir()) == []

    def test_a_place_that_cannot_be_written_is_refused_at_once(self) -> None:
        with pytest.raises(OutputRefused, match="cannot be written"):
            check_output(Path("/proc/nothing/out"))


class TestTheReport:
    def test_it_says_what_was_measured_and_how_far_to_trust_it(self) -> None:
        report = render_report(TASK, CANDIDATE, ACCEPTED, HISTORY)
        for fact in (
            "Reward **3**: correct, and more than 5 % faster than both",
            "| eager | 40.2 | 39.9 – 40.6 | 7.98 × |",
            "| these kernels | 5.04 | 5.01 – 5.07 |  |",
            "`kernels/relu.cpp`, 2 lines: VEC=8",
            "a float64 run of the task",
            "1,000,000 checked elements",
            "95 % of that",
            "Isolation of the candidate while it was judged: namespaces.",
            "Flag: noisy machine.",
            "torch 2.13.0.",
            "cuda-agent judge model.py .",
            "2 variants in 2 s, 1 accepted",
            "| VEC=4 |  | incorrect: wrong \\| value |",
        ):
            assert fact in report
        assert report.index("| VEC=8 |") < report.index("| VEC=4 |")

    def test_a_rejection_says_why(self) -> None:
        report = render_report(TASK, CANDIDATE, REJECTED)
        assert "**Rejected**: the output is wrong. wrong | value" in report
        assert "What was tried" not in report

    def test_tables_are_not_broken_by_blank_lines(self) -> None:
        report = render_report(TASK, CANDIDATE, ACCEPTED, HISTORY)
        assert "|\n\n|" not in report
