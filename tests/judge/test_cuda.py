"""The judge on a GPU: launchers, native faults, and judgements that stay right after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cuda_agent.candidate import Candidate
from cuda_agent.judge import Job, LocalJudge, Settings, Verdict
from tests.judge.conftest import HONEST, TASK, single, task

pytestmark = pytest.mark.gpu

SOURCE = TASK.replace("torch.randn(64, 128)", "torch.randn(4096, 1024)").replace("return [128]", "return [1024]")
LIMITED = Settings(mode="training", timeout_s=10.0)

MODEL = (
    HONEST.format(
        body="""
        y = torch.empty_like(x)
        ops.relu_scale(x, self.weight, y, x.numel(), x.size(1))
        return y"""
    )
    .replace("import torch\n", "import torch\nimport ops\n", 1)
    .encode()
)
KERNEL = """
#include <cstdint>
#include <cuda_runtime.h>
__global__ void kernel(const float* x, const float* w, float* y, int64_t n, int64_t cols) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    %s
    if (i < n) y[i] = fmaxf(x[i], 0.0f) * w[i %% cols];
}
extern "C" int relu_scale(const float* x, const float* w, float* y, int64_t n, int64_t cols, cudaStream_t stream) {
    kernel<<<(n + 255) / 256, 256, 0, stream>>>(x, w, y, n, cols);
    return cudaGetLastError();
}
"""


def launchers(extra: str = "") -> Candidate:
    return Candidate({"model_new.py": MODEL, "kernels/relu_scale.cu": (KERNEL % extra).encode()}, "launchers")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Verdict]]:
    cache: Path = tmp_path_factory.mktemp("cache")
    with LocalJudge("cuda", cache=cache) as local:

        def run(candidate: Candidate, settings: Settings = LIMITED) -> Verdict:
            return local.submit(Job(task(SOURCE), candidate, settings)).result(timeout=240)

        yield run


def test_launchers_are_accepted_and_faster_than_eager(gpu: Callable[..., Verdict]) -> None:
    verdict = gpu(launchers(), Settings(mode="full"))
    assert verdict.status == "accepted", (verdict.message, verdict.log)
    assert verdict.reward >= 2, verdict.times
    assert verdict.oracle == "float64" and verdict.precision == "full"


@pytest.mark.parametrize(
    ("candidate", "status", "words"),
    [
        (launchers("y[i + (1ll << 40)] = 0.0f;"), "crashed", "illegal"),
        (launchers("while (w[0] != 12345.0f) __nanosleep(1000);"), "timed_out", "endless"),
        (launchers('asm volatile("trap;");'), "crashed", ""),
        (single("return torch.empty(1 << 44, dtype=torch.uint8, device=x.device)"), "out_of_memory", "memory"),
        (single("import os; os._exit(0)"), "crashed", "code 0"),
        (single("import ctypes; ctypes.string_at(0)"), "crashed", "SIGSEGV"),
        (single("while True: pass"), "timed_out", "endless"),
        (launchers("if (i == 5) return;"), "incorrect", "expected"),
        (single("return torch.relu(x).cpu() * self.weight.cpu()"), "incorrect", "device"),
    ],
)
def test_a_fault_is_named_and_the_next_judgement_is_right(
    gpu: Callable[..., Verdict], candidate: Candidate, status: str, words: str
) -> None:
    verdict = gpu(candidate)
    assert (verdict.status, verdict.reward) == (status, -1), (verdict.message, verdict.log)
    assert words in verdict.message
    assert gpu(launchers()).status == "accepted"
