"""Scalar expressions as C++ that vectorises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from cuda_agent.expert.ir import Const, Coordinate, Dtype, Index, Let, Load, Op

C_TYPES: Mapping[Dtype, str] = {
    "float32": "float", "float64": "double", "float16": "half", "bfloat16": "nv_bfloat16", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
          "ne": "!=", "shl": "<<", "shr": ">>"}  # fmt: skip
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_LOGICAL = {"and": ("&", "&"), "or": ("|", "|"), "xor": ("!=", "^")}  # on bool without a branch
_SIMD = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "sigmoid", "rsqrt", "sign", "abs",
         "mod", "fmod", "floordiv", "truncdiv", "round"}  # fmt: skip
_RENAMED = {"min": "simd::minimum", "max": "simd::maximum"}
_SMALL = ("int16", "int8", "uint8", "bool")

# Worth keeping for a later pass rather than computing again.
EXPENSIVE = {"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "erfc", "sigmoid", "pow", "sin",
             "cos", "tan", "atan2", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh"}  # fmt: skip

Name = Callable[[str], str]


def literal(value: bool | int | float, dtype: Dtype) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in ("float32", "float64"):
        number = float(value)
        if math.isnan(number):
            return "float(NAN)" if dtype == "float32" else "double(NAN)"
        if math.isinf(number):
            sign = "" if number > 0 else "-"
            return f"{sign}INFINITY" if dtype == "float32" else f"{sign}double(INFINITY)"
        return f"{number!r}f" if dtype == "float32" else repr(number)
    if dtype in ("float16", "bfloat16"):
        return f"simd::narrow_{'f16' if dtype == 'float16' else 'bf16'}({literal(float(value), 'float32')})"
    integer = int(value)
    if integer == -(2**63):
        return "INT64_MIN"
    return f"{C_TYPES[dtype]}({integer}{'LL' if abs(integer) >= 2**31 else ''})"


def least(dtype: Dtype, largest: bool = False) -> str:
    """The identity of max (largest: of min)."""
    sign = "" if largest else "-"
    if dtype in ("float32", "float64"):
        return f"{sign}{C_TYPES[dtype]}(INFINITY)"
    if dtype == "bool":
        return "true" if largest else "false"
    if dtype == "uint8":
        return "255" if largest else "0"
    bits = {"int64": 64, "int32": 32, "int16": 16, "int8": 8}[dtype]
    return f"INT{bits}_{'MAX' if largest else 'MIN'}"


def affine(offset: int, strides: tuple[int, ...], variables: list[str], extra: list[str] | None = None) -> str:
    terms = [v if s == 1 else f"{s} * {v}" for s, v in zip(strides, variables, strict=True) if s and v != "0"]
    terms += extra or []
    if offset or not terms:
        terms.append(str(offset))
    return " + ".join(terms)


def position(index: Index, variables: list[str], name: Name) -> str:
    indirect = [name(n) if s == 1 else f"{s} * {name(n)}" for n, s in index.indirect]
    return affine(index.offset, index.strides, variables, indirect)


def value_of(
    let: Let, variables: list[str], name: Name, dtypes: Mapping[str, Dtype], constants: Mapping[str, Const],
    pointer: Name,
) -> str:  # fmt: skip
    """C++ text of a let's value. name: how a let is written where this stands. pointer: a buffer's parameter."""
    value = let.value
    if isinstance(value, Const):
        return literal(value.value, let.dtype)
    if isinstance(value, Coordinate):
        return affine(value.offset, value.strides, variables)
    if isinstance(value, Load):
        text = f"{pointer(value.buffer)}[{position(value.index, variables, name)}]"
        return f"{name(value.mask)} ? {text} : {C_TYPES[let.dtype]}{{}}" if value.mask else text
    return _operation(let, value, [name(a) for a in value.args], dtypes[value.args[0]], dtypes, constants)


def _operation(
    let: Let, op: Op, args: list[str], of: Dtype, dtypes: Mapping[str, Dtype], constants: Mapping[str, Const]
) -> str:
    if op.fn == "cast":
        return _cast(args[0], of, let.dtype)
    if op.fn == "where":
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if op.fn == "pow":
        return _power(args, of, constants.get(op.args[1]))
    if op.fn in _LOGICAL:
        text = f"{args[0]} {_LOGICAL[op.fn][0 if of == 'bool' else 1]} {args[1]}"
        return f"{C_TYPES[of]}({text})" if of in _SMALL else text
    if op.fn == "not":
        return f"!{args[0]}" if of == "bool" else f"{C_TYPES[of]}(~{args[0]})"
    if op.fn in _INFIX:
        text = f"{args[0]} {_INFIX[op.fn]} {args[1]}"
        return f"{C_TYPES[of]}({text})" if of in _SMALL and op.fn not in _COMPARISONS else text
    if op.fn == "square":
        return f"{C_TYPES[of]}({args[0]} * {args[0]})"
    if op.fn == "neg":
        return f"{C_TYPES[of]}(-{args[0]})"
    if op.fn == "reciprocal":
        return f"{literal(1.0, of)} / {args[0]}"
    if op.fn == "isnan":
        return f"{args[0]} != {args[0]}"
    if op.fn == "isinf":
        return f"simd::abs({args[0]}) == {literal(math.inf, of)}"
    if op.fn in _RENAMED:
        return f"{_RENAMED[op.fn]}({', '.join(args)})"
    if op.fn in _SIMD:
        return f"simd::{op.fn}({', '.join(args)})"
    return f"std::{op.fn}({', '.join(args)})"


def _cast(text: str, of: Dtype, to: Dtype) -> str:
    if of == to:
        return text
    if of in ("float16", "bfloat16"):
        return _cast(f"simd::widen({text})", "float32", to)
    if to in ("float16", "bfloat16"):
        return f"simd::narrow_{'f16' if to == 'float16' else 'bf16'}(float({text}))"
    return f"{text} != {C_TYPES[of]}(0)" if to == "bool" else f"{C_TYPES[to]}({text})"


def _power(args: list[str], of: Dtype, exponent: Const | None) -> str:
    a = args[0]
    known = {1.0: a, 2.0: f"{a} * {a}", 3.0: f"{a} * {a} * {a}", 4.0: f"({a} * {a}) * ({a} * {a})",
             0.5: f"std::sqrt({a})", -1.0: f"{literal(1.0, of)} / {a}"}  # fmt: skip
    general = f"{C_TYPES[of]}(std::pow({a}, {args[1]}))"
    return known.get(float(exponent.value), general) if exponent is not None else general
