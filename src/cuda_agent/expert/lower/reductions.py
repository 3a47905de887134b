"""Reductions over any dims."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cuda_agent.expert.ir import Dtype
from cuda_agent.expert.lower.registry import Context, lowering
from cuda_agent.expert.tensors import Tensor, compute_dtype

Dims = int | Sequence[int] | None


def narrow(c: Context, x: Tensor, dtype: Dtype) -> Tensor:
    """A reduction computed in float32 as the half type that PyTorch returns."""
    return c.cast(x, dtype)


@lowering("sum.default", "sum.dim_IntList")
def sum_(c: Context, x: Tensor, dims: Dims = None, keepdim: bool = False, dtype: Dtype | None = None) -> Tensor:
    return narrow(c, c.reduce("sum", c.cast(x, compute_dtype(c.dtype)), dims, keepdim), c.dtype)


@lowering("mean.default", "mean.dim")
def mean(c: Context, x: Tensor, dims: Dims = None, keepdim: bool = False, dtype: Dtype | None = None) -> Tensor:
    wide = c.cast(x, compute_dtype(c.dtype))
    count = c.count(x, c.dims(x, dims))
    return narrow(c, c.op("mul", c.reduce("sum", wide, dims, keepdim), 1.0 / count), c.dtype)


@lowering("prod.default")
def prod(c: Context, x: Tensor, dtype: Dtype | None = None) -> Tensor:
    return narrow(c, c.reduce("prod", c.cast(x, compute_dtype(c.dtype)), None), c.dtype)


@lowering("prod.dim_int")
def prod_dim(c: Context, x: Tensor, dim: int, keepdim: bool = False, dtype: Dtype | None = None) -> Tensor:
    return narrow(c, c.reduce("prod", c.cast(x, compute_dtype(c.dtype)), dim, keepdim), c.dtype)


def _extreme(c: Context, kind: str, x: Tensor, dims: Dims, keepdim: bool) -> Tensor:
    if x.dtype == "bool":
        return c.reduce("any" if kind == "max" else "all", x, dims, keepdim)
    return c.cast(c.reduce("max" if kind == "max" else "min", c.wide(x), dims, keepdim), x.dtype)


@lowering("amax.default", "max.default")
def amax(c: Context, x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    return _extreme(c, "max", x, dims, keepdim)


@lowering("amin.default", "min.default")
def amin(c: Context, x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    return _extreme(c, "min", x, dims, keepdim)


@lowering("max.dim", "min.dim")
def extreme_dim(c: Context, x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    largest = c.op_name == "max.dim"
    values = _extreme(c, "max" if largest else "min", x, dim, keepdim)
    return values, c.reduce("argmax" if largest else "argmin", _ordered(c, x), dim, keepdim)


def _ordered(c: Context, x: Tensor) -> Tensor:
    return c.cast(x, "int32") if x.dtype == "bool" else c.wide(x)


@lowering("argmax.default", "argmin.default")
def argmax(c: Context, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return c.reduce("argmax" if c.op_name == "argmax.default" else "argmin", _ordered(c, x), dim, keepdim)


@lowering("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def any_all(c: Context, x: Tensor, dims: Dims = None, keepdim: bool = False) -> Tensor:
    kind = "any" if c.op_name.startswith("any") else "all"
    out = c.reduce("any" if kind == "any" else "all", c.cast(x, "bool"), dims, keepdim)
    return c.cast(out, c.dtype)


@lowering("linalg_vector_norm.default", "norm.ScalarOpt_dim", "norm.Scalar")
def vector_norm(
    c: Context, x: Tensor, order: float | None = 2, dims: Dims = None, keepdim: bool = False, dtype: Dtype | None = None
) -> Tensor:
    """(Σ |x|^p)^(1/p); 0, inf and -inf as torch.linalg.vector_norm defines them."""
    p = 2.0 if order is None else float(order)
    wide = c.cast(x, compute_dtype(c.dtype))
    size = c.op("abs", wide)
    if p == math.inf or p == -math.inf:
        out = c.reduce("max" if p > 0 else "min", size, dims, keepdim)
    elif p == 0:
        out = c.reduce("sum", c.cast(c.compare("ne", wide, 0), wide.dtype), dims, keepdim)
    elif p == 1:
        out = c.reduce("sum", size, dims, keepdim)
    elif p == 2:
        out = c.op("sqrt", c.reduce("sum", c.op("square", wide), dims, keepdim))
    else:
        out = c.op("pow", c.reduce("sum", c.op("pow", size, p), dims, keepdim), 1.0 / p)
    return narrow(c, out, c.dtype)


def moments(c: Context, x: Tensor, dims: Dims) -> tuple[Tensor, Tensor]:
    """(mean, Σ(x - mean)²), both with keepdim, in float32 or float64.

    Short rows take two passes, as they stay in cache: the mean, then the centred squares. Long rows are read once, with
    sums of x - k and (x - k)² about the row's first element k: shifted data (Chan, Golub, LeVeque, 1983) keep the
    cancellation harmless as long as k is within a few standard deviations of the mean.
    """
    chosen = c.dims(x, dims)
    count = c.count(x, chosen)
    if count <= c.long_row:
        average = c.op("mul", c.reduce("sum", x, chosen, True), 1.0 / count)
        return average, c.reduce("sum", c.op("square", c.op("sub", x, average)), chosen, True)
    first = x
    for d in chosen:
        first = c.slice(first, d, 0, 1)
    shifted = c.op("sub", x, first)
    offset = c.op("mul", c.reduce("sum", shifted, chosen, True), 1.0 / count)
    squares = c.reduce("sum", c.op("square", shifted), chosen, True)
    centred = c.op("max", c.op("sub", squares, c.op("mul", c.op("square", offset), float(count))), 0.0)
    return c.op("add", first, offset), centred


@lowering("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def variance(
    c: Context, x: Tensor, dims: Dims = None, correction: float | None = None, keepdim: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    chosen = c.dims(x, dims)
    average, squares = moments(c, c.wide(x), chosen)
    freedom = c.count(x, chosen) - (1 if correction is None else correction)
    spread = c.op("mul", squares, 1.0 / freedom) if freedom > 0 else c.op("div", squares, 0.0)
    spread = c.op("sqrt", spread) if c.op_name.startswith("std") else spread
    if not keepdim:
        spread, average = c.reshape(spread, c.shape), c.reshape(average, c.shape)
    spread, average = narrow(c, spread, c.dtype), narrow(c, average, c.dtype)
    return (spread, average) if "_mean" in c.op_name else spread


@lowering("logsumexp.default")
def logsumexp(c: Context, x: Tensor, dims: Dims, keepdim: bool = False) -> Tensor:
    wide = c.wide(c.cast(x, c.dtype))
    top = c.reduce("max", wide, dims, True)
    # an infinite maximum would give inf - inf
    safe = c.where(c.op("isinf", top, out="bool"), 0.0, top)
    total = c.reduce("sum", c.op("exp", c.op("sub", wide, safe)), dims, True)
    out = c.op("add", c.op("log", total), safe)
    return narrow(c, out if keepdim else c.reshape(out, c.shape), c.dtype)
