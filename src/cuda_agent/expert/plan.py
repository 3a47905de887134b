"""From a captured graph to a plan: which tensors get memory, and which kernels compute them.

Everything is fused by default: a kernel starts from the tensors it must store and inlines whatever leads to them
(`kernelize.Nest`). Memory goes between kernels only where loops do not fit: under a reduction over other dims than the
nest's, under a reshape that is not affine, and between the reduction and the stores of rows so few and long that
computing units would idle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cuda_agent.expert.affine import Affine, NeedSplit, flatten
from cuda_agent.expert.errors import Unsupported
from cuda_agent.expert.finish import finish
from cuda_agent.expert.graph import Program, identifier, read_graph
from cuda_agent.expert.ir import Buffer, Kernel, Plan
from cuda_agent.expert.kernelize import DraftStore, Found, NeedMemory, Nest
from cuda_agent.expert.tensors import Memory, Reduce, Tensor

Split = tuple[tuple[int, ...], ...]  # per dim of the nest, the sizes of its loop variables


@dataclass(frozen=True)
class Limits:
    """What decides between one kernel and several.

    long_row: elements from which a row does not stay in the fast memory of one worker. min_rows: with fewer rows,
    long rows are reduced in a kernel of their own that all workers share.
    """

    long_row: int
    min_rows: int

    @staticmethod
    def of(device: str) -> Limits:
        return Limits(long_row=65536, min_rows=16) if device == "cpu" else Limits(long_row=32768, min_rows=264)


@dataclass(frozen=True)
class Space:
    """The loops of a nest: dims of the stored tensor, split; which of them are rows; sizes of a row's own loops."""

    dims: Split
    outer: tuple[int, ...]  # loop variables
    inner: tuple[int, ...]
    extra: tuple[tuple[int, ...], ...]  # loop variables over reduced dims that the stored tensor lacks, split

    @property
    def sizes(self) -> dict[int, int]:
        flat = [n for dim in (*self.dims, *self.extra) for n in dim]
        return dict(enumerate(flat))


@dataclass
class _Root:
    """A tensor that is stored, and the nest that computes it."""

    tensor: Tensor
    buffer: str
    space: Space
    nest: Nest
    store: DraftStore

    @property
    def loops(self) -> tuple[Any, ...]:
        sizes = self.space.sizes
        return (
            tuple(sizes[v] for v in self.space.outer),
            tuple(sizes[v] for v in self.space.inner),
            bool(self.nest.reductions),
        )


@dataclass(frozen=True)
class Planned:
    """plan, and what the surrounding module needs to know: see `graph.Program`.

    results: the structure that forward returns, buffer names (as `("buffer", name)`) at its leaves.
    """

    plan: Plan
    program: Program
    results: Any


def plan_graph(graph: Mapping[str, Any], limits: Limits | None = None) -> Planned:
    """graph: as `capture_source` returns it. Raises Unsupported, naming the operator and its line in model.py."""
    device: Literal["cpu", "cuda"] = graph["device"]
    chosen = limits or Limits.of(device)
    return _Planner(read_graph(graph, chosen.long_row), chosen, device).plan()


@dataclass
class _Planner:
    program: Program
    limits: Limits
    device: Literal["cpu", "cuda"]
    memory: dict[Tensor, str] = field(default_factory=dict)
    temps: list[Tensor] = field(default_factory=list)

    def plan(self) -> Planned:
        outputs: list[Tensor] = []
        structure = self._collect(self.program.results, outputs)
        for tensor in outputs:
            self._materialise(tensor, "output")
        roots = self._roots(outputs)
        groups = self._merge(roots)
        kernels = self._kernels(groups)
        used = {b for k in kernels for b in (*k.reads, *k.writes)}
        buffers = tuple(b for b in self.program.buffers.values() if b.name in used or b.role in ("input", "output"))
        results = tuple(self.memory.get(t) or t.buffer for t in outputs)  # type: ignore[attr-defined]
        return Planned(Plan(buffers, kernels, results, self.device), self.program, structure)

    def _collect(self, result: Any, outputs: list[Tensor]) -> Any:
        if isinstance(result, Tensor):
            if result not in outputs:
                outputs.append(result)
            return ("tensor", outputs.index(result))
        if isinstance(result, (tuple, list)):
            return (type(result).__name__, [self._collect(r, outputs) for r in result])
        if isinstance(result, dict):
            return ("dict", {k: self._collect(v, outputs) for k, v in result.items()})
        return ("literal", result)

    def _materialise(self, tensor: Tensor, role: Literal["temp", "output"]) -> None:
        if isinstance(tensor, Memory) or tensor in self.memory:
            return
        taken = self.program.buffers
        stem = ("output" if role == "output" else tensor.kind if isinstance(tensor, Reduce) else "temp")  # fmt: skip
        number = sum(1 for b in taken.values() if b.role == role)
        name = identifier(f"{stem}{number}" if role == "temp" or number else "out", taken)
        taken[name] = Buffer(name, tensor.dtype, tensor.shape, role)
        self.memory[tensor] = name

    # -- roots

    def _roots(self, outputs: list[Tensor]) -> list[_Root]:
        """One per tensor in memory; those that others need are found on the way and come first."""
        done: dict[Tensor, _Root] = {}
        stack = [t for t in reversed(outputs) if t in self.memory]
        while stack:
            tensor = stack[-1]
            if tensor in done:
                stack.pop()
                continue
            try:
                done[tensor] = self._root(tensor)
                stack.pop()
            except NeedMemory as need:
                if need.tensor is tensor or isinstance(need.tensor, Memory) or need.tensor in self.memory:
                    raise Unsupported("this arrangement of loops", tensor.line) from None
                self._materialise(need.tensor, "temp")
                stack.append(need.tensor)
        return list(done.values())

    def _root(self, tensor: Tensor) -> _Root:
        memory = {t: b for t, b in self.memory.items() if t is not tensor}
        space = self._space(tensor, memory)
        for _ in range(64):
            try:
                return self._build(tensor, space, memory)
            except NeedSplit as split:
                space = _split(space, split)
        raise AssertionError("loops keep splitting")

    def _build(self, tensor: Tensor, space: Space, memory: Mapping[Tensor, str]) -> _Root:
        nest = Nest(space.outer, space.inner, space.sizes, memory, single_pass=self._shared(space))
        store = _store(nest, tensor, space)
        return _Root(tensor, self.memory[tensor], space, nest, store)

    def _shared(self, space: Space) -> bool:
        """Whether all workers share each row: a few long rows."""
        sizes = space.sizes
        rows, row = (math.prod(sizes[v] for v in vs) for vs in (space.outer, space.inner))
        return rows < self.limits.min_rows and row > self.limits.long_row // 4

    def _space(self, tensor: Tensor, memory: Mapping[Tensor, str]) -> Space:
        """Probe which reductions lead to the tensor, and choose the rows by them."""
        dims: Split = tuple((n,) for n in tensor.shape)
        while True:
            loops = tuple(range(sum(len(d) for d in dims)))
            flat = Space(dims, loops, (), ())
            probe = Nest(loops, (), flat.sizes, memory, probe=True)
            try:
                _store(probe, tensor, flat)
                break
            except NeedSplit as split:
                dims = _split(flat, split).dims
        for found in self._by_size(probe.found):
            space = self._fit(found, flat)
            if space is not None:
                return space
        return flat

    @staticmethod
    def _by_size(found: list[Found]) -> list[Found]:
        return sorted(found, key=lambda f: -f.tensor.source.numel)

    def _fit(self, found: Found, flat: Space) -> Space | None:
        """Rows are the loops that index the reduction's kept dims."""
        sizes = flat.sizes
        kept = {v for form in found.kept for v in form.vars}
        if any(isinstance(v, str) for v in kept):
            return None
        outer = tuple(v for v in flat.outer if v in kept)
        inner = tuple(v for v in flat.outer if v not in kept and sizes[v] > 1)
        if math.prod(sizes[v] for v in outer) != found.tensor.numel:
            return None
        domain = found.tensor.domain
        if not inner:
            first = len(sizes)
            space = Space(flat.dims, flat.outer, tuple(range(first, first + len(domain))), tuple((n,) for n in domain))
            return space
        if math.prod(sizes[v] for v in inner) != math.prod(domain):
            return None
        space = Space(flat.dims, tuple(v for v in flat.outer if v not in inner), inner, ())
        return None if self._shared(space) else space

    # -- merging

    def _merge(self, roots: list[_Root]) -> list[list[_Root]]:
        """Roots with the same loops share a kernel, unless one needs the other through a third."""
        groups: list[list[_Root]] = []
        for root in roots:
            for group in groups:
                if group[0].loops == root.loops and self._independent(group, root, groups):
                    joined = self._joined([*group, root])
                    if joined is not None:
                        group.append(root)
                        break
            else:
                groups.append([root])
        return groups

    def _independent(self, group: list[_Root], root: _Root, groups: list[list[_Root]]) -> bool:
        """No path from the group to root that leads through another kernel."""
        inside = {r.buffer for r in group}
        reads = {r.buffer: _reads(r.nest) for g in groups for r in g} | {root.buffer: _reads(root.nest)}
        stack = [b for b in reads[root.buffer] if b not in inside]
        seen: set[str] = set()
        while stack:
            buffer = stack.pop()
            if buffer in inside:
                return False
            if buffer not in seen:
                seen.add(buffer)
                stack.extend(reads.get(buffer, ()))
        return True

    def _joined(self, group: list[_Root]) -> tuple[Nest, list[DraftStore]] | None:
        """One nest for all roots of the group; None if their loops turn out not to fit."""
        space = group[0].space
        own = {r.tensor for r in group}
        memory = {t: b for t, b in self.memory.items() if t not in own}
        for _ in range(64):
            nest = Nest(space.outer, space.inner, space.sizes, memory, single_pass=self._shared(space))
            try:
                return nest, [_store(nest, r.tensor, _like(space, r, group[0])) for r in group]
            except NeedSplit as split:
                space = _split(space, split)
            except NeedMemory:
                return None
        return None

    # -- kernels

    def _kernels(self, groups: list[list[_Root]]) -> tuple[Kernel, ...]:
        kernels: list[Kernel] = []
        for group in groups:
            made = self._joined(group) if len(group) > 1 else (group[0].nest, [group[0].store])
            assert made is not None
            nest, stores = made
            name = _kernel_name(nest, {k.name for k in kernels})
            kernels.append(finish(nest, stores, [r.buffer for r in group], name, _doc(nest, group)))
        return _ordered(kernels)


def _store(nest: Nest, tensor: Tensor, space: Space) -> DraftStore:
    index = []
    at = 0
    for dim in space.dims:
        form, stride = Affine(), math.prod(dim)
        for n in dim:
            stride //= n
            if n > 1:
                form = form + Affine.var(at) * stride
            at += 1
        index.append(form)
    value = nest.stored(tensor, nest.value(tensor, tuple(index)))
    return DraftStore(tensor, flatten(index, tensor.shape), value)


def _like(space: Space, root: _Root, first: _Root) -> Space:
    """The joint loops as the dims of another root with equal loops in the same order."""
    if root.space.dims == first.space.dims and root.space.outer == first.space.outer:
        return space
    raise NeedMemory(root.tensor)


def _split(space: Space, split: NeedSplit) -> Space:
    """Variable numbers follow the dims, so that later ones move up by one."""
    if split.inner <= 1:
        raise AssertionError("split by one")

    def cut(dims: Split, at: int) -> tuple[Split, int]:
        out: list[tuple[int, ...]] = []
        for dim in dims:
            sizes: list[int] = []
            for n in dim:
                sizes.extend([n // split.inner, split.inner] if at == split.var else [n])
                at += 1
            out.append(tuple(sizes))
        return tuple(out), at

    dims, at = cut(space.dims, 0)
    extra, _ = cut(space.extra, at)

    def moved(loops: tuple[int, ...]) -> tuple[int, ...]:
        out: list[int] = []
        for v in loops:
            out.extend([v, v + 1] if v == split.var else [v + 1 if v > split.var else v])
        return tuple(out)

    return Space(dims, moved(space.outer), moved(space.inner), extra)


def _reads(nest: Nest) -> set[str]:
    from cuda_agent.expert.kernelize import Read

    return {d.value.buffer for d in nest.lets.values() if isinstance(d.value, Read)}


def _ordered(kernels: list[Kernel]) -> tuple[Kernel, ...]:
    """Producers before consumers."""
    out: list[Kernel] = []
    waiting = list(kernels)
    while waiting:
        missing = {b for k in waiting for b in k.writes}
        ready = [k for k in waiting if not (set(k.reads) & missing)]
        assert ready, "kernels need each other"
        out.append(ready[0])
        waiting.remove(ready[0])
    return tuple(out)


def _kernel_name(nest: Nest, taken: set[str]) -> str:
    kinds = list(dict.fromkeys(r.kind for r, _ in nest.reductions.values()))
    fns = [d.value.fn for d in nest.lets.values() if hasattr(d.value, "fn")]
    telling = [f for f in dict.fromkeys(fns) if f in _TELLING]
    place = "row" if nest.outer else "full"  # never a bare name: C's library or Python may have it
    heads = [f"{place}_{k}" for k in kinds[:2]] or ["pointwise"]
    stem = "_".join([*heads, *telling[:2]])
    name, n = stem, 2
    while name in taken:
        name, n = f"{stem}_{n}", n + 1
    return name


_TELLING = {"exp", "log", "tanh", "erf", "sigmoid", "rsqrt", "sqrt", "pow", "expm1", "log1p", "sin", "cos"}


def _doc(nest: Nest, group: list[_Root]) -> str:
    sizes = nest.sizes
    outer, inner = [sizes[v] for v in nest.outer], [sizes[v] for v in nest.inner]
    what = ", ".join(dict.fromkeys(r.kind for r, _ in nest.reductions.values())) or "pointwise"
    where = f" over {inner} for each of {outer}" if nest.reductions else f" over {outer + inner}"
    return f"{what}{where}"
