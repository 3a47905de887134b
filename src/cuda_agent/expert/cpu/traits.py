"""What the loops of a kernel allow on a CPU: its shape, and what is kept, streamed and fetched ahead.

Three shapes. *Rows*: the innermost loop runs along a row; rows, or tiles of rows without reductions, are split over the
threads, and a row's later passes find it in the cache. *Shared rows*: too few rows for the threads, so that each row is
split over them and their partial results are combined in order. *Columns*: memory is contiguous along rows' own index,
so that a block of neighbouring rows is computed side by side, one vector lane each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cuda_agent.expert.cpu.expressions import EXPENSIVE
from cuda_agent.expert.ir import ITEMSIZE, Buffer, Kernel, Let, Load, Op, Store

Shape = Literal["rows", "shared", "columns"]

LANES = 32  # independent accumulators of a reduction: what one of them waits for, the others fill
PREFETCH_BYTES = 3 << 16  # of a row's inputs that may be fetched ahead: beside the current row, in one core's L2 cache
KEPT_BYTES = 1 << 17  # of a row's values kept for a later pass: a part of one core's L2 cache


def shape_of(kernel: Kernel) -> Shape:
    if not kernel.reductions:
        return "rows"
    axis = kernel.vector_axis()
    last_outer = len(kernel.outer) - 1
    if axis is not None and axis == last_outer and kernel.outer[axis] >= 8:
        return "columns"
    single = len(kernel.passes) == 1 and not kernel.passes[0].stores
    if single and kernel.rows < 16 and kernel.row_size >= 1 << 14:
        return "shared"
    return "rows"


def kept_lets(kernel: Kernel) -> list[Let]:
    """Dear values that a later pass needs again."""
    if shape_of(kernel) != "rows" or not kernel.reductions:
        return []
    seen: dict[str, Let] = {}
    again: dict[str, Let] = {}
    for sweep in kernel.passes:
        for let in sweep.body:
            if isinstance(let.value, Op) and let.value.fn in EXPENSIVE:
                if let.name in seen:
                    again[let.name] = let
                seen[let.name] = let
    fitting = [let for let in again.values() if kernel.row_size * ITEMSIZE[let.dtype] <= KEPT_BYTES]
    return fitting[:2]


def streamed(kernel: Kernel) -> list[Store]:
    """Stores along the innermost loop that may go past the caches."""
    if shape_of(kernel) != "rows":
        return []
    stores = [s for p in kernel.passes for s in p.stores]
    return [s for s in stores if s.index.strides and s.index.strides[-1] == 1 and not s.index.indirect]


def prefetched(kernel: Kernel, buffers: Mapping[str, Buffer]) -> list[Load]:
    """Reads along the rows of a kernel that sweeps over them several times: while a later pass computes, the memory
    can bring the next row."""
    if shape_of(kernel) != "rows" or len(kernel.passes) < 2 or kernel.inner[-1] % LANES:
        return []
    outer = len(kernel.outer)
    found: dict[tuple[str, object], Load] = {}
    for let in (let for sweep in kernel.passes for let in sweep.body):
        read = let.value
        if isinstance(read, Load) and not read.mask and not read.index.indirect:
            strides = read.index.strides
            if strides[-1] == 1 and any(strides[:outer]):
                found[read.buffer, read.index] = read
    row = sum(kernel.row_size * ITEMSIZE[buffers[read.buffer].dtype] for read in found.values())
    return list(found.values()) if row <= PREFETCH_BYTES else []


def dear_functions(kernel: Kernel) -> list[int]:
    """Per pass, how many dear functions it computes; what an earlier one kept costs nothing again."""
    kept = {let.name for let in kept_lets(kernel)}
    seen: set[str] = set()
    counts = []
    for sweep in kernel.passes:
        dear = {let.name for let in sweep.body if isinstance(let.value, Op) and let.value.fn in EXPENSIVE}
        counts.append(len(dear - seen))
        seen |= dear & kept
    return counts


def fetching_pass(kernel: Kernel) -> int:
    """The pass that fetches the next row, if it is not measured: one with dear functions, else one with streamed
    stores, else the last."""
    streams = {id(s) for s in streamed(kernel)}
    ranks = [
        (dear, any(id(s) in streams for s in sweep.stores), number)
        for number, (sweep, dear) in enumerate(zip(kernel.passes, dear_functions(kernel), strict=True))
    ]
    return max(ranks[1:])[2]
