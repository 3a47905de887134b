"""Tensors made of nothing: constants and ranges."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.expert.lower.builder import Scalar
from cuda_agent.expert.lower.registry import Context, lowering
from cuda_agent.expert.tensors import Tensor, category


@lowering("full.default", "full_like.default", "new_full.default")
def full(c: Context, first: object, value: Scalar | Sequence[int] = 0, *rest: Scalar, **_: object) -> Tensor:
    level = rest[0] if c.op_name == "new_full.default" else value
    assert isinstance(level, (bool, int, float))
    return c.fill(level, c.dtype, c.shape)


@lowering("scalar_tensor.default")
def scalar_tensor(c: Context, value: Scalar, **_: object) -> Tensor:
    return c.fill(value, c.dtype)


@lowering("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default",
          "new_empty.default")  # fmt: skip
def zeros(c: Context, *_: object, **__: object) -> Tensor:
    return c.fill(0, c.dtype, c.shape)


@lowering("ones.default", "ones_like.default", "new_ones.default")
def ones(c: Context, *_: object, **__: object) -> Tensor:
    return c.fill(1, c.dtype, c.shape)


@lowering("arange.start_step", "arange.start", "arange.default")
def arange(c: Context, first: Scalar, end: Scalar | None = None, step: Scalar = 1, **_: object) -> Tensor:
    start: Scalar = 0 if end is None else first
    position = c.iota(c.shape, 0)
    if category(c.dtype) == 2:
        scaled = c.op("mul", c.cast(position, "float64"), float(step))
        return c.cast(c.op("add", scaled, float(start)), c.dtype)
    scaled = c.op("mul", position, int(step)) if step != 1 else position
    return c.cast(c.op("add", scaled, int(start)) if start else scaled, c.dtype)


@lowering("eye.default", "eye.m")
def eye(c: Context, *_: object, **__: object) -> Tensor:
    return c.cast(c.compare("eq", c.iota(c.shape, 0), c.iota(c.shape, 1)), c.dtype)


@lowering("tril.default", "triu.default")
def triangle(c: Context, x: Tensor, diagonal: int = 0) -> Tensor:
    row, column = c.iota(x.shape, x.ndim - 2), c.iota(x.shape, x.ndim - 1)
    fn = "le" if c.op_name == "tril.default" else "ge"
    return c.where(c.compare(fn, column, c.op("add", row, diagonal)), x, 0, dtype=x.dtype)
