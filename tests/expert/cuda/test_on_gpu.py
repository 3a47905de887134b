"""Kernels of every family and mode against float64, on odd shapes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import pytest

from cuda_agent.expert.cuda import CudaEmitter
from cuda_agent.expert.ir import Buffer
from tests.expert.cuda import samples
from tests.expert.cuda.building import Built, build_all
from tests.expert.cuda.samples import Sample

pytestmark = pytest.mark.gpu

BLOCK, CLUSTER, GRID, SPLIT = range(4)
Case = tuple[Sample, dict[str, int]]


def _team(mode: int, team: int, **more: int) -> dict[str, int]:
    return {"MODE": mode, "TEAM": team, "ROWS_PER_BLOCK": 1, "THREADS": 128, "REG_ITEMS": 0, **more}


CASES: dict[str, Case] = {
    "pointwise": (samples.pointwise(128, 1024), {}),
    "pointwise_persistent": (samples.pointwise(3000, 1024), {"PERSISTENT": 1}),
    "pointwise_odd": (samples.pointwise(37, 1003), {}),
    "pointwise_odd_wide": (samples.pointwise(37, 1003), {"UNROLL": 8, "VEC": 4}),
    "pointwise_bfloat16": (samples.pointwise(64, 512, "bfloat16"), {}),
    "pointwise_float16_odd": (samples.pointwise(65, 515, "float16"), {}),
    "gelu": (samples.chain(1 << 20), {}),
    "gelu_odd": (samples.chain(1000003), {}),
    "mask": (samples.causal_mask(512, 1024), {}),
    "softmax_warp": (samples.softmax(333, 128), {}),
    "softmax_warp_odd": (samples.softmax(333, 1001), {}),
    "softmax_tiny_rows": (samples.softmax(5000, 7), {}),
    "softmax_block": (samples.softmax(600, 4096), {}),
    "softmax_block_odd": (samples.softmax(601, 5003), {}),
    "softmax_reread": (samples.softmax(133, 20001), _team(BLOCK, 1)),
    "softmax_shared": (samples.softmax(133, 20000), _team(BLOCK, 1, SHARED_ITEMS=8, REG_ITEMS=4)),
    "softmax_cluster": (samples.softmax(300, 40000), _team(CLUSTER, 8, SHARED_ITEMS=16)),
    "softmax_cluster_persistent": (
        samples.softmax(300, 40001), _team(CLUSTER, 4, SHARED_ITEMS=4, REG_ITEMS=4, PERSISTENT=1, PREFETCH=1)
    ),
    "softmax_cluster_16": (samples.softmax(70, 393216), {}),
    "softmax_grid": (samples.softmax(77, 40001), _team(GRID, 33, SHARED_ITEMS=2, PERSISTENT=1, PREFETCH=1)),
    "softmax_split": (samples.softmax(9, 40001), _team(SPLIT, 13)),
    "group_norm": (samples.group_norm(8, 32, 4, 49), {}),
    "group_norm_grid": (samples.group_norm(3, 12, 3, 100000), _team(GRID, 66, SHARED_ITEMS=4)),
    "group_norm_cluster": (samples.group_norm(40, 12, 6, 10000), _team(CLUSTER, 4, SHARED_ITEMS=8)),
    "group_norm_default": (samples.group_norm(8, 64, 8, 512 * 512), {}),
    "instance_norm_default": (samples.group_norm(8, 64, 64, 512 * 512), {}),
    "layer_norm": (samples.layer_norm(1000, 4096), {}),
    "layer_norm_odd": (samples.layer_norm(1000, 1023), {}),
    "layer_norm_long": (samples.layer_norm(16, 1 << 20), {}),
    "l2_norm_shifted": (samples.l2_norm(700, 65535), {}),
    "frobenius": (samples.l2_norm(1, 5000001), {}),
    "rms_columns": (samples.rms_columns(3, 64, 1024), {}),
    "rms_columns_odd": (samples.rms_columns(3, 61, 1003), {}),
    "rms_columns_long": (samples.rms_columns(2, 5000, 96), {"REG_ITEMS": 4, "SHARED_ITEMS": 4}),
    "sum_columns": (samples.reduce("sum", 8, 1000, 1003), {}),
    "sum_columns_split": (samples.reduce("sum", 2, 100000, 64), {}),
    "prod_columns": (samples.reduce("prod", 3, 12, 77), {}),
    "max_columns": (samples.reduce("max", 8, 1000, 1024), {}),
    "min_rows": (samples.reduce("min", 300, 1003, 1, inner=True), {}),
    "argmax_columns": (samples.reduce("argmax", 8, 1000, 1003), {}),
    "argmin_columns_split": (samples.reduce("argmin", 2, 100000, 64), {}),
    "argmax_rows": (samples.reduce("argmax", 300, 1003, 1, inner=True), {}),
    "argmin_rows_split": (samples.reduce("argmin", 2, 1000003, 1, inner=True), {}),
    "sum_rows_long": (samples.reduce("sum", 5, 3000001, 1, inner=True), {}),
    "mse": (samples.mse(10000019), {}),
    "mse_small": (samples.mse(100), {}),
    "cross_entropy": (samples.cross_entropy(500, 4096), {}),
    "cross_entropy_odd": (samples.cross_entropy(500, 1003), {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Built | AssertionError]:
    return build_all(tmp_path_factory.mktemp("kernels"), ((n, s.plan, changes) for n, (s, changes) in CASES.items()))


def _input(buffer: Buffer, case: str) -> Any:
    import torch

    if buffer.dtype == "int64":
        return torch.randint(0, 1000, buffer.shape, device="cuda")
    made = torch.randn(buffer.shape, device="cuda", dtype=torch.float32)
    if "arg" in case:
        made = (made * 8).round()  # ties: the first one wins
    if "norm" in case or "sum" in case:
        made += 3.0
    return made.to(getattr(torch, buffer.dtype))


def _run(sample: Sample, library: ctypes.CDLL, inputs: list[Any]) -> Any:
    """The output of one launch over poisoned memory."""
    import torch

    kernel, plan = sample.kernel, sample.plan
    named = dict(zip((b.name for b in plan.buffers if b.role != "output"), inputs, strict=True))
    (written,) = (plan.buffer(n) for n in kernel.writes)
    dtype = getattr(torch, written.dtype)
    poison = -7 if written.dtype == "int64" else float("nan")
    named[written.name] = torch.full(written.shape, poison, dtype=dtype, device="cuda")
    spaces = [
        torch.full(w.shape, 0xAB, dtype=torch.uint8, device="cuda") for w in CudaEmitter().workspaces(plan, kernel)
    ]
    tensors = [named[n] for n in (*kernel.reads, *kernel.writes)] + spaces
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    code = library[kernel.name](*pointers, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    torch.cuda.synchronize()
    assert code == 0
    return named[written.name]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_float64(name: str, built: Mapping[str, Built | AssertionError]) -> None:
    import torch

    result, sample = built[name], CASES[name][0]
    if isinstance(result, AssertionError):
        raise result
    torch.manual_seed(0)
    inputs = [_input(b, name) for b in sample.plan.buffers if b.role != "output"]
    library = ctypes.CDLL(str(result.objects[sample.kernel.name]))
    out = _run(sample, library, inputs)
    expected = sample.oracle(*(t.double() if t.is_floating_point() else t for t in inputs))
    if out.dtype == torch.int64:
        assert torch.equal(out, expected)
    else:
        limit = 1e-2 if out.element_size() == 2 else 5e-6
        error = (out.double() - expected).norm() / expected.norm()
        assert error < limit  # NaN, the poison, fails
    assert torch.equal(out, _run(sample, library, inputs)), "two runs differ"


@pytest.mark.parametrize("name", ["max_columns", "min_rows", "argmax_columns", "argmax_rows", "argmin_rows_split"])
def test_nan_wins(name: str, built: Mapping[str, Built | AssertionError]) -> None:
    import torch

    result, sample = built[name], CASES[name][0]
    assert isinstance(result, Built)
    torch.manual_seed(1)
    (buffer,) = (b for b in sample.plan.buffers if b.role != "output")
    x = torch.randn(buffer.shape, device="cuda")
    x[torch.rand_like(x) < 2.0 / x.shape[1]] = float("nan")
    out = _run(sample, ctypes.CDLL(str(result.objects[sample.kernel.name])), [x])
    expected = sample.oracle(x)
    assert torch.equal(out.nan_to_num(123.0), expected.nan_to_num(123.0))
