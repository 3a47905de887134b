"""Reading a captured graph: ATen nodes become tensor primitives, inputs and parameters become buffers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.expert.errors import Unsupported
from cuda_agent.expert.ir import ITEMSIZE, Buffer, Dtype
from cuda_agent.expert.lower import Context, rule_for
from cuda_agent.expert.tensors import Memory, Tensor

_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_TABLE_LIMIT = 64  # longest literal tensor that is unrolled into selects


@dataclass
class Program:
    """results: what forward returns, with tensors at the leaves (or literals).

    layouts: buffer name → order of dims in which an input that is not row-major is read (a dense permutation).
    """

    buffers: dict[str, Buffer] = field(default_factory=dict)
    layouts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    results: Any = None
    values: dict[str, Any] = field(default_factory=dict)


def read_graph(graph: Mapping[str, Any], long_row: int) -> Program:
    """graph: as `capture_source` returns it. long_row: elements from which a row is better read once than kept.

    Raises Unsupported, naming the operator and its line.
    """
    program = Program()
    for entry in graph["inputs"]:
        _add_memory(program, entry, "input", entry["name"])
    for entry in graph["params"]:
        _add_memory(program, entry, "param", entry["target"])
    for entry in graph["constants"]:
        program.values[entry["node"]] = _literal(entry)
    for node in graph["nodes"]:
        program.values[node["name"]] = _lower(program, node, long_row)
    program.results = _results(program, graph["results"])
    return program


def identifier(text: str, taken: Mapping[str, Any]) -> str:
    name = re.sub(r"\W", "_", text)
    name = f"_{name}" if not name or name[0].isdigit() else name
    while name in taken:
        name += "_"
    return name


def _add_memory(program: Program, entry: Mapping[str, Any], role: Any, source: str) -> None:
    dtype, shape, stride = entry["dtype"], tuple(entry["shape"]), tuple(entry["stride"])
    if dtype not in ITEMSIZE:
        raise Unsupported(f"{role} {source} of dtype {dtype}")
    if 0 in shape:
        raise Unsupported(f"{role} {source} without elements")
    order = tuple(sorted(range(len(shape)), key=lambda d: (-stride[d], -shape[d], d)))
    dense, expected = True, 1
    for d in reversed(order):
        dense = dense and (shape[d] == 1 or stride[d] == expected)
        expected *= shape[d]
    name = identifier(source, program.buffers)
    moved = tuple(d for d in order if shape[d] != 1) != tuple(d for d in range(len(shape)) if shape[d] != 1)
    if dense and moved and role == "input":
        program.layouts[name] = order
        stored = tuple(shape[d] for d in order)
        program.buffers[name] = Buffer(name, dtype, stored, role, source)
        back = [order.index(d) for d in range(len(shape))]
        program.values[entry["node"]] = Context(None, "", (dtype,), (shape,), 0).permute(
            Memory(stored, dtype, name), back
        )
        return
    program.buffers[name] = Buffer(name, dtype, shape, role, source)
    program.values[entry["node"]] = Memory(shape, dtype, name)


def _literal(entry: Mapping[str, Any]) -> Tensor:
    """A small tensor literal as selects over its coordinate."""
    shape, dtype = tuple(entry["shape"]), entry["dtype"]
    values = [_plain(v) for v in entry["values"]]
    if len(values) > _TABLE_LIMIT or not values:
        raise Unsupported(f"a tensor literal of {len(values)} elements")
    build = Context(None, "", (dtype,), (shape,), 0)
    if len(set(map(repr, values))) == 1:
        return build.fill(values[0], dtype, shape)
    position = build.iota((len(values),), 0)
    out: Tensor = build.fill(values[-1], dtype, (len(values),))
    for i in range(len(values) - 2, -1, -1):
        out = build.where(build.compare("eq", position, i), values[i], out, dtype=dtype)
    return build.reshape(out, shape)


def _lower(program: Program, node: Mapping[str, Any], long_row: int) -> Any:
    args = [_value(program, a) for a in node["args"]]
    kwargs = {k: _value(program, v) for k, v in node["kwargs"].items()}
    if node["op"] == "getitem":
        picked = args[0][args[1]]
        if picked is None:
            raise Unsupported(f"a secondary result of {node['name']}", node["line"])
        return picked
    name = node["op"].removeprefix("aten.")
    rule = rule_for(name)
    if rule is None:
        raise Unsupported(node["op"].removesuffix(".default"), node["line"])
    outputs = [o for o in node["outputs"] if o is not None]
    for output in outputs:
        if output["dtype"] not in ITEMSIZE:
            raise Unsupported(f"{name} with dtype {output['dtype']}", node["line"])
    if outputs and 0 in outputs[0]["shape"]:  # further ones may be empty: batch norm's saved statistics in eval mode
        raise Unsupported(f"{name} with a result without elements", node["line"])
    dtypes: tuple[Dtype, ...] = tuple(o["dtype"] for o in outputs)
    context = Context(node["line"], name, dtypes, tuple(tuple(o["shape"]) for o in outputs), long_row)
    made = rule(context, *args, **kwargs)
    first = made[0] if isinstance(made, tuple) else made
    if isinstance(first, Tensor) and (first.shape != context.shape or first.dtype != context.dtype):
        if first.shape == context.shape:
            return context.cast(first, context.dtype)
        raise AssertionError(
            f"{name} lowered to {first.dtype}{first.shape}, PyTorch says {context.dtype}{context.shape}"
        )
    return made


def _plain(value: Any) -> Any:
    return _FLOATS[value["float"]] if isinstance(value, dict) and "float" in value else value


def _value(program: Program, value: Any) -> Any:
    if isinstance(value, dict):
        if "ref" in value:
            return program.values[value["ref"]]
        return value["dtype"] if "dtype" in value else _plain(value)
    if isinstance(value, list):
        return [_value(program, v) for v in value]
    return value


def _results(program: Program, structure: Any) -> Any:
    if isinstance(structure, dict):
        for kind, make in (("tuple", tuple), ("list", list)):
            if kind in structure:
                return make(_results(program, v) for v in structure[kind])
        if "dict" in structure:
            return {k: _results(program, v) for k, v in structure["dict"].items()}
    return _value(program, structure)
