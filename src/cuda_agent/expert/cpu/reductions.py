"""What a reduction is gathered in, and how, as C++ text.

An accumulator stands for a row (no prefix), for a tile of it (`tile_`), or for a thread's part of it (`part_`). `name`
turns an accumulator's name into how it is read where the text goes: in columns, and in lanes, it is an array.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from cuda_agent.expert.cpu.expressions import C_TYPES, least, literal
from cuda_agent.expert.ir import Dtype, Reduction

_FLOATS = ("float32", "float64")

Name = Callable[[str], str]


class Accumulator(NamedTuple):
    name: str
    kind: str  # C type
    start: str


def adds_floats(r: Reduction) -> bool:
    return r.kind == "sum" and r.dtype in _FLOATS


def accumulators(r: Reduction, of: Dtype, prefix: str = "") -> list[Accumulator]:
    """of: the dtype of what is reduced."""
    kind = C_TYPES[r.dtype]
    name = f"{prefix}{r.name}"
    match r.kind:
        case "sum":
            return [Accumulator(f"{name}_acc", "double" if adds_floats(r) and not prefix else kind, "0")]
        case "prod":
            return [Accumulator(f"{name}_acc", kind, "1")]
        case "max" | "min":
            found = [Accumulator(f"{name}_acc", kind, least(r.dtype, r.kind == "min"))]
            return [*found, Accumulator(f"{name}_nan", "int", "0")] if r.dtype in _FLOATS else found
        case "any" | "all":
            return [Accumulator(f"{name}_acc", "int", "0" if r.kind == "any" else "1")]
    start = least(of, r.kind == "argmin")
    return [Accumulator(f"{name}_best", C_TYPES[of], start), Accumulator(f"{name}_at", "int64_t", "INT64_MAX")]


def clauses(r: Reduction) -> list[str]:
    """Of `#pragma omp simd`."""
    match r.kind:
        case "sum":
            return [f"reduction(+:{'tile_' if adds_floats(r) else ''}{r.name}_acc)"]
        case "prod":
            return [f"reduction(*:{r.name}_acc)"]
        case "max" | "min":
            nan = [f"reduction(|:{r.name}_nan)"] if r.dtype in _FLOATS else []
            return [f"reduction({r.kind}:{r.name}_acc)", *nan]
        case "any":
            return [f"reduction(|:{r.name}_acc)"]
        case "all":
            return [f"reduction(&:{r.name}_acc)"]
    return []


def update(r: Reduction, of: Dtype, value: str, linear: str, name: Name, prefix: str = "") -> list[str]:
    """Take in the current element, the `linear`-th of its row."""
    acc = name(f"{prefix}{r.name}_acc")
    match r.kind:
        case "sum":
            return [f"{acc} += {value};"]
        case "prod":
            return [f"{acc} *= {value};"]
        case "max" | "min":
            sign = "<" if r.kind == "max" else ">"
            found = [f"{acc} = {acc} {sign} {value} ? {value} : {acc};"]
            nan = name(f"{prefix}{r.name}_nan")
            return [*found, f"{nan} |= {value} != {value};"] if r.dtype in _FLOATS else found
        case "any":
            return [f"{acc} |= int({value});"]
        case "all":
            return [f"{acc} &= int({value});"]
    return [_better(r, of, value, linear, name)]


def combine(r: Reduction, of: Dtype, name: Name, prefix: str, at: str) -> list[str]:
    """A partial result into the row's: a thread's, or a lane's of a tile."""
    acc, part = f"{r.name}_acc", f"{prefix}{r.name}_acc[{at}]"
    match r.kind:
        case "sum":
            return [f"{acc} += {part};"]
        case "prod":
            return [f"{acc} *= {part};"]
        case "max" | "min":
            found = [f"{acc} = std::{r.kind}({acc}, {part});"]
            return [*found, f"{r.name}_nan |= {prefix}{r.name}_nan[{at}];"] if r.dtype in _FLOATS else found
        case "any":
            return [f"{acc} |= {part};"]
        case "all":
            return [f"{acc} &= {part};"]
    return [_better(r, of, f"{prefix}{r.name}_best[{at}]", f"{prefix}{r.name}_at[{at}]", name)]


def result(r: Reduction, name: Name) -> str:
    acc = name(f"{r.name}_acc")
    if r.kind.startswith("arg"):
        return name(f"{r.name}_at")
    if r.kind in ("max", "min") and r.dtype in _FLOATS:
        return f"{name(f'{r.name}_nan')} ? {literal(math.nan, r.dtype)} : {acc}"
    return f"{C_TYPES[r.dtype]}({acc})"


def _better(r: Reduction, of: Dtype, value: str, at: str, name: Name) -> str:
    """The first extreme element counts, the first NaN before all."""
    best, where = name(f"{r.name}_best"), name(f"{r.name}_at")
    sign = ">" if r.kind == "argmax" else "<"
    test = f"{value} {sign} {best} || ({value} == {best} && {at} < {where})"
    if of in _FLOATS:
        nan = f"{value} != {value}"
        test = f"{best} == {best} ? {test} || {nan} : {nan} && {at} < {where}"
    return f"if ({test}) {best} = {value}, {where} = {at};"
