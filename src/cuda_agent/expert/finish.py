"""From a nest under construction to a `Kernel`: order and coalesce the loops, place lets in passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cuda_agent.expert.affine import Affine
from cuda_agent.expert.ir import Const, Coordinate, Dtype, Expr, Index, Kernel, Let, Load, Op, Pass, Store
from cuda_agent.expert.kernelize import Draft, DraftStore, Nest, Position, Read

Group = tuple[int, ...]  # loop variables that are walked as one, outermost first


def finish(nest: Nest, stores: Sequence[DraftStore], buffers: Sequence[str], name: str, doc: str) -> Kernel:
    """stores go to `buffers`, one each."""
    forms = _forms(nest, stores)
    if nest.reductions:
        ordered = any(r.kind in ("argmax", "argmin") for r, _ in nest.reductions.values())
        outer = _coalesce(_order(nest.outer, forms, nest), forms, nest)
        inner = _coalesce(nest.inner if ordered else _order(nest.inner, forms, nest), forms, nest)
    else:
        loops = _coalesce(_order(nest.outer + nest.inner, forms, nest), forms, nest)
        outer, inner = loops[:-1], loops[-1:]
    return _Layout(nest, outer, inner).kernel(stores, buffers, name, doc)


def _forms(nest: Nest, stores: Iterable[DraftStore]) -> list[Affine]:
    forms = [store.form for store in stores]
    forms += [d.value.form for d in nest.lets.values() if isinstance(d.value, (Read, Position))]
    return forms


def _order(loops: Group, forms: Sequence[Affine], nest: Nest) -> Group:
    """Largest stride first, by the access that walks most of the loops; a store wins a tie, as it comes first."""
    if not loops or not forms:
        return loops
    strides = [dict(f.terms) for f in forms]
    main = max(strides, key=lambda s: sum(1 for v in loops if s.get(v, 0)))
    return tuple(sorted(loops, key=lambda v: -abs(main.get(v, 0)) if main.get(v) else -(2**62)))


def _coalesce(loops: Group, forms: Sequence[Affine], nest: Nest) -> list[Group]:
    groups: list[list[int]] = []
    for v in loops:
        if nest.sizes[v] == 1:
            continue
        joins = bool(groups) and all(
            dict(f.terms).get(groups[-1][-1], 0) == dict(f.terms).get(v, 0) * nest.sizes[v] for f in forms
        )
        if joins:
            groups[-1].append(v)
        else:
            groups.append([v])
    return [tuple(g) for g in groups]


class _Layout:
    def __init__(self, nest: Nest, outer: Sequence[Group], inner: Sequence[Group]) -> None:
        self.nest, self.outer, self.inner = nest, tuple(outer), tuple(inner)
        self.inner_vars = {v for g in inner for v in g}
        self.last_pass = max((p for _, p in nest.reductions.values()), default=-1) + 1

    def kernel(self, stores: Sequence[DraftStore], buffers: Sequence[str], name: str, doc: str) -> Kernel:
        bulk: dict[int, list[Store]] = {}
        rows: list[Store] = []
        for store, buffer in zip(stores, buffers, strict=True):
            made = Store(buffer, self._index(store.form), store.value)
            loops = {v for v in store.form.vars if isinstance(v, int)}
            if self.nest.reductions and not (loops & self.inner_vars) and not self._inner(store.value):
                rows.append(made)
            else:
                bulk.setdefault(self._ready(store.value), []).append(made)
        count = max(self.last_pass, max(bulk, default=-1) + 1)
        if not self.nest.reductions:
            count = 1
        wanted = self._reachable([s.value for s in rows] + [s.value for group in bulk.values() for s in group])
        row_lets = [d for d in self.nest.lets.values() if d.name in wanted and not self._inner(d.name)]
        passes = []
        for p in range(count):
            reductions = tuple(r for r, at in self.nest.reductions.values() if at == p)
            stored = tuple(bulk.get(p, ()))
            needed = self._reachable([r.value for r in reductions] + [s.value for s in stored], within=p)
            body = tuple(self._let(d) for d in self.nest.lets.values() if d.name in needed and self._inner(d.name))
            row = tuple(self._let(d) for d in row_lets if d.ready == p)
            values = {r.value for r in reductions} | {s.value for s in stored}
            copies = {v: f"{v}_row" for v in values - {b.name for b in body}}  # row-invariant, yet used per element
            body += tuple(Let(copy, self._dtype(v), Op("cast", (v,))) for v, copy in copies.items())
            reductions = tuple(replace(r, value=copies.get(r.value, r.value)) for r in reductions)
            stored = tuple(replace(s, value=copies.get(s.value, s.value)) for s in stored)
            passes.append(Pass(row, body, reductions, stored))
        tail = tuple(self._let(d) for d in row_lets if d.ready >= count)
        sizes = self.nest.sizes
        return Kernel(
            name,
            tuple(_product(sizes[v] for v in g) for g in self.outer),
            tuple(_product(sizes[v] for v in g) for g in self.inner),
            tuple(passes),
            tail,
            tuple(rows),
            doc,
            tuple(sorted(self.nest.lines)),
        )

    def _dtype(self, name: str) -> Dtype:
        return self.nest.reductions[name][0].dtype if name in self.nest.reductions else self.nest.lets[name].dtype

    def _inner(self, name: str) -> bool:
        return name in self.nest.lets and bool(self.nest.lets[name].vars & self.inner_vars)

    def _ready(self, name: str) -> int:
        if name in self.nest.reductions:
            return self.nest.reductions[name][1] + 1
        return self.nest.lets[name].ready

    def _reachable(self, names: Iterable[str], within: int | None = None) -> set[str]:
        """Lets that names need. within: only what one pass evaluates itself, not what earlier reductions needed."""
        seen: set[str] = set()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in self.nest.reductions:
                if within is None:
                    stack.append(self.nest.reductions[name][0].value)
                continue
            stack.extend(_arguments(self.nest.lets[name]))
        return seen

    def _let(self, draft: Draft) -> Let:
        value: Expr
        if isinstance(draft.value, Read):
            value = Load(draft.value.buffer, self._index(draft.value.form), draft.value.mask)
        elif isinstance(draft.value, Position):
            value = Coordinate(draft.value.form.offset, self._index(draft.value.form).strides)
        else:
            assert isinstance(draft.value, (Op, Const))
            value = draft.value
        return Let(draft.name, draft.dtype, value)

    def _index(self, form: Affine) -> Index:
        terms = dict(form.terms)
        strides = tuple(terms.get(g[-1], 0) for g in (*self.outer, *self.inner))
        return Index(form.offset, strides, tuple((v, k) for v, k in form.terms if isinstance(v, str)))


def _arguments(draft: Draft) -> list[str]:
    if isinstance(draft.value, Op):
        return list(draft.value.args)
    if isinstance(draft.value, Read):
        return [v for v in draft.value.form.vars if isinstance(v, str)] + (
            [draft.value.mask] if draft.value.mask else []
        )
    return []


def _product(values: Iterable[int]) -> int:
    out = 1
    for v in values:
        out *= v
    return out
