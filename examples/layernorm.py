"""nn.LayerNorm over the last dimension: 1024 × 4096 float32, 16 MiB in, 16 MiB out."""

import torch
import torch.nn as nn

ROWS, FEATURES = 1024, 4096


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


def get_inputs() -> list:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list:
    return [FEATURES]
