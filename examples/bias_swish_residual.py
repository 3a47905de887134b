"""Bias, Swish (SiLU), residual: what follows a linear layer. 1024 × 4096 float32, 16 MiB each way."""

import torch
import torch.nn as nn

ROWS, FEATURES = 1024, 4096


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features) * 0.02)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y = x + self.bias
        return y * torch.sigmoid(y) + residual


def get_inputs() -> list:
    return [torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list:
    return [FEATURES]
