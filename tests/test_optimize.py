"""The search loop with a real judge: the fastest that is right wins, is judged again, and lies in the folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cuda_agent.candidate import Candidate
from cuda_agent.judge import LocalJudge, Verdict
from cuda_agent.optimize import Event, NoCandidate, search
from cuda_agent.result import is_result
from cuda_agent.task import Task

TASK = Task(
    "shifted_relu",
    """\
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.randn(1))
    def forward(self, x):
        return torch.relu(x + self.shift)
def get_inputs():
    return [torch.randn(512, 512)]
def get_init_inputs():
    return []
""",
    "shifted_relu.py",
)

MODEL_NEW = b"""\
import ops
import torch
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.randn(1))
    def forward(self, x):
        out = torch.empty_like(x)
        ops.shifted_relu(x, self.shift, out, x.numel())
        return out
"""

SOURCE = """\
#include <cstdint>
extern "C" void shifted_relu(const float* x, const float* shift, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) { float y = x[i] + shift[0]; out[i] = EXPRESSION; }
}
"""


@dataclass(frozen=True)
class Variant:
    expression: str

    @property
    def candidate(self) -> Candidate:
        source = SOURCE.replace("EXPRESSION", self.expression)
        return Candidate({"model_new.py": MODEL_NEW, "kernels/shifted_relu.cpp": source.encode()}, "launchers")

    def __str__(self) -> str:
        return self.expression


@dataclass
class Listed:
    """A proposer that tries a fixed list."""

    left: list[Variant]
    told: list[Verdict] = field(default_factory=list)

    def ask(self, n: int) -> list[Variant]:
        asked, self.left = self.left[:n], self.left[n:]
        return asked

    def tell(self, proposal: Variant, verdict: Verdict) -> None:
        self.told.append(verdict)


RIGHT, WRONG, BROKEN = Variant("y > 0 ? y : 0"), Variant("y"), Variant("y >")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalJudge]:
    with LocalJudge(device="cpu", cache=tmp_path_factory.mktemp("cache")) as judge:
        yield judge


def test_the_right_one_wins_and_is_judged_again(judge: LocalJudge, tmp_path: Path) -> None:
    proposer, events = Listed([WRONG, BROKEN, RIGHT]), list[Event]()
    result = search(TASK, lambda: proposer, judge, budget_s=300, out=tmp_path / "out", on_event=events.append)
    assert [verdict.status for verdict in proposer.told] == ["incorrect", "build_failed", "accepted"]
    assert [trial.label for trial in result.history] == ["y", "y >", "y > 0 ? y : 0"]
    assert result.verdict.accepted
    assert is_result(tmp_path / "out")
    assert Verdict.model_validate_json((tmp_path / "out" / "verdict.json").read_text()) == result.verdict
    kinds = [event.kind for event in events]
    assert kinds == ["capture", "search", "trial", "trial", "trial", "written", "final", "written"]


def test_nothing_right_is_said_with_the_last_reason(judge: LocalJudge, tmp_path: Path) -> None:
    with pytest.raises(NoCandidate, match=r"shifted_relu\.py: no kernels that the judge accepts.*incorrect"):
        search(TASK, lambda: Listed([WRONG]), judge, budget_s=300, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_proposed(judge: LocalJudge) -> None:
    with pytest.raises(NoCandidate, match="the expert proposed nothing"):
        search(TASK, lambda: Listed([]), judge, budget_s=300)


class TestWithoutABudget:
    def test_the_first_proposal_is_judged_in_full(self, judge: LocalJudge, tmp_path: Path) -> None:
        proposer, events = Listed([RIGHT, WRONG]), list[Event]()
        result = search(TASK, lambda: proposer, judge, budget_s=0, out=tmp_path / "out", on_event=events.append)
        assert result.verdict.side_by_side.keys() == {"eager", "compile"}
        assert [trial.label for trial in result.history] == [str(RIGHT)]
        assert is_result(tmp_path / "out")
        assert [event.kind for event in events] == ["capture", "final", "trial", "written"]

    @pytest.mark.parametrize(("proposals", "reason"), [([WRONG], "incorrect"), ([], "the expert proposed nothing")])
    def test_nothing_right_is_said(self, judge: LocalJudge, proposals: list[Variant], reason: str) -> None:
        with pytest.raises(NoCandidate, match=reason):
            search(TASK, lambda: Listed(proposals), judge, budget_s=0)
