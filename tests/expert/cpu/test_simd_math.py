"""The vectorised elementary functions against float64, over all of float32."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy
import pytest
import torch

FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "sigmoid")

SOURCE = '#include "simd_math.h"\nextern "C" {\n' + "".join(
    f"void f_{name}(const float* x, float* y, long n) {{\n#pragma omp simd\n"
    f"for (long i = 0; i < n; ++i) y[i] = simd::{name}(x[i]); }}\n"
    for name in FUNCTIONS
) + """
void f_bfloat16(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = simd::widen(simd::narrow_bf16(x[i]));
}
void f_float16(const float* x, float* y, long n) {
    for (long i = 0; i < n; ++i) y[i] = simd::widen(simd::narrow_f16(x[i]));
}
}
"""  # fmt: skip

Run = Callable[[str, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder: Path = tmp_path_factory.mktemp("simd")
    (folder / "f.cpp").write_text(SOURCE)
    include = files("cuda_agent.expert.cpu") / "include"
    flags = [
        "-O3",
        "-march=native",
        "-fopenmp",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-fno-math-errno",
        "-fno-trapping-math",
    ]
    subprocess.run(["g++", *flags, f"-I{include}", folder / "f.cpp", "-o", folder / "f.so"], check=True)
    library = ctypes.CDLL(str(folder / "f.so"))

    def call(name: str, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, y)]
        getattr(library, f"f_{name}")(*pointers, ctypes.c_long(x.numel()))
        return y

    return call


@pytest.fixture(scope="module")
def everything() -> torch.Tensor:
    """Every 4999th float, a fine grid where the functions bend, and the special values."""
    bits = torch.arange(-(2**31), 2**31, 4999, dtype=torch.int64).to(torch.int32).view(torch.float32)
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0])
    return torch.cat([bits, special, torch.linspace(-110, 110, 400_001), torch.linspace(-2, 2, 100_001)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_five_ulp_everywhere_and_exact_at_the_edges(run: Run, everything: torch.Tensor, name: str) -> None:
    got, exact = run(name, everything), getattr(torch, name)(everything.double())
    rounded = exact.float()
    least = 2e-38 if name.startswith("exp") and name != "expm1" else 1.2e-38  # below it, zero will do
    normal = rounded.isfinite() & (rounded.abs() > least)
    ulp = torch.from_numpy(numpy.spacing(rounded.abs().numpy())).double()
    error = ((got.double() - exact).abs() / ulp)[normal]
    assert float(error.max()) <= 5.0
    edge = ~rounded.isfinite()
    assert torch.equal(got[edge].nan_to_num(7.0), rounded[edge].nan_to_num(7.0))
    small = ~normal & ~edge
    assert float((got[small] - rounded[small]).abs().max()) <= least


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_rounds_as_torch_does(run: Run, everything: torch.Tensor, name: str) -> None:
    expected = everything.to(getattr(torch, name)).float()
    got = run(name, everything)
    assert bool(((got == expected) | (got.isnan() & expected.isnan())).all())
