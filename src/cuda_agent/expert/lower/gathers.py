"""Reads at positions that data decides, padding and concatenation."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.expert.errors import Unsupported
from cuda_agent.expert.lower.builder import Scalar
from cuda_agent.expert.lower.registry import Context, lowering
from cuda_agent.expert.tensors import Tensor


def wrapped(c: Context, index: Tensor, size: int) -> Tensor:
    """Negative positions count from the end."""
    wide = c.cast(index, "int64")
    return c.where(c.compare("lt", wide, 0), c.op("add", wide, size), wide)


@lowering("gather.default")
def gather(c: Context, x: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    at = dim % max(1, x.ndim)
    source = x
    for d in range(x.ndim):  # index may be smaller than x in the other dims
        if d != at and index.shape[d] != x.shape[d]:
            source = c.slice(source, d, 0, index.shape[d])
    return c.gather(source, c.cast(index, "int64"), at)


@lowering("index_select.default", "embedding.default")
def index_select(c: Context, x: Tensor, second: object, third: object = None, *_: object) -> Tensor:
    if c.op_name == "embedding.default":
        assert isinstance(second, Tensor)
        index, at = second, 0
    else:
        assert isinstance(third, Tensor) and isinstance(second, int)
        index, at = third, second % x.ndim
    return _pick(c, x, index, at)


def _pick(c: Context, x: Tensor, index: Tensor, at: int) -> Tensor:
    """x with dim `at` replaced by the dims of index, read at index."""
    shape = (*x.shape[:at], *index.shape, *x.shape[at + 1 :])
    position = c.reshape(wrapped(c, index, x.shape[at]), (*index.shape, *(1 for _ in x.shape[at + 1 :])))
    flat = (*x.shape[:at], index.numel, *x.shape[at + 1 :])
    position = c.reshape(c.expand(position, (*x.shape[:at], *index.shape, *x.shape[at + 1 :])), flat)
    return c.reshape(c.gather(x, position, at), shape)


@lowering("index.Tensor")
def index(c: Context, x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    chosen = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.dtype == "bool" for _, i in chosen):
        raise Unsupported("indexing with a bool mask", c.line, "the result's shape depends on data")
    if len(chosen) != 1:
        raise Unsupported("indexing with several tensors at once", c.line)
    at, positions = chosen[0]
    return _pick(c, x, positions, at)


@lowering("cat.default")
def cat(c: Context, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    parts = [c.cast(x, c.dtype) for x in tensors if x.shape != (0,)]
    at = dim % len(c.shape)
    position, start = c.iota(c.shape, at), 0
    out: Tensor | None = None
    for x in parts:
        stop = start + x.shape[at]
        inside = c.op("and", c.compare("ge", position, start), c.compare("lt", position, stop))
        piece = c.gather(x, c.op("sub", position, start) if start else position, at, inside)
        out = piece if out is None else c.where(c.compare("lt", position, start), out, piece, dtype=c.dtype)
        start = stop
    assert out is not None
    return out


@lowering("constant_pad_nd.default")
def constant_pad(c: Context, x: Tensor, pad: Sequence[int], value: Scalar = 0) -> Tensor:
    out = x
    for k in range(len(pad) // 2):
        dim, before = x.ndim - 1 - k, pad[2 * k]
        size = out.shape[dim]
        total = before + size + pad[2 * k + 1]
        shape = (*out.shape[:dim], total, *out.shape[dim + 1 :])
        position = c.op("sub", c.iota(shape, dim), before)
        inside = c.op("and", c.compare("ge", position, 0), c.compare("lt", position, size))
        piece = c.gather(out, position, dim, inside)
        out = c.where(inside, piece, value, dtype=x.dtype) if value else piece
    return out
