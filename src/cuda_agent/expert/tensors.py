"""Tensor-level primitives: the few forms that every ATen operator is lowered to before loops are formed.

A `Tensor` here is a node of a DAG: memory (`Memory`), a scalar constant (`Fill`), a coordinate (`Iota`), a scalar
function of equally shaped tensors (`Map`), a change of coordinates (`View`), a gather (`Gather`) or a reduction
(`Reduce`). Nothing is computed; `kernelize` turns the DAG into kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cuda_agent.expert.ir import Dtype, ReductionKind

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Tensor:
    """dtype is the one that PyTorch shows; half types are computed in float32 (see `compute_dtype`)."""

    shape: Shape
    dtype: Dtype
    line: int | None = field(default=None, kw_only=True)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class Memory(Tensor):
    """A contiguous buffer of the plan."""

    buffer: str


@dataclass(frozen=True, eq=False)
class Fill(Tensor):
    value: bool | int | float


@dataclass(frozen=True, eq=False)
class Iota(Tensor):
    """int64: the coordinate along `axis`."""

    axis: int


@dataclass(frozen=True, eq=False)
class Map(Tensor):
    """Elementwise `fn` (a key of `ir.OPS`). Operands have this tensor's shape (views broadcast them).

    For `cast`, `rounds` says that the value must really pass through a narrower type (an explicit `.half()`).
    """

    fn: str
    args: tuple[Tensor, ...]
    rounds: bool = False

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return self.args


@dataclass(frozen=True, eq=False)
class View(Tensor):
    """The same values at other coordinates.

    kind and attribute: `permute` (source dim of each dim), `expand` (), `reshape` (), `slice` (dim, start, step),
    `flip` (dims).
    """

    kind: Literal["permute", "expand", "reshape", "slice", "flip"]
    source: Tensor
    attribute: tuple[int, ...] = ()

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.source,)


@dataclass(frozen=True, eq=False)
class Gather(Tensor):
    """source[..., index, ...]: coordinate `dim` of the source is the int64 value of `index` here.

    index has this tensor's shape; other coordinates pass through unchanged. Values must be in bounds. Where `mask`
    (bool, this shape, may be None) is false, nothing is read and the value is 0: padding and concatenation.
    """

    source: Tensor
    index: Tensor
    dim: int
    mask: Tensor | None = None

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.source, self.index) + ((self.mask,) if self.mask is not None else ())


@dataclass(frozen=True, eq=False)
class Reduce(Tensor):
    """Reduction of `source` over `dims` (sorted, not empty), which are gone from the shape."""

    kind: ReductionKind
    source: Tensor
    dims: tuple[int, ...]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.source,)

    @property
    def domain(self) -> Shape:
        return tuple(self.source.shape[d] for d in self.dims)


_ORDER: dict[str, int] = {
    "bool": 0, "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5,
    "float16": 6, "bfloat16": 7, "float32": 8, "float64": 9,
}  # fmt: skip


def category(dtype: str) -> int:
    """0 bool, 1 integer, 2 float: the three levels of PyTorch's type promotion."""
    return 0 if dtype == "bool" else 2 if "float" in dtype else 1


def promote(a: Dtype, b: Dtype) -> Dtype:
    """torch.promote_types for the supported dtypes."""
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    return a if _ORDER[a] >= _ORDER[b] else b


def result_type(operands: Sequence[Tensor | bool | int | float]) -> Dtype:
    """torch.result_type: dimensioned tensors come before 0-dim tensors, and those before Python numbers, unless the
    later has a higher category (bool < integer < float)."""
    levels: list[Dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, Tensor):
            level, dtype = (0 if operand.ndim else 1), operand.dtype
        else:
            level = 2
            dtype = "bool" if isinstance(operand, bool) else "int64" if isinstance(operand, int) else "float32"
        held = levels[level]
        levels[level] = dtype if held is None else promote(held, dtype)
    found: Dtype | None = None
    for dtype_ in levels:
        if dtype_ is not None and (found is None or category(dtype_) > category(found)):
            found = dtype_
    assert found is not None
    return found


def compute_dtype(dtype: Dtype) -> Dtype:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def walk(root: Tensor, stop: frozenset[Tensor] = frozenset()) -> Iterator[Tensor]:
    """Every node under `root`, each once; does not look below nodes in `stop` (but yields them)."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if node not in stop or node is root:
            stack.extend(node.operands)
