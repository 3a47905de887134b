"""Emitted C++ kernels against eager PyTorch: captured models, compiled and called."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_agent.candidate import Candidate, Toolchain, plan
from cuda_agent.expert.capture import capture_source
from cuda_agent.expert.cpu import CpuEmitter
from cuda_agent.expert.cpu.traits import shape_of
from cuda_agent.expert.ir import Kernel, Plan
from cuda_agent.expert.plan import plan_graph

# name → (body of forward, inputs); shapes are odd on purpose
MODELS: dict[str, tuple[str, str]] = {
    "swish": ("return x * torch.sigmoid(x)", "torch.randn(37, 129)"),
    "flat": ("return torch.nn.functional.gelu(x)", "torch.randn(10007)"),
    "gelu_tanh": ("return torch.nn.functional.gelu(x, approximate='tanh')", "torch.randn(5, 7, 11)"),
    "softplus": ("return torch.nn.functional.softplus(x * 9)", "torch.randn(33, 65)"),
    "elu_selu": ("return torch.nn.functional.elu(x) + torch.nn.functional.selu(x)", "torch.randn(33, 65)"),
    "hard": ("return torch.nn.functional.hardswish(x) + torch.nn.functional.hardtanh(x)", "torch.randn(33, 65)"),
    "broadcast": ("return (x + y) * y.abs()", "torch.randn(4, 1, 33), torch.randn(17, 33)"),
    "strided": ("return x.t() * 2 + y", "torch.randn(31, 45), torch.randn(45, 31)"),
    "softmax": ("return torch.softmax(x * 0.5, dim=-1)", "torch.randn(6, 5, 1031)"),
    "softmax_dim0": ("return torch.softmax(x, dim=0)", "torch.randn(57, 130)"),
    "log_softmax": ("return torch.log_softmax(x, dim=1)", "torch.randn(9, 70, 3)"),
    "layernorm": ("return torch.nn.functional.layer_norm(x, (1031,))", "torch.randn(7, 1031)"),
    "rmsnorm_dim1": ("return x / torch.sqrt((x * x).mean(dim=1, keepdim=True) + 1e-5)", "torch.randn(3, 17, 5, 9)"),
    "groupnorm": ("return torch.nn.functional.group_norm(x, 4)", "torch.randn(3, 8, 5, 7)"),
    "instancenorm": ("return torch.nn.functional.instance_norm(x)", "torch.randn(3, 4, 9, 11)"),
    "sum_last": ("return x.sum(dim=-1)", "torch.randn(33, 1031)"),
    "sum_first": ("return x.sum(dim=0)", "torch.randn(513, 70)"),
    "sum_middle": ("return x.mean(dim=1, keepdim=True)", "torch.randn(5, 65, 130)"),
    "sum_all": ("return (x * y).sum()", "torch.randn(77, 1031), torch.randn(77, 1031)"),
    "max_last": ("return x.amax(dim=-1) + x.amin(dim=-1)", "torch.randn(33, 1031)"),
    "max_first": ("return torch.max(x, dim=0).values", "torch.randn(513, 70)"),
    "argmax_last": ("return x.argmax(dim=-1)", "torch.randint(0, 50, (33, 1031)).float()"),
    "argmin_first": ("return x.argmin(dim=0)", "torch.randint(0, 50, (257, 70)).float()"),
    "prod": ("return x.prod(dim=-1)", "torch.rand(9, 33) + 0.5"),
    "norms": ("return x / x.norm(dim=1, keepdim=True) + x.abs().sum()", "torch.randn(19, 301)"),
    "var": ("return x.var(dim=-1) + x.std(dim=-1, unbiased=False)", "torch.randn(19, 301)"),
    "mse": ("return torch.nn.functional.mse_loss(x, y)", "torch.randn(300, 301), torch.randn(300, 301)"),
    "huber": ("return torch.nn.functional.smooth_l1_loss(x, y)", "torch.randn(64, 301), torch.randn(64, 301)"),
    "cross_entropy": (
        "return torch.nn.functional.cross_entropy(x, y)",
        "torch.randn(65, 130), torch.randint(0, 130, (65,))",
    ),
    "kl": (
        "return torch.nn.functional.kl_div(torch.log(x), y, reduction='batchmean')",
        "torch.rand(17, 130) + 0.1, torch.rand(17, 130) + 0.1",
    ),
    "half": ("return (x * 2 + 1).relu()", "torch.randn(33, 65).half()"),
    "bfloat": ("return torch.nn.functional.silu(x)", "torch.randn(33, 65).bfloat16()"),
    "integers": ("return (x // 3) % 5 + y", "torch.randint(-50, 50, (33, 65)), torch.randint(0, 9, (65,))"),
    "where": (
        "return torch.where(x > 0, x, y.to(torch.float32))",
        "torch.randn(33, 65), torch.randint(0, 9, (33, 65))",
    ),
    # rows of whole blocks, whose reductions have an accumulator per lane, and which fetch the next row ahead
    "blocks_softmax": ("return torch.softmax(x * 0.5, dim=-1)", "torch.randn(6, 5, 1056)"),
    "blocks_layernorm": ("return torch.nn.functional.layer_norm(x, (2080,))", "torch.randn(7, 2080)"),
    "blocks_groupnorm": ("return torch.nn.functional.group_norm(x, 4)", "torch.randn(3, 8, 5, 64)"),
    "blocks_broadcast": (
        "return torch.softmax(x + y, dim=-1)",
        "torch.randn(3, 1, 5, 96), torch.randn(4, 1, 96)",
    ),
    "blocks_extremes": (
        "x = torch.where(x > 3, torch.nan, x); return x.amax(dim=-1), x.amin(dim=-1), x.double().sum(dim=-1)",
        "torch.randn(33, 1024)",
    ),
    "blocks_kinds": (
        "return x.prod(dim=-1), (x > 2).any(dim=-1), (x > 0.2).all(dim=-1), x.argmax(dim=-1), (x > 1).sum(dim=-1)",
        "torch.rand(33, 96) * 2 + 0.1",
    ),
    "blocks_all": ("return x.sum(), x.amax()", "torch.randn(2, 65536)"),
    "any_all": ("return (x > 2).any(dim=-1), (x > -4).all(dim=-1)", "torch.randn(33, 131)"),
}

SOURCE = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x{more}):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def source(name: str) -> str:
    body, inputs = MODELS[name]
    return SOURCE.format(body=body, inputs=inputs, more=", y" if "y" in body.replace("gelu", "").split("return")[1] and
                         inputs.count("torch.ran") > 1 else "")  # fmt: skip


Call = Callable[..., list[torch.Tensor]]


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """Each model's kernels, built two compilers at a time."""
    from concurrent.futures import ThreadPoolExecutor

    toolchain = Toolchain.detect("cpu")
    folders = {name: tmp_path_factory.mktemp(name) for name in MODELS}  # here, since it is not thread-safe
    with ThreadPoolExecutor(2) as pool:
        plans = {name: plan_graph(capture_source(source(name), "cpu")).plan for name in MODELS}
        made = pool.map(lambda name: build(plans[name], folders[name], toolchain), MODELS)
        return dict(zip(MODELS, made, strict=True))


def build(planned: Plan, folder: Path, toolchain: Toolchain) -> Call:
    kernels = [step for step in planned.steps if isinstance(step, Kernel)]
    candidate = Candidate(CpuEmitter().emit(planned, {}), "launchers")
    objects = {}
    for unit in plan(candidate, "cpu", toolchain):
        for path, content in unit.files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_bytes(content)
        argv = [part.replace("-O3", "-O2 -ftree-vectorize").split() if part == "-O3" else [part] for part in unit.argv]
        subprocess.run([word for words in argv for word in words], cwd=folder, check=True)
        objects[unit.name] = ctypes.CDLL(str(folder / unit.output))

    def call(*inputs: Any) -> list[torch.Tensor]:
        memory = dict(zip((b.name for b in planned.buffers if b.role == "input"), inputs, strict=True))
        for buffer in planned.buffers:
            if buffer.role in ("temp", "output"):
                memory[buffer.name] = torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype))
        for kernel in kernels:
            pointers = [ctypes.c_void_p(memory[n].data_ptr()) for n in (*kernel.reads, *kernel.writes)]
            getattr(objects[kernel.name], kernel.name)(*pointers)
        return [memory[name] for name in planned.results]

    return call


@pytest.mark.parametrize("name", MODELS)
def test_kernels_say_what_eager_says(calls: dict[str, Call], name: str) -> None:
    module: dict[str, Any] = {}
    exec(source(name), module)
    torch.manual_seed(1)
    inputs = module["get_inputs"]()
    expected = module["Model"]()(*inputs)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    for got, want in zip(calls[name](*inputs), expected, strict=True):
        torch.testing.assert_close(
            got, want, rtol=2e-5 if want.dtype == torch.float32 else 1e-2, atol=1e-5, equal_nan=True
        )


def test_nan_and_infinity_travel_as_in_eager(calls: dict[str, Call]) -> None:
    x = torch.randn(33, 1031)
    x[3, 7], x[4, 9], x[5, 11] = float("nan"), float("inf"), -float("inf")
    (got,) = calls["max_last"](x)
    torch.testing.assert_close(got, x.amax(dim=-1) + x.amin(dim=-1), equal_nan=True)
    (got,) = calls["sum_last"](x)
    torch.testing.assert_close(got, x.sum(dim=-1), equal_nan=True, rtol=1e-4, atol=1e-4)
    (got,) = calls["argmax_last"](x)
    assert torch.equal(got, x.argmax(dim=-1))


def test_shapes_of_kernels_are_chosen_by_where_memory_is_contiguous() -> None:
    def shape(name: str) -> list[str]:
        return [
            shape_of(k) for k in plan_graph(capture_source(source(name), "cpu")).plan.steps if isinstance(k, Kernel)
        ]

    assert shape("layernorm") == ["rows"]
    assert shape("sum_first") == ["columns"]
    assert shape("sum_all")[0] == "shared"


def test_sources_read_well_and_name_their_lines() -> None:
    planned = plan_graph(capture_source(source("softmax"), "cpu")).plan
    sources = CpuEmitter().emit(planned, {})
    (text,) = [body.decode() for path, body in sources.items() if path.endswith(".cpp")]
    assert text.startswith("// ") and "model.py: line 8" in text.splitlines()[0]
    assert "#pragma omp simd" in text and max(map(len, text.splitlines())) < 200
