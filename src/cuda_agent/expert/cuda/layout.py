"""How a loop nest maps to items of VEC lanes: which dim the lanes run along, and which accesses are vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from cuda_agent.expert.ir import ITEMSIZE, Index, Kernel, Plan

Kind = Literal["pointwise", "flat", "rows", "shifted", "columns"]


@dataclass(frozen=True)
class Layout:
    """kind: `pointwise` (lanes along one dim of the nest), `flat` (lanes along the flattened nest, whatever its sizes),
    `rows` (lanes along a reduced dim), `shifted` (the same for rows that start at any alignment: the first and the
    last vector of a row are partial), `columns` (lanes along a kept dim).

    axis: the dim of the lanes, outer dims first. reference: in `shifted`, the access whose alignment rules.
    widest: elements in 16 bytes of the narrowest bulk access, at most 16.
    """

    kernel: Kernel
    kind: Kind
    axis: int
    widest: int
    reference: Index | None = None

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return (self.kernel.outer + self.kernel.inner) or (1,)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """C names of the coordinates, outer dims first."""
        outer = len(self.kernel.outer)
        return tuple(f"o{d}" if d < outer else f"i{d - outer}" for d in range(len(self.sizes)))

    @property
    def masked(self) -> bool:
        return self.kind in ("flat", "shifted")

    @property
    def reduces(self) -> bool:
        return self.kind not in ("flat", "pointwise")

    @cached_property
    def vectors(self) -> tuple[int, ...]:
        """Lane counts that this layout allows, in growing order."""
        size = self.sizes[self.axis]
        return tuple(v for v in (1, 2, 4, 8, 16) if v <= self.widest and (self.masked or size % v == 0))

    @cached_property
    def index_type(self) -> str:
        """Unsigned arithmetic reaches furthest; shifted rows start below zero."""
        sizes = self.sizes
        points = max(math.prod(sizes), 1)
        negative = any(t < 0 for _, index in self.kernel.accesses() for t in index.strides)
        reach = max(
            (i.offset + sum(max(0, t) * (s - 1) for s, t in zip(sizes, i.strides, strict=False))
             for _, i in self.kernel.accesses()),
            default=0,
        )  # fmt: skip
        if negative or max(points, reach) >= 2**31:
            return "int64_t"
        return "int32_t" if self.kind == "shifted" else "uint32_t"

    @cached_property
    def inner_type(self) -> str:
        """Of coordinates within a row; blocks may count some steps past its end."""
        return "int32_t" if self.kernel.row_size < 2**31 - 2**26 else "int64_t"

    def lane_stride(self, index: Index) -> int:
        return index.strides[self.axis] if index.strides else 0

    def is_flat(self, index: Index) -> bool:
        """Whether the access walks memory just as the flattened nest does."""
        step = 1
        for size, stride in zip(reversed(self.sizes), reversed(index.strides), strict=False):
            if stride != step:
                return False
            step *= size
        return not index.indirect and bool(index.strides)

    def unit(self, index: Index) -> int:
        """Elements to which a vector of this access is aligned (see the kinds); 1 for what is no vector."""
        if self.kind == "flat":
            return math.gcd(index.offset, 16) if self.is_flat(index) else 1
        if self.kind == "shifted":
            assert self.reference is not None
            theirs = self.reference.strides
            same = math.gcd(index.offset - self.reference.offset, 16) == 16 and all(
                (s - t) % 16 == 0 for d, (s, t) in enumerate(zip(index.strides, theirs, strict=True)) if d != self.axis
            )
            return 16 if same and self.lane_stride(index) == 1 else 1
        return self.kernel.unit(index, self.axis) if index.strides else 1

    def is_vector(self, index: Index) -> bool:
        """Whether lanes are neighbours in memory."""
        if index.indirect:
            return False
        return self.is_flat(index) if self.kind == "flat" else self.lane_stride(index) == 1


def choose(plan: Plan, kernel: Kernel) -> Layout:
    """The layout of a kernel; deterministic, so that a schedule alone decides the rest."""
    sizes = kernel.outer + kernel.inner
    single = len(kernel.passes) == 1 and not kernel.reductions
    pointwise = single and (not kernel.inner or not kernel.row_stores)
    axis = kernel.vector_axis()
    if axis is None:
        axis = max(len(sizes) - 1, 0)
    bulk = _bulk(kernel, axis, sizes)
    widest = max((16 // ITEMSIZE[plan.buffer(b).dtype] for b, _ in bulk), default=1)
    if pointwise:
        layout = Layout(kernel, "pointwise", axis, widest)
        flat = Layout(kernel, "flat", axis, widest)
        aligned = min((layout.unit(i) for _, i in bulk), default=1)
        if any(flat.is_flat(i) for _, i in bulk) and (aligned < min(widest, 4) or not layout.vectors):
            return flat
        return layout
    if not kernel.inner:
        return Layout(kernel, "rows", axis, 1)
    if axis < len(kernel.outer):
        return Layout(kernel, "columns", axis, _aligned(Layout(kernel, "columns", axis, widest), bulk))
    rows = Layout(kernel, "rows", axis, widest)
    if len(kernel.inner) == 1 and bulk:
        worst = min(bulk, key=lambda access: rows.unit(access[1]))
        if rows.unit(worst[1]) < min(widest, 4) and kernel.row_size >= 64:
            return Layout(kernel, "shifted", axis, widest, worst[1])
    return rows


def _bulk(kernel: Kernel, axis: int, sizes: tuple[int, ...]) -> list[tuple[str, Index]]:
    """The accesses that move most of the bytes and walk `axis` contiguously."""
    found = [(b, i) for b, i in kernel.accesses() if i.strides and i.strides[axis] == 1 and not i.indirect]
    volume = {access: math.prod(s for s, t in zip(sizes, access[1].strides, strict=True) if t) for access in found}
    most = max(volume.values(), default=0)
    return [access for access in found if volume[access] * 4 >= most]


def _aligned(layout: Layout, bulk: list[tuple[str, Index]]) -> int:
    """Columns keep one result for each lane: wider vectors than the alignment allows would only cost registers."""
    return max(1, min(layout.widest, *(layout.unit(i) for _, i in bulk))) if bulk else 1
