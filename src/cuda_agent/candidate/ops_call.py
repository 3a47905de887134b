"""What a function of a generated `ops.py` does with its arguments: cheap checks that name the argument.

Everything below the marker is written into `ops.py`, for CUDA with `_on_device` changed; see `ops_build.py`.
A kernel may take a few microseconds, so each check is a handful of attribute reads, and errors are worded apart.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

DEVICE = "cpu"

# --- written into ops.py from here on ---


def _pointer(tensor: Tensor | None, name: str, dtype: torch.dtype | None) -> int | None:
    """Address of a contiguous tensor; None is NULL. dtype None: any."""
    if tensor is None:
        return None
    try:
        if (tensor.dtype is dtype or dtype is None) and tensor.is_cpu and tensor.is_contiguous():
            return tensor.data_ptr()
    except AttributeError:
        pass
    _reject_tensor(tensor, name, dtype)


def _reject_tensor(tensor: Any, name: str, dtype: torch.dtype | None) -> NoReturn:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor or None, not {type(tensor).__name__}")
    if tensor.device.type != DEVICE:
        raise ValueError(f"{name} must be on {DEVICE}, not on {tensor.device}")
    if dtype is not None and tensor.dtype is not dtype:
        raise TypeError(f"{name} must be {dtype}, not {tensor.dtype}")
    raise ValueError(
        f"{name} must be contiguous: its shape is {tuple(tensor.shape)} and its strides are {tensor.stride()}; "
        "call .contiguous() on it"
    )


def _integer(bits: int, signed: bool = True) -> Callable[[int, str], int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def check(value: int, name: str) -> int:
        if type(value) is int and low <= value <= high:
            return value
        if isinstance(value, Tensor) or not hasattr(value, "__index__"):
            raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
        value = operator.index(value)
        if not low <= value <= high:
            raise OverflowError(f"{name} = {value} does not fit {'' if signed else 'u'}int{bits}_t ({low} to {high})")
        return value

    return check


def _float(value: float, name: str) -> float:
    if type(value) is float or type(value) is int:
        return value
    if isinstance(value, Tensor) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    return float(value)


def _bool(value: bool, name: str) -> bool:
    if type(value) is bool or type(value) is int:
        return value
    raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
