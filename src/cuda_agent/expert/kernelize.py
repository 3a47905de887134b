"""Inlining tensors into one loop nest: indices travel from the stored tensors up to memory.

`Nest` is a nest under construction. Asking it for the value of a tensor at an index yields the name of a let; views
rewrite the index, maps recurse, reductions over the nest's inner loops become `Reduction`s of an earlier pass, and
everything else that is no memory yet is asked for by raising `NeedMemory`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cuda_agent.expert.affine import Affine, NeedSplit, NotAffine, flatten, unflatten
from cuda_agent.expert.ir import Const, Dtype, Op, Reduction
from cuda_agent.expert.tensors import Fill, Gather, Iota, Map, Memory, Reduce, Tensor, View, compute_dtype

__all__ = ["Draft", "DraftStore", "Found", "NeedMemory", "NeedSplit", "Nest", "Position", "Read"]

Indices = tuple[Affine, ...]


class NeedMemory(Exception):
    """`tensor` must be computed by a kernel of its own before this nest."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__("materialise")
        self.tensor = tensor


@dataclass(frozen=True)
class Position:
    """An affine integer as a value (`ir.Coordinate` once the loops are fixed)."""

    form: Affine


@dataclass(frozen=True)
class Read:
    buffer: str
    form: Affine
    mask: str | None


@dataclass(frozen=True)
class Draft:
    """A let before loops are fixed. ready: the first pass in which its reductions are known.

    vars: loop variables it depends on (through reductions only outer ones are possible).
    """

    name: str
    dtype: Dtype
    value: Op | Const | Read | Position
    ready: int
    vars: frozenset[int]


@dataclass(frozen=True)
class DraftStore:
    tensor: Tensor
    form: Affine
    value: str


@dataclass(frozen=True)
class Found:
    """A reduction seen by a probe: which loop variables its kept coordinates use."""

    tensor: Reduce
    kept: Indices


@dataclass
class Nest:
    """outer, inner: loop variables in order. sizes: of each variable. memory: tensor → buffer name.

    probe: only look for reductions (they are recorded in `found` and stand for themselves).
    """

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    sizes: Mapping[int, int]
    memory: Mapping[Tensor, str]
    probe: bool = False
    single_pass: bool = False
    lets: dict[str, Draft] = field(default_factory=dict)
    reductions: dict[str, tuple[Reduction, int]] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    _names: dict[object, str] = field(default_factory=dict)

    # -- values

    def value(self, tensor: Tensor, index: Indices) -> str:
        """Name of the let or reduction that holds tensor[index], in the tensor's compute dtype."""
        key = (id(tensor), index)
        if key not in self._names:
            self._names[key] = self._make(tensor, index)
        return self._names[key]

    def _make(self, t: Tensor, index: Indices) -> str:
        buffer = self.memory.get(t)
        if buffer is not None or isinstance(t, Memory):
            return self._read(t, flatten(index, t.shape), None)
        if t.line is not None:
            self.lines.add(t.line)
        if isinstance(t, Fill):
            return self._let(compute_dtype(t.dtype), Const(t.value), ())
        if isinstance(t, Iota):
            return self._let("int64", Position(index[t.axis]), ())
        if isinstance(t, Map):
            return self._map(t, index)
        if isinstance(t, View):
            return self._view(t, index)
        if isinstance(t, Gather):
            return self._gather(t, index)
        assert isinstance(t, Reduce)
        return self._reduce(t, index)

    def _map(self, t: Map, index: Indices) -> str:
        args = tuple(self.value(a, index) for a in t.args)
        dtype = compute_dtype(t.dtype)
        if t.fn == "cast":
            if t.rounds:
                args = (self._let(t.dtype, Op("cast", args), args),)
            elif compute_dtype(t.args[0].dtype) == dtype:
                return args[0]
        folded = self._affine(t.fn, args) if dtype == "int64" else None
        return self._let(dtype, folded or Op(t.fn, args), args)

    def _affine(self, fn: str, args: Sequence[str]) -> Position | None:
        """Sums of coordinates and literals stay affine, so that reads at them stay contiguous."""
        forms = []
        for arg in args:
            value = self.lets[arg].value if arg in self.lets else None
            if isinstance(value, Position):
                forms.append(value.form)
            elif isinstance(value, Const):
                forms.append(Affine(int(value.value)))
            else:
                return None
        if fn in ("add", "sub"):
            return Position(forms[0] + forms[1] * (1 if fn == "add" else -1))
        if fn == "mul" and not (forms[0].terms and forms[1].terms):
            wide, factor = sorted(forms, key=lambda f: -len(f.terms))
            return Position(wide * factor.offset)
        return None

    def _view(self, t: View, index: Indices) -> str:
        source = t.source
        if t.kind == "reshape" and (source in self.memory or isinstance(source, Memory)):
            return self._read(source, flatten(index, t.shape), None)
        try:
            return self.value(source, view_index(t, index, self.sizes))
        except NotAffine:
            raise NeedMemory(source) from None

    def _gather(self, t: Gather, index: Indices) -> str:
        position = self.value(t.index, index)
        mask = self.value(t.mask, index) if t.mask is not None else None
        component: Affine = Affine.var(position)
        draft = self.lets.get(position)
        if draft is not None and isinstance(draft.value, Position):
            component = draft.value.form
        source = t.source
        at = (*index[: t.dim], component, *index[t.dim + 1 :])
        if mask is None:
            try:
                return self.value(source, at)
            except NotAffine:
                raise NeedMemory(source) from None
        while not (isinstance(source, Memory) or source in self.memory):
            # a masked read must not touch memory outside the buffer, so that only views may lie between
            if not isinstance(source, View):
                raise NeedMemory(source)
            try:
                at = view_index(source, at, self.sizes)
            except (NotAffine, NeedSplit):
                raise NeedMemory(source) from None
            source = source.source
        return self._read(source, flatten(at, source.shape), mask)

    def _read(self, t: Tensor, form: Affine, mask: str | None) -> str:
        buffer = t.buffer if isinstance(t, Memory) else self.memory[t]
        names = [v for v in form.vars if isinstance(v, str)] + ([mask] if mask else [])
        name = self._let(t.dtype, Read(buffer, form, mask), names, [v for v in form.vars if isinstance(v, int)])
        if compute_dtype(t.dtype) != t.dtype:
            name = self._let(compute_dtype(t.dtype), Op("cast", (name,)), (name,))
        return name

    # -- reductions

    def _reduce(self, t: Reduce, index: Indices) -> str:
        if self.probe:
            self.found.append(Found(t, index))
            return self._let(
                compute_dtype(t.dtype), Const(0), (), [v for f in index for v in f.vars if isinstance(v, int)]
            )
        if not self._fits(t, index):
            raise NeedMemory(t)
        loops = Affine()
        stride = 1
        for v in reversed(self.inner):
            loops = loops + Affine.var(v) * stride
            stride *= self.sizes[v]
        try:
            within = unflatten(loops, t.domain, self.sizes)
        except NotAffine:
            raise NeedMemory(t) from None
        kept, inside = iter(index), iter(within)
        full = tuple(next(inside) if d in t.dims else next(kept) for d in range(t.source.ndim))
        try:
            value = self.value(t.source, full)
        except NeedMemory as need:
            # rather the small tensor that is reduced here than the larger things it is made of
            if need.tensor.numel >= t.source.numel and not isinstance(t.source, (Memory, Reduce)):
                raise NeedMemory(t.source) from None
            raise
        value = self._bodied(value, compute_dtype(t.source.dtype))
        ready = self._ready(value)
        if self.single_pass and ready > 0:
            inner = next(r for r in reversed(self._tensors) if r is not t)
            raise NeedMemory(inner)
        name = f"{t.kind}{len(self.reductions)}"
        self._tensors.append(t)
        self.reductions[name] = (Reduction(name, t.kind, compute_dtype(t.dtype), value), ready)
        return name

    _tensors: list[Reduce] = field(default_factory=list)

    def _fits(self, t: Reduce, index: Indices) -> bool:
        loops = {v for f in index for v in f.vars}
        if math.prod(t.domain) != math.prod(self.sizes[v] for v in self.inner):
            return False
        return loops <= set(self.outer)

    def _bodied(self, name: str, dtype: Dtype) -> str:
        """A reduction takes a let; the value of a reduction of a row-invariant is one too."""
        return self._let(dtype, Op("cast", (name,)), (name,)) if name in self.reductions else name

    # -- lets

    def _ready(self, name: str) -> int:
        return self.reductions[name][1] + 1 if name in self.reductions else self.lets[name].ready

    def _let(
        self, dtype: Dtype, value: Op | Const | Read | Position, args: Sequence[str], loops: Sequence[int] = ()
    ) -> str:
        key = (dtype, value, type(getattr(value, "value", None)), repr(getattr(value, "value", None)))
        if key in self._names:
            return self._names[key]
        found: set[int] = set(loops)
        if isinstance(value, Position):
            found |= {v for v in value.form.vars if isinstance(v, int)}
            args = [v for v in value.form.vars if isinstance(v, str)]
        for arg in args:
            found |= set(self.outer) if arg in self.reductions else self.lets[arg].vars
        ready = max((self._ready(a) for a in args), default=0)
        name = f"v{len(self.lets)}"
        self.lets[name] = Draft(name, dtype, value, ready, frozenset(found))
        self._names[key] = name
        return name

    def stored(self, tensor: Tensor, value: str) -> str:
        """The value as the dtype of its buffer."""
        if compute_dtype(tensor.dtype) != tensor.dtype:
            return self._let(tensor.dtype, Op("cast", (value,)), (value,))
        return value


def view_index(t: View, index: Indices, sizes: Mapping[int, int]) -> Indices:
    """Index into the source for an index into the view."""
    source = t.source
    if t.kind == "permute":
        out = [Affine()] * source.ndim
        for position, d in enumerate(t.attribute):
            out[d] = index[position]
        return tuple(out)
    if t.kind == "expand":
        tail = index[len(index) - source.ndim :] if source.ndim else ()
        return tuple(Affine() if n == 1 else i for n, i in zip(source.shape, tail, strict=True))
    if t.kind == "slice":
        dim, start, step = t.attribute
        return (*index[:dim], index[dim] * step + start, *index[dim + 1 :])
    if t.kind == "flip":
        return tuple(
            i * -1 + (n - 1) if d in t.attribute else i for d, (i, n) in enumerate(zip(index, t.shape, strict=True))
        )
    squeezed = [(i, n) for i, n in zip(index, t.shape, strict=True) if n != 1]
    if [n for _, n in squeezed] == [n for n in source.shape if n != 1]:
        remaining = iter(i for i, _ in squeezed)
        return tuple(Affine() if n == 1 else next(remaining) for n in source.shape)
    return unflatten(flatten(index, t.shape), source.shape, sizes)
