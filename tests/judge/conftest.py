"""A judge for the whole module, and small tasks and candidates to give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cuda_agent.candidate import Candidate
from cuda_agent.judge import Job, LocalJudge, Settings, Verdict
from cuda_agent.task import Task

TASK = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return torch.relu(x) * self.weight


def get_inputs():
    return [torch.randn(64, 128)]


def get_init_inputs():
    return [128]
"""

HONEST = """
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
{body}
"""


def task(source: str = TASK) -> Task:
    return Task("small", source, "model.py")


def single(body: str) -> Candidate:
    """A one-file candidate of the small task with this body of forward."""
    lines = "\n".join("        " + line for line in body.strip("\n").splitlines())
    return Candidate({"model_new.py": HONEST.format(body=lines).encode()}, "single")


QUICK = Settings(mode="training", timeout_s=8.0)
RIGHT = "return torch.clamp(x, min=0) * self.weight"

Ask = Callable[..., Verdict]


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalJudge]:
    cache: Path = tmp_path_factory.mktemp("cache")
    with LocalJudge("cpu", cache=cache) as local:
        yield local


@pytest.fixture
def ask(judge: LocalJudge) -> Ask:
    def run(candidate: Candidate, source: str = TASK, settings: Settings = QUICK) -> Verdict:
        return judge.submit(Job(task(source), candidate, settings)).result(timeout=240)

    return run
