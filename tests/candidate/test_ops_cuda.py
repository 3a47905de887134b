from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cuda_agent.candidate import Candidate, Toolchain, plan
from cuda_agent.candidate.loading import materialize
from cuda_agent.judge.builder import Builder
from tests.candidate.test_ops import load

pytestmark = pytest.mark.gpu

SCALE = b"""
#include <cstdint>
#include <cuda_fp16.h>
__global__ void scale_kernel(const __half* x, __half* out, int64_t n, float factor) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) out[i] = __float2half(__half2float(x[i]) * factor);
}
extern "C" void scale(const __half* x, __half* out, int64_t n, float factor, int threads, cudaStream_t stream) {
    scale_kernel<<<(n + threads - 1) / threads, threads, 0, stream>>>(x, out, n, factor);
}
"""


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder: Path = tmp_path_factory.mktemp("cuda")
    candidate = Candidate({"model_new.py": b"", "kernels/scale.cu": SCALE}, "launchers")
    with Builder(folder / "store") as builder:
        (built,) = builder.build(plan(candidate, "cuda", Toolchain.detect("cuda")), 120)
    assert built.path is not None, built.log
    assert built.report[0].registers > 0
    materialize(candidate.files, {built.unit.installed: built.path}, folder / "tree", "cuda")
    yield load(folder / "tree")
    assert [path.name for path in (folder / "tree/kernels/.build").iterdir()] == [built.unit.output]


def test_a_launcher_runs_on_the_current_stream(ops: ModuleType) -> None:
    x = torch.randn(1 << 20, device="cuda", dtype=torch.float16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)  # what a launch on the default stream would overtake
        x.mul_(2)
        out = torch.empty_like(x)
        ops.scale(x, out, x.numel(), 0.5, 256)
    stream.synchronize()
    torch.testing.assert_close(out, x * 0.5)


def test_a_launcher_can_be_captured_in_a_graph(ops: ModuleType) -> None:
    x, out = torch.randn(1000, device="cuda").half(), torch.zeros(1000, device="cuda").half()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.scale(x, out, 1000, 3.0, 128)
    graph.replay()
    torch.testing.assert_close(out, x * 3)


def test_a_launch_that_fails_says_why(ops: ModuleType) -> None:
    x = torch.ones(1000, device="cuda").half()
    with pytest.raises(RuntimeError, match="scale did not launch its kernel: invalid configuration"):
        ops.scale(x, x, 1000, 3.0, 4096)
    ops.scale(x, x, 1000, 3.0, 128)
    assert x[0].item() == 3


def test_a_tensor_on_the_cpu_is_named(ops: ModuleType) -> None:
    x = torch.ones(10, device="cuda").half()
    with pytest.raises(ValueError, match="out must be on cuda, not on cpu"):
        ops.scale(x, x.cpu(), 10, 3.0, 128)
    with pytest.raises(ValueError, match="x must be on cuda, not on cpu"):
        ops.scale(x.cpu(), x, 10, 3.0, 128)
