"""Index arithmetic: affine forms over loop variables, and exact division of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cuda_agent.expert.tensors import Shape

Var = int | str  # a loop variable's number, or the name of an int64 let (an indirect index)


class NeedSplit(Exception):
    """Loop variable `var` must become an outer and an inner variable of `inner` steps; then try again."""

    def __init__(self, var: int, inner: int) -> None:
        super().__init__(f"split loop variable {var} by {inner}")
        self.var, self.inner = var, inner


class NotAffine(Exception):
    """A reshape that no splitting of loops makes affine: its source has to be in memory."""


@dataclass(frozen=True)
class Affine:
    """offset + Σ coefficient·variable; terms are sorted and without zeros."""

    offset: int = 0
    terms: tuple[tuple[Var, int], ...] = ()

    @staticmethod
    def of(offset: int, terms: Mapping[Var, int]) -> Affine:
        return Affine(
            offset, tuple(sorted(((v, k) for v, k in terms.items() if k), key=lambda t: (str(type(t[0])), t[0])))
        )

    @staticmethod
    def var(var: Var) -> Affine:
        return Affine(0, ((var, 1),))

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.offset + other, self.terms)
        merged = dict(self.terms)
        for v, k in other.terms:
            merged[v] = merged.get(v, 0) + k
        return Affine.of(self.offset + other.offset, merged)

    def __mul__(self, factor: int) -> Affine:
        return Affine.of(self.offset * factor, {v: k * factor for v, k in self.terms})

    @property
    def vars(self) -> frozenset[Var]:
        return frozenset(v for v, _ in self.terms)


def flatten(index: Sequence[Affine], shape: Shape) -> Affine:
    """Row-major position of an index."""
    flat, stride = Affine(), 1
    for component, size in zip(reversed(index), reversed(shape), strict=True):
        if size != 1:
            flat = flat + component * stride
        stride *= size
    return flat


def unflatten(flat: Affine, shape: Shape, sizes: Mapping[int, int]) -> tuple[Affine, ...]:
    """Inverse of `flatten`, given the loop sizes. Raises NeedSplit or NotAffine."""
    out: list[Affine] = []
    for size in reversed(shape):
        if size == 1:
            out.append(Affine())
            continue
        flat, rest = _divmod(flat, size, sizes)
        out.append(rest)
    return tuple(reversed(out))


def _divmod(form: Affine, divisor: int, sizes: Mapping[int, int]) -> tuple[Affine, Affine]:
    """(quotient, remainder) of a form that is never negative."""
    high: dict[Var, int] = {}
    low: dict[Var, int] = {}
    for var, k in form.terms:
        (high if k % divisor == 0 else low)[var] = k
    reach = form.offset % divisor
    for var, k in sorted(low.items(), key=lambda t: t[1]):
        if isinstance(var, str) or k < 0:
            raise NotAffine
        reach += k * (sizes[var] - 1)
        if reach >= divisor:
            if k < divisor and divisor % k == 0 and sizes[var] % (divisor // k) == 0 and divisor // k < sizes[var]:
                raise NeedSplit(var, divisor // k)
            raise NotAffine
    quotient = Affine.of(form.offset // divisor, {v: k // divisor for v, k in high.items()})
    return quotient, Affine.of(form.offset % divisor, low)


def used(forms: Iterable[Affine]) -> frozenset[Var]:
    return frozenset(v for form in forms for v in form.vars)
