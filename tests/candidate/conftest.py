"""A launcher candidate for the CPU, used by the tests of this room."""

from __future__ import annotations

import pytest

from cuda_agent.candidate import Candidate

RMSNORM = """\
#include <cmath>
#include <cstdint>
#include "common.h"

extern "C" void rmsnorm(const float* x, const float* weight, float* out, int64_t rows, int cols, float eps) {
    #pragma omp parallel for
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = x + row * cols;
        float sum = 0;
        for (int col = 0; col < cols; ++col) sum += square(in[col]);
        const float scale = SCALE / std::sqrt(sum / cols + eps);
        for (int col = 0; col < cols; ++col) out[row * cols + col] = in[col] * scale * (weight ? weight[col] : 1.0f);
    }
}

extern "C" int fails(int64_t status) { return (int)status; }
extern "C" void takes_any(const void* x, bool flag, double y) {}
extern "C" void counts(const int64_t* index, int32_t* out, uint8_t small) { out[0] = (int)index[0] + small; }
"""

MODEL_NEW = """\
import torch
import ops


class ModelNew(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features))

    def forward(self, x):
        out = torch.empty_like(x)
        ops.rmsnorm(x, self.weight, out, x.numel() // x.shape[-1], x.shape[-1], 1e-5)
        return out
"""


@pytest.fixture
def rmsnorm() -> Candidate:
    files = {
        "model_new.py": MODEL_NEW,
        "kernels/rmsnorm.cpp": RMSNORM,
        "kernels/common.h": "static inline float square(float x) { return x * x; }\n",
        "kernels/schedule.json": '{"rmsnorm": {"SCALE": 1}}',
    }
    return Candidate({path: text.encode() for path, text in files.items()}, "launchers")
