"""What the judge says of honest, wrong and unusable code."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from cuda_agent.candidate import Candidate
from cuda_agent.errors import TaskError
from cuda_agent.judge import Settings, Verdict
from tests.judge.conftest import HONEST, RIGHT, TASK, Ask, single

LAUNCHERS = {
    "model_new.py": HONEST.format(
        body="""
        y = torch.empty_like(x)
        ops.relu_scale(x, self.weight, y, x.size(0), x.size(1))
        return y"""
    )
    .replace("import torch\n", "import torch\nimport ops\n", 1)
    .encode(),
    "kernels/relu_scale.cpp": b"""
#include <cstdint>
extern "C" void relu_scale(const float* x, const float* w, float* y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) {
            const float v = x[r * cols + c];
            y[r * cols + c] = (v > 0.0f ? v : 0.0f) * w[c];
        }
}
""",
}


def test_a_right_candidate_is_accepted_with_times_and_a_json_round_trip(ask: Ask) -> None:
    verdict = ask(single(RIGHT))
    assert verdict.status == "accepted", verdict.message
    assert verdict.reward >= 1
    assert verdict.times.candidate is not None and verdict.times.eager is not None and verdict.times.compile is not None
    assert verdict.oracle == "float64" and verdict.precision == "full"
    assert verdict.errors is not None and verdict.errors.worst <= 1
    assert verdict.errors.checked > 5 * 64 * 128  # the five trials and every timed iteration
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_launchers_are_built_bound_and_run(ask: Ask) -> None:
    verdict = ask(Candidate(LAUNCHERS, "launchers"))
    assert verdict.status == "accepted", verdict.message


def test_a_source_that_does_not_compile_is_build_failed_with_the_compilers_words(ask: Ask) -> None:
    broken = {**LAUNCHERS, "kernels/relu_scale.cpp": LAUNCHERS["kernels/relu_scale.cpp"].replace(b"y[r", b"z[r")}
    verdict = ask(Candidate(broken, "launchers"))
    assert (verdict.status, verdict.reward) == ("build_failed", -1)
    assert "error" in verdict.message and "z" in verdict.log


@pytest.mark.parametrize(
    ("body", "status", "rule", "words"),
    [
        ("return torch.relu(x)", "incorrect", None, "expected"),  # ignores a weight that is one at construction
        ("return torch.relu(x) * self.weight * 1.2", "incorrect", None, "got"),
        ("return torch.zeros_like(x)", "incorrect", None, "expected"),
        ("return (torch.relu(x) * self.weight)[None]", "incorrect", "shape", "(1, 64, 128)"),
        ("return (torch.relu(x) * self.weight).double()", "incorrect", "dtype", "float64"),
        ("return torch.relu(x) * self.weight, x", "incorrect", "structure", "tuple"),
        ("return None", "incorrect", "structure", "None"),
        ("return object()", "incorrect", "value", "object"),
        ("return torch.relu(x) * float('nan')", "incorrect", None, "nan"),
        ("return x.relu_().mul_(self.weight)", "rule_broken", "mutated-input", "input"),
        (
            "if not hasattr(self, 'buf'): self.buf = torch.empty_like(x)\n"
            "torch.mul(torch.relu(x), self.weight, out=self.buf)\nreturn self.buf",
            "rule_broken",
            "static-output",
            "earlier call",
        ),
        ("raise KeyError('gone')", "runtime_error", None, "model_new.py:"),
        ("return torch.relu(x) @ self.weight[:3]", "runtime_error", None, "RuntimeError"),
    ],
)
def test_what_is_wrong_is_said(ask: Ask, body: str, status: str, rule: str | None, words: str) -> None:
    verdict = ask(single(body))
    assert (verdict.status, verdict.rule, verdict.reward) == (status, rule, -1), verdict.message
    assert words in verdict.message
    assert "Traceback" not in verdict.message


def test_an_answer_remembered_by_address_is_wrong(ask: Ask) -> None:
    body = (
        "self.seen = getattr(self, 'seen', {})\n"
        "if x.data_ptr() not in self.seen: self.seen[x.data_ptr()] = torch.relu(x) * self.weight\n"
        "return self.seen[x.data_ptr()].clone()"
    )
    assert ask(single(body)).reward == -1


def test_honest_for_the_first_calls_and_lazy_afterwards_is_caught_while_it_is_timed(ask: Ask) -> None:
    body = (
        "self.calls = getattr(self, 'calls', 0) + 1\n"
        "if self.calls < 12: self.last = torch.relu(x) * self.weight\n"
        "return self.last.clone()"
    )
    verdict = ask(single(body))
    assert (verdict.status, verdict.reward) == ("incorrect", -1)
    assert "timed" in verdict.message


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        (("def __init__(self, features)", "def __init__(self)"), "signature", "ModelNew"),
        (("self.weight = nn", "self.scale = nn"), "state_dict", "lacks weight"),
        (("torch.ones(features)", "torch.ones(features + 1)"), "state_dict", "size mismatch"),
        (("class ModelNew", "class Model"), "load", "ModelNew"),
        (("def forward(self, x):", "def forward(self x):"), "load", "model_new.py:11"),
        (("import torch\n", "import torch\nimport no_such_module\n"), "load", "no_such_module"),
    ],
)
def test_a_candidate_that_does_not_load_is_rejected_clearly(
    ask: Ask, change: tuple[str, str], rule: str, words: str
) -> None:
    source = HONEST.format(body="        return torch.relu(x) * self.weight").replace(*change, 1)
    verdict = ask(Candidate({"model_new.py": source.encode()}, "single"))
    assert (verdict.status, verdict.rule, verdict.reward) == ("load_failed", rule, -1), verdict.message
    assert words in verdict.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("return [torch.randn(64, 128)]", "raise RuntimeError('no data')"), "model.py:16: RuntimeError: no data"),
        (("return [128]", "return [128, 3]"), "positional arguments"),
        (("torch.relu(x) * self.weight", "torch.rand_like(x)"), "different outputs for the same input"),
        (("torch.relu(x) * self.weight", "x * 0 + self.weight"), "same output for different inputs"),
        (("torch.relu(x) * self.weight", "x @ x"), "model.py:12:"),
    ],
)
def test_an_unusable_task_is_one_sentence_with_its_line(ask: Ask, change: tuple[str, str], words: str) -> None:
    with pytest.raises(TaskError) as raised:
        ask(single(RIGHT), TASK.replace(*change, 1))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_structured_inputs_integers_and_several_outputs(ask: Ask) -> None:
    source = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, pair, scale, options):
        x, index = pair
        picked = x[index] * scale
        return {"picked": picked if options["sign"] else -picked, "top": picked.argmax(dim=-1)}


def get_inputs():
    return [[torch.randn(32, 16), torch.randint(0, 32, (8,))], 0.5, {"sign": True}]


def get_init_inputs():
    return []
"""
    candidate = source.replace("class Model", "class ModelNew").partition("def get_inputs")[0]
    verdict = ask(Candidate({"model_new.py": candidate.encode()}, "single"), source)
    assert verdict.status == "accepted", verdict.message
    wrong = candidate.replace("picked.argmax(dim=-1)", "picked.argmin(dim=-1)")
    assert ask(Candidate({"model_new.py": wrong.encode()}, "single"), source).status == "incorrect"


def test_judging_again_and_again_holds_no_more_memory(ask: Ask) -> None:
    def arenas() -> int:
        names = []
        for path in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):
                names.append(os.readlink(path))
        return sum("memfd:" in name for name in names)

    counts = []
    for body in (RIGHT, "return torch.relu(x).mul(self.weight)", "return 2 * x"):
        ask(single(body), settings=Settings(mode="training"))
        counts.append(arenas())
    assert counts[1:] == counts[:1] * 2


def test_a_model_that_fails_while_the_candidate_is_timed_is_the_tasks_fault(ask: Ask) -> None:
    source = TASK.replace(
        "        return torch.relu(x) * self.weight",
        "        if not torch.compiler.is_compiling():\n"
        "            self.calls = getattr(self, 'calls', 0) + 1\n"
        "            assert self.calls < 40, 'tired'\n"
        "        return torch.relu(x) * self.weight",
    )
    with pytest.raises(TaskError, match="tired"):
        ask(single(RIGHT), source, Settings(mode="training"))
