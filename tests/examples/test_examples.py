"""The shipped examples are what their docstrings say: they run, are deterministic, and have the claimed size."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cuda_agent.task import load_task, load_tasks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = (
    "bias_swish_residual",
    "layernorm",
    "log_softmax_nll",
    "pointwise_broadcast",
    "rmsnorm_gelu",
    "softmax_scale_mask",
)


@pytest.fixture(params=NAMES)
def example(request: pytest.FixtureRequest) -> ModuleType:
    task = load_task(EXAMPLES / f"{request.param}.py")
    module = ModuleType(task.name)
    exec(compile(task.source, task.origin, "exec"), module.__dict__)
    return module


def test_the_folder_holds_six_tasks() -> None:
    assert tuple(task.name for task in load_tasks(EXAMPLES)) == NAMES


def test_it_runs_and_two_runs_agree(example: ModuleType) -> None:
    torch.manual_seed(0)
    model = example.Model(*example.get_init_inputs()).eval()
    inputs = example.get_inputs()
    copies = [value.clone() for value in inputs]
    with torch.no_grad():
        first, second = model(*inputs), model(*inputs)
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)
    assert all(torch.equal(value, copy) for value, copy in zip(inputs, copies, strict=True))


def test_inputs_are_fresh_every_time(example: ModuleType) -> None:
    first, second = example.get_inputs()[0], example.get_inputs()[0]
    assert first.dtype == torch.float32
    assert not torch.equal(first, second)


def test_the_size_is_the_one_that_the_docstring_claims(example: ModuleType) -> None:
    document = example.__doc__ or ""
    claimed = [int(n) for n in re.search(r"(\d+) × (\d+) float32", document).groups()]  # type: ignore[union-attr]
    largest = example.get_inputs()[0]
    assert list(largest.shape[-2:]) == claimed
    mebibytes = largest.numel() * largest.element_size() / 2**20
    assert f"{mebibytes:.0f} MiB" in document
    assert 2**22 <= largest.numel() <= 2**26  # past the caches, small enough for two cores
