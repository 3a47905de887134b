"""What the task's runner does with the task's model: seeded construction, perturbation, and the float64 oracle."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_LOW = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = {torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16}


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % (1 << 32))


def perturb_constants(model: nn.Module, seed: int) -> None:
    """Move parameters and buffers that were initialised to one value, so that a kernel that ignores them is wrong.

    By up to a tenth: variances stay positive and the model stays what it was.
    """
    generator = torch.Generator().manual_seed(seed)
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        flat = tensor.detach().reshape(-1)
        value = float(flat[0])
        if bool((flat == flat[0]).all()):
            noise = torch.rand(flat.numel(), generator=generator, dtype=torch.float32).to(tensor.device) * 2 - 1
            scale = 0.1 * max(abs(value), 1.0)
            with torch.no_grad():
                tensor.copy_((flat + scale * noise.to(tensor.dtype)).reshape(tensor.shape))


@contextmanager
def tf32(allowed: bool | None) -> Iterator[None]:
    """TF32 in matrix products and convolutions on, off, or (None) as torch has it by default."""
    if allowed is None or not torch.cuda.is_available():
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def oracle(model: nn.Module) -> Callable[..., Any]:
    """The model in float64: parameters and inputs cast, dtypes named inside forward promoted. May raise."""
    double = copy.deepcopy(model).double()

    def run(*inputs: Any) -> Any:
        promoted = tree_map(_promote, inputs)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _Promotion():
                return double(*promoted)
        finally:
            torch.set_default_dtype(default)

    return run


class _Promotion(TorchFunctionMode):
    """Factories and casts that name a lower float give float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _CASTS:
            func = torch.Tensor.double
        args, kwargs = tree_map(_promote_dtype, (args, kwargs or {}))
        return func(*args, **kwargs)


def _promote(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype in _LOW else value


def _promote_dtype(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _LOW else value
