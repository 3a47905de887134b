"""Cross entropy spelled out: log-softmax over 32768 words, NLL, mean. 256 × 32768 float32, 32 MiB in."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS, WORDS = 256, 32768


class Model(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.nll_loss(F.log_softmax(logits, dim=-1), target)


def get_inputs() -> list:
    return [torch.randn(TOKENS, WORDS), torch.randint(0, WORDS, (TOKENS,))]


def get_init_inputs() -> list:
    return []
