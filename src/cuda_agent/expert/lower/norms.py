"""Normalisation layers in eval mode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuda_agent.expert.errors import Unsupported
from cuda_agent.expert.lower.reductions import moments
from cuda_agent.expert.lower.registry import Context, lowering
from cuda_agent.expert.tensors import Tensor


def _affine(c: Context, x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: Sequence[int]) -> Tensor:
    out = x
    if weight is not None:
        out = c.op("mul", out, c.reshape(c.wide(weight), shape))
    if bias is not None:
        out = c.op("add", out, c.reshape(c.wide(bias), shape))
    return out


def _normalised(c: Context, x: Tensor, dims: Sequence[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) · rstd over dims, the mean, and rstd."""
    average, squares = moments(c, x, dims)
    spread = c.op("mul", squares, 1.0 / c.count(x, c.dims(x, dims)))
    rstd = c.op("rsqrt", c.op("add", spread, eps))
    return c.op("mul", c.op("sub", x, average), rstd), average, rstd


@lowering("native_layer_norm.default")
def layer_norm(
    c: Context, x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    dims = range(x.ndim - len(shape), x.ndim)
    out, average, rstd = _normalised(c, c.wide(x), tuple(dims), eps)
    return c.cast(_affine(c, out, weight, bias, shape), c.dtype), average, rstd


@lowering("_fused_rms_norm.default", "rms_norm.default")
def rms_norm(
    c: Context, x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, ...] | Tensor:
    wide = c.wide(x)
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    small = {"float64": 2.220446049250313e-16, "float16": 0.0009765625, "bfloat16": 0.0078125}
    level = eps if eps is not None else small.get(x.dtype, 1.1920928955078125e-07)
    squares = c.op("mul", c.reduce("sum", c.op("square", wide), dims, True), 1.0 / math.prod(shape))
    rstd = c.op("rsqrt", c.op("add", squares, level))
    out = c.cast(_affine(c, c.op("mul", wide, rstd), weight, None, shape), c.dtype)
    return (out, rstd) if c.op_name.startswith("_fused") else out


@lowering("native_group_norm.default")
def group_norm(
    c: Context,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, ...]:
    per_group = channels // groups
    grouped = c.reshape(c.wide(x), (batch, groups, per_group, positions))
    out, average, rstd = _normalised(c, grouped, (2, 3), eps)
    out = _affine(c, out, weight, bias, (1, groups, per_group, 1))
    flat = (batch, groups)
    return c.cast(c.reshape(out, x.shape), c.dtype), c.reshape(average, flat), c.reshape(rstd, flat)


@lowering("_native_batch_norm_legit_no_training.default", "_native_batch_norm_legit.no_stats",
          "_native_batch_norm_legit.default", "_native_batch_norm_legit_functional.default")  # fmt: skip
def batch_norm(
    c: Context, x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Tensor | float | bool
) -> tuple[Tensor | None, ...]:
    """Running statistics in eval mode; statistics of the batch itself where there are none (instance norm)."""
    shape = (1, -1, *(1 for _ in range(x.ndim - 2)))
    wide = c.wide(x)
    if c.op_name == "_native_batch_norm_legit.no_stats":
        _, _, eps = rest
        assert isinstance(eps, float)
        out, average, rstd = _normalised(c, wide, (0, *range(2, x.ndim)), eps)
        return c.cast(_affine(c, out, weight, bias, shape), c.dtype), average, rstd
    if c.op_name != "_native_batch_norm_legit_no_training.default":
        raise Unsupported("batch_norm with training=True and running statistics", c.line)
    mean, var, _, eps = rest
    assert isinstance(mean, Tensor) and isinstance(var, Tensor)
    rstd = c.op("rsqrt", c.op("add", c.wide(var), eps))
    scale = c.op("mul", rstd, c.wide(weight)) if weight is not None else rstd
    out = c.op("mul", c.op("sub", wide, c.reshape(c.wide(mean), shape)), c.reshape(scale, shape))
    return c.cast(_affine(c, out, None, bias, shape), c.dtype), None, None
