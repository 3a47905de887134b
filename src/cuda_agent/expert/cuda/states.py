"""Reduction states: one C++ struct for all reductions of a pass."""

from __future__ import annotations

from collections.abc import Mapping

from cuda_agent.expert.cuda.expressions import C_TYPES, c_name, literal, lowest
from cuda_agent.expert.ir import ITEMSIZE, Dtype, Kernel, Pass, Reduction


def position_type(kernel: Kernel) -> str:
    """Of positions in argmax and argmin: half the registers where the row allows it."""
    return "int32_t" if kernel.row_size < 2**31 else "int64_t"


def state_bytes(kernel: Kernel, dtypes: Mapping[str, Dtype]) -> int:
    """Upper bound of the size of any pass's state, a multiple of 8; 0 without reductions."""
    total = 0
    for p in kernel.passes:
        sizes = [max(4, ITEMSIZE[r.dtype]) for r in p.reductions if not r.kind.startswith("arg")]
        for r in p.reductions:
            if r.kind.startswith("arg"):
                sizes += [max(4, ITEMSIZE[dtypes[r.value]]), 4 if position_type(kernel) == "int32_t" else 8]
        if 8 in sizes:
            sizes = [8] * len(sizes)  # padded
        total = max(total, -(-sum(sizes) // 8) * 8)
    return total


def state_struct(number: int, p: Pass, kernel: Kernel, dtypes: Mapping[str, Dtype]) -> list[str]:
    """Text of `State<number>`: the identity, `add_<name>` for one element, `merge` for another state."""
    fields: list[str] = []
    adds: list[str] = []
    merges: list[str] = []
    for r in p.reductions:
        name, of = c_name(r.name), C_TYPES[r.dtype]
        if r.kind in ("argmax", "argmin"):
            value, where, flag = C_TYPES[dtypes[r.value]], position_type(kernel), _flag(r)
            limit = "INT32_MAX" if where == "int32_t" else "INT64_MAX"
            fields.append(f"{value} {name}_value = {lowest(dtypes[r.value], r.kind == 'argmin')};")
            fields.append(f"{where} {name} = {limit};")
            adds += [
                f"  DEVICE void add_{name}({value} a, {where} i) {{",
                f"    if (op_precedes<{flag}>(a, i, {name}_value, {name})) {name}_value = a, {name} = i;",
                "  }",
            ]
            merges.append(f"add_{name}(other.{name}_value, other.{name});")
            continue
        fields.append(f"{of} {name} = {_identity(r)};")
        adds.append(f"  DEVICE void add_{name}({of} a) {{ {_update(r, name, 'a')} }}")
        merges.append(_update(r, name, f"other.{name}"))
    widest = max(_wide(r, dtypes) for r in p.reductions)  # whole words, as they travel through shuffles
    lines = [f"struct alignas({widest}) State{number} {{", *(f"  {f}" for f in fields), *adds]
    lines.append(f"  DEVICE void merge(const State{number}& other) {{")
    return [*lines, *(f"    {m}" for m in merges), "  }", "};"]


def _wide(r: Reduction, dtypes: Mapping[str, Dtype]) -> int:
    return max(4, ITEMSIZE[r.dtype], ITEMSIZE[dtypes[r.value]] if r.kind.startswith("arg") else 0)


def _flag(r: Reduction) -> str:
    return "true" if r.kind == "argmax" else "false"


def _identity(r: Reduction) -> str:
    if r.kind in ("max", "min"):
        return lowest(r.dtype, r.kind == "min")
    if r.kind in ("any", "all"):
        return "true" if r.kind == "all" else "false"
    return literal(0 if r.kind == "sum" else 1, r.dtype)


def _update(r: Reduction, name: str, value: str) -> str:
    match r.kind:
        case "sum":
            return f"{name} += {value};"
        case "prod":
            return f"{name} *= {value};"
        case "any":
            return f"{name} = {name} || {value};"
        case "all":
            return f"{name} = {name} && {value};"
        case "max" | "min" if r.dtype == "bool":
            return f"{name} = {name} {'||' if r.kind == 'max' else '&&'} {value};"
        case _:
            return f"{name} = op_{r.kind}({name}, {value});"
