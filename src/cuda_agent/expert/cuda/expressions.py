"""Scalar expressions as CUDA C++."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cuda_agent.expert.ir import OPS, Const, Dtype, Let, Op

C_TYPES: Mapping[Dtype, str] = {
    "float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}  # fmt: skip

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
          "ne": "!=", "shl": "<<", "shr": ">>"}  # fmt: skip
_LOGICAL = {"and": ("&&", "&"), "or": ("||", "|"), "xor": ("!=", "^")}
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}
_OWN = {"abs", "sign", "min", "max", "floordiv", "truncdiv", "mod", "fmod", "rsqrt", "sigmoid", "round", "isnan"}
# Names that the generated code uses itself, and macros of the C library.
_TAKEN = {"at", "in", "held", "acc", "val", "j", "Op", "Held", "Values", "Index", "NAN", "INFINITY", "group", "item",
          "auto", "float", "double", "int", "bool", "char", "const", "new", "delete", "this", "default", "register",
          "exp", "log", "sqrt", "pow", "cast", "template", "typename", "class", "struct", "union", "true", "false",
          "and", "or", "not", "xor", "operator", "return", "short", "long", "signed", "unsigned", "e", "high", "low",
          "body", "fetch", "row", "take", "finish", "state", "while", "for", "if", "else", "do", "goto"}  # fmt: skip


def c_name(name: str) -> str:
    return f"{name}_" if name in _TAKEN or name in OPS else name


def literal(value: bool | int | float, dtype: Dtype) -> str:
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in ("float32", "float64"):
        number = float(value)
        if math.isnan(number):
            text = "NAN"
        elif math.isinf(number):
            text = "INFINITY" if number > 0 else "-INFINITY"
        elif dtype == "float32":
            return f"{number!r}f"  # Python's shortest repr always has a point or an exponent
        else:
            return repr(number)
        return text if dtype == "float32" else f"static_cast<double>({text})"
    if dtype in ("float16", "bfloat16"):
        return f"cast<{C_TYPES[dtype]}>({literal(float(value), 'float32')})"
    integer = int(value)
    if integer == -(2**63):
        return "INT64_MIN"
    return f"{C_TYPES[dtype]}({integer}{'LL' if abs(integer) >= 2**31 else ''})"


def lowest(dtype: Dtype, largest: bool) -> str:
    """The identity of max (largest: of min)."""
    sign = "" if largest else "-"
    if dtype in ("float32", "float64"):
        return f"{sign}INFINITY"
    if dtype == "bool":
        return "true" if largest else "false"
    bits = {"int64": 64, "int32": 32, "int16": 16, "int8": 8}.get(dtype)
    if bits is None:
        return "255" if largest else "0"
    return f"INT{bits}_{'MAX' if largest else 'MIN'}"


def operation(let: Let, dtypes: Mapping[str, Dtype], constants: Mapping[str, Const]) -> str:
    """C++ text of `let`, whose value is an `Op`. dtypes: of every name in scope. constants: names that are literals."""
    op = let.value
    assert isinstance(op, Op)
    args = [c_name(a) for a in op.args]
    of = dtypes[op.args[0]]
    if op.fn == "cast":
        return f"cast<{C_TYPES[let.dtype]}>({args[0]})"
    if op.fn == "where":
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if op.fn == "pow":
        return _power(args, of, constants.get(op.args[1]))
    if op.fn in _LOGICAL:
        return f"{args[0]} {_LOGICAL[op.fn][0 if of == 'bool' else 1]} {args[1]}"
    if op.fn == "not":
        return f"!{args[0]}" if of == "bool" else f"static_cast<{C_TYPES[of]}>(~{args[0]})"
    if op.fn in _INFIX:
        text = f"{args[0]} {_INFIX[op.fn]} {args[1]}"
        small = of in ("int16", "int8", "uint8", "bool") and op.fn not in _COMPARISONS
        return f"static_cast<{C_TYPES[of]}>({text})" if small else text
    if op.fn == "square":
        return f"static_cast<{C_TYPES[of]}>({args[0]} * {args[0]})"
    if op.fn == "neg":
        return f"static_cast<{C_TYPES[of]}>(-{args[0]})"
    if op.fn == "reciprocal":
        return f"{literal(1.0, of)} / {args[0]}"
    if op.fn in _OWN:
        if of == "bool" and op.fn in ("min", "max"):
            return f"{args[0]} {'&&' if op.fn == 'min' else '||'} {args[1]}"
        return f"op_{op.fn}({', '.join(args)})"
    if op.fn == "isinf":
        return f"op_abs({args[0]}) == {literal(math.inf, of)}"
    return f"{op.fn}({', '.join(args)})"


def _power(args: list[str], of: Dtype, exponent: Const | None) -> str:
    known = {
        1.0: args[0], 2.0: f"{args[0]} * {args[0]}", 3.0: f"{args[0]} * {args[0]} * {args[0]}",
        4.0: f"({args[0]} * {args[0]}) * ({args[0]} * {args[0]})", -1.0: f"{literal(1.0, of)} / {args[0]}",
    }  # fmt: skip
    return known.get(float(exponent.value), f"pow({args[0]}, {args[1]})") if exponent else f"pow({args[0]}, {args[1]})"
