"""The loop-level IR between the planner and the emitters: what each kernel computes, never how it is scheduled.

A `Plan` is an ordered list of steps over buffers. A `Kernel` is a perfect loop nest over `outer` × `inner` with
single-assignment scalar code:

    for each point of outer ("row"):                  # independent of each other: run them in any order, in parallel
        for each pass:
            evaluate pass.row                         # once per row; may use reductions of earlier passes
            for each point of inner:                  # row-major over `inner`; independent but for the reductions
                evaluate pass.body
                feed pass.reductions, do pass.stores
        evaluate kernel.tail                          # once per row; may use all reductions
        do kernel.row_stores

Softmax over the last dim of [4096, 1000]: outer (4096,), inner (1000,); pass 0 reduces max, pass 1 reduces the sum of
exp(x - max), pass 2 stores. A pointwise chain: one pass without reductions (outer may be empty; an emitter is free to
split or merge the loops as no row depends on another). A full reduction: outer is empty, the result is a row store.

Rules an emitter may rely on:

* Names of `Let`s and `Reduction`s are unique in a kernel and C identifiers. The same `Let` may be repeated in several
  passes (a cheap prologue recomputed): equal name means equal value, so a row kept in registers may be reused.
* Scope: `row` and `tail` see earlier `row` lets and reductions of earlier passes; `body` sees its own pass's earlier
  lets, all `row` lets so far and reductions of earlier passes. What does not vary along `inner` is already in `row`.
* Arithmetic happens in float32, float64, int64, int32, … or bool: all arguments of an `Op` have one dtype (see `OPS`).
  float16 and bfloat16 appear only as the dtype of a `Load`, of a `cast` and of what is stored.
* Loops are coalesced: neighbouring dims that every access walks as one are one dim. Sizes are ≥ 1, and dims of size 1
  are gone, so `outer` or `inner` may be empty (an empty nest has one point).
* Buffers are contiguous, row-major, without overlap; a kernel never reads a buffer it writes. Base addresses are
  aligned to 16 bytes at least. Shapes are compile-time constants: a launcher takes pointers only.
* An `Index` counts elements. A dim whose stride is 0 is broadcast. `strides[-1] == 1` on the last inner dim means that
  the access is contiguous along the innermost loop (see `Kernel.contiguity`).
* Element offsets may exceed 2^31: see `Kernel.needs_int64`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

Dtype = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]  # complex and float8 are not supported
Role = Literal["input", "param", "const", "temp", "output"]
ReductionKind = Literal["sum", "prod", "max", "min", "argmax", "argmin", "any", "all"]

ITEMSIZE: Mapping[str, int] = {
    "float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})

# Scalar operators: name → (arity, meaning). T is the dtype of the arguments; the result is T unless said otherwise.
# "float" operators get float32 or float64 only. Semantics are those of the torch function of the same name.
OPS: Mapping[str, tuple[int, str]] = {
    # any number
    "add": (2, "a + b (integers wrap)"), "sub": (2, "a - b"), "mul": (2, "a * b"), "neg": (1, "-a"),
    "abs": (1, "|a|"), "sign": (1, "-1, 0, 1; NaN gives 0 as in torch"), "square": (1, "a * a"),
    "min": (2, "torch.minimum: NaN if either is"), "max": (2, "torch.maximum: NaN if either is"),
    "floordiv": (2, "floor(a / b), Python's //"), "truncdiv": (2, "a / b toward zero"),
    "mod": (2, "Python's %: sign of b"), "fmod": (2, "C's fmod or %: sign of a"),
    # float
    "div": (2, "a / b"), "reciprocal": (1, "1 / a"), "sqrt": (1, ""), "rsqrt": (1, "1 / sqrt(a)"),
    "exp": (1, ""), "exp2": (1, ""), "expm1": (1, ""), "log": (1, ""), "log2": (1, ""), "log10": (1, ""),
    "log1p": (1, ""), "sin": (1, ""), "cos": (1, ""), "tan": (1, ""), "asin": (1, ""), "acos": (1, ""),
    "atan": (1, ""), "sinh": (1, ""), "cosh": (1, ""), "tanh": (1, ""), "asinh": (1, ""), "acosh": (1, ""),
    "atanh": (1, ""), "erf": (1, ""), "erfc": (1, ""), "sigmoid": (1, "1 / (1 + exp(-a))"),
    "pow": (2, "C's pow"), "atan2": (2, ""), "floor": (1, ""), "ceil": (1, ""), "trunc": (1, ""),
    "round": (1, "half to even"), "isnan": (1, "→ bool"), "isinf": (1, "→ bool"),
    # comparisons → bool, on any T
    "lt": (2, "→ bool"), "le": (2, "→ bool"), "gt": (2, "→ bool"), "ge": (2, "→ bool"), "eq": (2, "→ bool"),
    "ne": (2, "→ bool; NaN != NaN is true"),
    # bool: logical; integers: bitwise
    "and": (2, ""), "or": (2, ""), "xor": (2, ""), "not": (1, "!a, or ~a"), "shl": (2, "a << b"), "shr": (2, "a >> b"),
    "where": (3, "a ? b : c; a is bool, b and c are T, the dtype of the result"),
    "cast": (1, "a to the let's dtype; float → integer truncates; to bool is a != 0 (true for NaN)"),
}  # fmt: skip


@dataclass(frozen=True)
class Buffer:
    """Contiguous memory. shape: sizes, outermost first; () is a scalar of one element.

    role: `input` (n-th tensor argument, `source` = its name), `param` (a parameter or buffer of the model, `source` =
    its state_dict name or attribute path), `const` (a tensor made by the model itself, `source` says how),
    `temp` (intermediate), `output` (allocated for the caller).
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    role: Role
    source: str = ""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZE[self.dtype]


@dataclass(frozen=True)
class Index:
    """Element offset: offset + Σ strides[d]·i_d + Σ stride·value, where d runs over outer then inner dims.

    indirect: (name of an int64 let in scope, stride) pairs, for gather-like reads. Planner guarantees: in bounds.
    """

    offset: int
    strides: tuple[int, ...]
    indirect: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Load:
    """Read one element; dtype is the buffer's. mask: name of a bool let; where it is false nothing is read: value 0."""

    buffer: str
    index: Index
    mask: str | None = None


@dataclass(frozen=True)
class Const:
    """A literal. value: bool, int or float; infinities and NaN are the strings "inf", "-inf", "nan" in JSON."""

    value: bool | int | float


@dataclass(frozen=True)
class Coordinate:
    """The integer offset + Σ strides[d]·i_d itself, as int64 (iota; comparisons for masks)."""

    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """fn: a key of `OPS`; args: names of lets or reductions in scope."""

    fn: str
    args: tuple[str, ...]


Expr = Load | Const | Coordinate | Op


@dataclass(frozen=True)
class Let:
    """name = value, of scalar type dtype."""

    name: str
    dtype: Dtype
    value: Expr


@dataclass(frozen=True)
class Reduction:
    """name = kind over all points of inner of the body let `value`.

    dtype is that of result and accumulator: float32 or float64 for float values (accumulate in blocks, pairwise or in
    float64 where rows are long: the error must not grow with the row's length), int64 for integer sums, bool for
    any/all. max and min: NaN wins, as torch.amax. argmax and argmin: int64, the row-major position within `inner` of
    the first extreme element (the first NaN wins).
    """

    name: str
    kind: ReductionKind
    dtype: Dtype
    value: str


@dataclass(frozen=True)
class Store:
    """buffer[index] = value; the let's dtype equals the buffer's."""

    buffer: str
    index: Index
    value: str


@dataclass(frozen=True)
class Pass:
    """One sweep over `inner`: see the module's text."""

    row: tuple[Let, ...] = ()
    body: tuple[Let, ...] = ()
    reductions: tuple[Reduction, ...] = ()
    stores: tuple[Store, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """A launcher `extern "C" void <name>(…)`, alone in kernels/<name>.cpp or .cu.

    Its parameters are pointers to `reads`, then `writes`, then the emitter's workspaces; on CUDA a stream comes last.
    doc: one line for a person, e.g. "softmax over the last dim of [4096, 1000]".
    """

    name: str
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    passes: tuple[Pass, ...]
    tail: tuple[Let, ...] = ()
    row_stores: tuple[Store, ...] = ()
    doc: str = ""
    lines: tuple[int, ...] = ()  # lines of model.py that this kernel computes

    @property
    def rows(self) -> int:
        return math.prod(self.outer)

    @property
    def row_size(self) -> int:
        return math.prod(self.inner)

    @property
    def is_pointwise(self) -> bool:
        return not any(p.reductions for p in self.passes)

    @property
    def reductions(self) -> tuple[Reduction, ...]:
        return tuple(r for p in self.passes for r in p.reductions)

    def lets(self) -> Iterator[Let]:
        """All lets, in order of evaluation; a let repeated in several passes appears again."""
        for p in self.passes:
            yield from p.row
            yield from p.body
        yield from self.tail

    def all_stores(self) -> tuple[Store, ...]:
        return tuple(s for p in self.passes for s in p.stores) + self.row_stores

    def accesses(self) -> Iterator[tuple[str, Index]]:
        """(buffer, index) of every load and store."""
        for let in self.lets():
            if isinstance(let.value, Load):
                yield let.value.buffer, let.value.index
        for store in self.all_stores():
            yield store.buffer, store.index

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers read, in order of first use: the first launcher parameters (const pointers)."""
        return tuple(dict.fromkeys(x.value.buffer for x in self.lets() if isinstance(x.value, Load)))

    @property
    def writes(self) -> tuple[str, ...]:
        """Buffers written, in order: the next launcher parameters."""
        return tuple(dict.fromkeys(s.buffer for s in self.all_stores()))

    def contiguity(self) -> dict[tuple[str, Index], Literal["contiguous", "broadcast", "strided", "gather"]]:
        """How each access walks the innermost loop (the last inner dim, or the last outer dim if inner is empty)."""
        found: dict[tuple[str, Index], Literal["contiguous", "broadcast", "strided", "gather"]] = {}
        for buffer, index in self.accesses():
            step = index.strides[-1] if index.strides else 0
            if index.indirect:
                found[buffer, index] = "gather"
            else:
                found[buffer, index] = "contiguous" if step == 1 else "broadcast" if step == 0 else "strided"
        return found

    def vector_axis(self) -> int | None:
        """The dim (outer dims first) along which most bulk accesses are contiguous; None if there is none.

        For a reduction over dim 0 of [4096, 4096] it is an outer dim: vectorise over kept columns there.
        """
        sizes = self.outer + self.inner
        votes: dict[int, int] = {}
        for _, index in self.accesses():
            for axis, stride in enumerate(index.strides):
                if stride == 1 and not index.indirect:
                    volume = math.prod(s for s, t in zip(sizes, index.strides, strict=True) if t)
                    votes[axis] = votes.get(axis, 0) + volume
        return max(votes, key=lambda axis: (votes[axis], axis)) if votes else None

    def unit(self, index: Index, axis: int) -> int:
        """Largest power of two (≤ 16) that divides offset and all strides but the one of `axis`, as well as the size
        of `axis`: vectors of so many elements along `axis` never straddle and are aligned to their own size (as far
        as the base address is)."""
        sizes = self.outer + self.inner
        divisor = math.gcd(index.offset, sizes[axis], 16)
        for d, stride in enumerate(index.strides):
            if d != axis:
                divisor = math.gcd(divisor, stride)
        return divisor if not index.indirect else 1

    def needs_int64(self) -> bool:
        """Whether some element offset may reach 2^31."""
        sizes = self.outer + self.inner
        return any(
            index.offset + sum(max(0, t) * (s - 1) for s, t in zip(sizes, index.strides, strict=True)) >= 2**31
            or bool(index.indirect)
            for _, index in self.accesses()
        )


@dataclass(frozen=True)
class LibraryCall:
    """A call of a vendor library (GEMM, convolution), for later operator families. reads, writes: buffer names."""

    name: str
    function: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    attributes: tuple[tuple[str, Any], ...] = ()


Step = Kernel | LibraryCall


@dataclass(frozen=True)
class Plan:
    """Steps in order of execution over named buffers.

    results: the buffers of forward's return value, in order (an input returned as it is may be among them).
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    device: Literal["cpu", "cuda"] = "cpu"
    notes: tuple[str, ...] = field(default=())

    def buffer(self, name: str) -> Buffer:
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise KeyError(name)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step for step in self.steps if isinstance(step, Kernel))

    def last_use(self) -> dict[str, int]:
        """Liveness: name of a temp → position in `steps` of the step that uses it last."""
        temps = {b.name for b in self.buffers if b.role == "temp"}
        return {n: i for i, step in enumerate(self.steps) for n in (*step.reads, *step.writes) if n in temps}

    def traffic(self, kernel: Kernel) -> int:
        """Bytes a kernel must move at least: each buffer once (or the part of it that its accesses span)."""
        total = 0
        for name in (*kernel.reads, *kernel.writes):
            buffer = self.buffer(name)
            volumes = [
                buffer.numel if index.indirect else math.prod(
                    s for s, t in zip(kernel.outer + kernel.inner, index.strides, strict=True) if t
                )
                for b, index in kernel.accesses() if b == name
            ]  # fmt: skip
            total += min(buffer.numel, max(volumes)) * ITEMSIZE[buffer.dtype]
        return total


_TYPES: dict[str, type] = {
    t.__name__: t
    for t in (Buffer, Index, Load, Const, Coordinate, Op, Let, Reduction, Store, Pass, Kernel, LibraryCall, Plan)
}
_SPECIAL = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_json(node: Any) -> Any:
    """Plain JSON for any IR object: dataclasses become objects with a `type` key, tuples lists."""
    if is_dataclass(node) and type(node) is _TYPES.get(type(node).__name__):
        return {"type": type(node).__name__} | {f.name: to_json(getattr(node, f.name)) for f in fields(node)}
    if isinstance(node, (tuple, list)):
        return [to_json(item) for item in node]
    if isinstance(node, float) and not math.isfinite(node):
        return {"float": "nan" if math.isnan(node) else "inf" if node > 0 else "-inf"}
    return node


def from_json(data: Any) -> Any:
    """Inverse of `to_json`. Raises KeyError or TypeError for what is no IR."""
    if isinstance(data, dict):
        if "float" in data:
            return _SPECIAL[data["float"]]
        return _TYPES[data["type"]](**{k: from_json(v) for k, v in data.items() if k != "type"})
    if isinstance(data, list):
        return tuple(from_json(item) for item in data)
    return data
