"""Operators that only change coordinates."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.expert.lower.registry import Context, lowering
from cuda_agent.expert.tensors import Tensor


@lowering("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int",
          "squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default")  # fmt: skip
def reshape(c: Context, x: Tensor, *_: object) -> Tensor:
    return c.reshape(x, c.shape)


@lowering("expand.default")
def expand(c: Context, x: Tensor, *_: object, **__: object) -> Tensor:
    return c.expand(x, c.shape)


@lowering("permute.default")
def permute(c: Context, x: Tensor, dims: Sequence[int]) -> Tensor:
    return c.permute(x, dims)


@lowering("transpose.int")
def transpose(c: Context, x: Tensor, a: int, b: int) -> Tensor:
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]
    return c.permute(x, order)


@lowering("t.default", "numpy_T.default")
def t(c: Context, x: Tensor) -> Tensor:
    return c.permute(x, range(x.ndim)[::-1])


@lowering("slice.Tensor")
def slice_(
    c: Context, x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    first, last, _ = slice(start, end).indices(x.shape[dim])
    return c.slice(x, dim % x.ndim, first, max(first, last), step)


@lowering("select.int")
def select(c: Context, x: Tensor, dim: int, index: int) -> Tensor:
    at, i = dim % x.ndim, index % x.shape[dim]
    return c.reshape(c.slice(x, at, i, i + 1), c.shape)


@lowering("flip.default")
def flip(c: Context, x: Tensor, dims: Sequence[int]) -> Tensor:
    return c.flip(x, dims)


@lowering("split_with_sizes.default", "split.Tensor", "chunk.default", "unbind.int")
def split(c: Context, x: Tensor, sizes: object = None, dim: int = 0) -> tuple[Tensor, ...]:
    if c.op_name == "unbind.int":
        at = int(sizes) if isinstance(sizes, int) else 0
        return tuple(c.reshape(c.slice(x, at % x.ndim, i, i + 1), s) for i, s in enumerate(c.shapes))
    out, start = [], 0
    for shape in c.shapes:
        stop = start + shape[dim % x.ndim]
        out.append(c.slice(x, dim % x.ndim, start, stop))
        start = stop
    return tuple(out)


@lowering("diagonal.default")
def diagonal(c: Context, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    others = [d for d in range(x.ndim) if d not in (a, b)]
    moved = c.permute(x, [*others, a, b])
    n = c.shape[-1]
    moved = c.slice(moved, moved.ndim - 2, max(0, -offset), max(0, -offset) + n)
    position = c.op("add", c.iota((*c.shape, 1), len(others)), max(0, offset))
    return c.reshape(c.gather(moved, position, moved.ndim - 1), c.shape)
