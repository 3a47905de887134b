"""Making primitive tensors with PyTorch's conventions: broadcasting, type promotion, negative dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.expert.ir import Dtype, ReductionKind
from cuda_agent.expert.tensors import (
    Fill,
    Gather,
    Iota,
    Map,
    Reduce,
    Shape,
    Tensor,
    View,
    category,
    compute_dtype,
    result_type,
)

Scalar = bool | int | float
Operand = Tensor | bool | int | float


def broadcast_shapes(*shapes: Shape) -> Shape:
    ndim = max(len(s) for s in shapes)
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    out = []
    for sizes in zip(*padded, strict=True):
        wide = {n for n in sizes if n != 1}
        assert len(wide) <= 1, f"shapes {shapes} do not broadcast"
        out.append(wide.pop() if wide else 1)
    return tuple(out)


@dataclass(frozen=True)
class Builder:
    """Makes tensors that carry the line of model.py they come from."""

    line: int | None = None

    # -- constants and coordinates

    def fill(self, value: Scalar, dtype: Dtype, shape: Shape = ()) -> Tensor:
        value = bool(value) if dtype == "bool" else int(value) if category(dtype) == 1 else float(value)
        return Fill(shape, dtype, value, line=self.line)

    def iota(self, shape: Shape, axis: int) -> Tensor:
        return Iota(shape, "int64", axis, line=self.line)

    # -- elementwise

    def cast(self, x: Tensor, dtype: Dtype, rounds: bool = False) -> Tensor:
        """rounds: an explicit conversion, whose loss of precision the user asked for."""
        if x.dtype == dtype:
            return x
        if isinstance(x, Fill):
            return self.fill(x.value, dtype, x.shape)
        return Map(x.shape, dtype, "cast", (x,), rounds and dtype in ("float16", "bfloat16"), line=self.line)

    def operand(self, x: Operand, dtype: Dtype) -> Tensor:
        return self.cast(x, dtype) if isinstance(x, Tensor) else self.fill(x, dtype)

    def op(self, fn: str, *args: Operand, dtype: Dtype | None = None, out: Dtype | None = None) -> Tensor:
        """fn over operands brought to one dtype (by default their promoted one) and broadcast; out: dtype shown."""
        common = dtype or result_type(args)
        tensors = [self.operand(a, common) for a in args]
        shape = broadcast_shapes(*(t.shape for t in tensors))
        return Map(shape, out or common, fn, tuple(self.expand(t, shape) for t in tensors), line=self.line)

    def float_op(self, fn: str, *args: Operand) -> Tensor:
        """An operator that turns integers and bools into float32 first (exp, div, …)."""
        common = result_type(args)
        return self.op(fn, *args, dtype=common if category(common) == 2 else "float32")

    def compare(self, fn: str, a: Operand, b: Operand) -> Tensor:
        return self.op(fn, a, b, out="bool")

    def where(self, condition: Tensor, a: Operand, b: Operand, dtype: Dtype | None = None) -> Tensor:
        common = dtype or result_type((a, b))
        x, y = self.operand(a, common), self.operand(b, common)
        c = condition if condition.dtype == "bool" else self.cast(condition, "bool")
        shape = broadcast_shapes(c.shape, x.shape, y.shape)
        return Map(shape, common, "where", tuple(self.expand(t, shape) for t in (c, x, y)), line=self.line)

    # -- views

    def expand(self, x: Tensor, shape: Shape) -> Tensor:
        if x.shape == shape:
            return x
        if isinstance(x, Fill):
            return Fill(shape, x.dtype, x.value, line=x.line)
        return View(shape, x.dtype, "expand", x, line=self.line)

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        sizes = list(shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = x.numel // max(1, -math.prod(sizes))
        if tuple(sizes) == x.shape:
            return x
        return View(tuple(sizes), x.dtype, "reshape", x, line=self.line)

    def permute(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        order = tuple(d % x.ndim for d in dims)
        return View(tuple(x.shape[d] for d in order), x.dtype, "permute", x, order, line=self.line)

    def slice(self, x: Tensor, dim: int, start: int, stop: int, step: int = 1) -> Tensor:
        """start and stop are in bounds already."""
        size = max(0, -(-(stop - start) // step))
        shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
        return View(shape, x.dtype, "slice", x, (dim, start, step), line=self.line)

    def flip(self, x: Tensor, dims: Sequence[int]) -> Tensor:
        return View(x.shape, x.dtype, "flip", x, tuple(d % x.ndim for d in dims), line=self.line)

    def unsqueeze(self, x: Tensor, dim: int) -> Tensor:
        at = dim % (x.ndim + 1)
        return self.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))

    # -- gathers and reductions

    def gather(self, source: Tensor, index: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
        """Coordinate `dim` of source is index's value; index's shape is the result's."""
        return Gather(index.shape, source.dtype, source, index, dim, mask, line=self.line)

    def dims(self, x: Tensor, dims: int | Sequence[int] | None) -> tuple[int, ...]:
        """Normalised dims to reduce; None and () mean all of them."""
        if dims is None or (not isinstance(dims, int) and len(dims) == 0):
            return tuple(range(x.ndim))
        chosen = [dims] if isinstance(dims, int) else list(dims)
        return tuple(sorted({d % max(1, x.ndim) for d in chosen}))

    def reduce(self, kind: ReductionKind, x: Tensor, dims: int | Sequence[int] | None, keepdim: bool = False) -> Tensor:
        """The dtype is x's own, but for argmax/argmin (int64)."""
        chosen = self.dims(x, dims)
        if x.ndim == 0:
            return self.fill(0, "int64") if kind in ("argmax", "argmin") else x
        kept = tuple(n for d, n in enumerate(x.shape) if d not in chosen)
        dtype: Dtype = "int64" if kind in ("argmax", "argmin") else x.dtype
        out: Tensor = Reduce(kept, dtype, kind, x, chosen, line=self.line)
        return self.keepdim(out, x, chosen) if keepdim else out

    def keepdim(self, reduced: Tensor, x: Tensor, dims: Sequence[int]) -> Tensor:
        return self.reshape(reduced, tuple(1 if d in dims else n for d, n in enumerate(x.shape)))

    def count(self, x: Tensor, dims: Sequence[int]) -> int:
        return math.prod(x.shape[d] for d in dims)

    def wide(self, x: Tensor) -> Tensor:
        """Half types as the float32 they are computed in; others unchanged."""
        return self.cast(x, compute_dtype(x.dtype))
