"""Tracing a task's model into a JSON graph of core ATen operators, without allocating its inputs or parameters.

This executes foreign code: call it in a confined process. Tensors are fake (`torch._subclasses.FakeTensorMode`), so a
task of many gigabytes is traced in no memory, and a CUDA task on a machine without a GPU.
"""

from __future__ import annotations

import builtins
import inspect
import linecache
import math
import re
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cuda_agent.errors import TaskError
from cuda_agent.expert.errors import Unsupported

_FILE = "model.py"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
GRAPH_VERSION = 1


def capture_source(source: str, device: str = "cpu") -> dict[str, Any]:
    """Trace `Model(*get_init_inputs()).eval()` on `get_inputs()` under no_grad; returns the graph as plain JSON.

    source: a task's module (`Model`, `get_inputs`, `get_init_inputs`). device: "cpu" or "cuda", for which kernels are
    meant; no such device is needed, as tracing happens on fake tensors.

    The result: `inputs` (tensor arguments: name, path into get_inputs(), dtype, shape, stride), `scalars` (other
    arguments, by path), `params` (parameters and buffers by state_dict name, loose tensors by attribute path),
    `constants` (small literal tensors with their values), `nodes` (name, op, args, kwargs, line in model.py, outputs
    with dtype, shape, stride), `results` (the structure forward returns), `source` and `device`.

    Raises TaskError if the source does not run, Unsupported if its forward cannot be traced into one static graph.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with _quiet(), torch.no_grad():
        with mode:
            namespace = _execute(source)
            model = _call(lambda: namespace["Model"](*namespace["get_init_inputs"]()), "Model(*get_init_inputs())")
            arguments = _call(lambda: list(namespace["get_inputs"]()), "get_inputs()")
        if not isinstance(model, torch.nn.Module):
            raise TaskError(f"Model in {_FILE} is no torch.nn.Module; derive it from torch.nn.Module")
        model = model.eval()
        arguments = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: _fake(mode, t), arguments)
        program = _export(model, tuple(arguments))
    graph = _encode(program, model, arguments)
    return {"version": GRAPH_VERSION, "device": device, "source": source, **graph}


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's own deprecation warnings are noise to whoever asked for a kernel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _execute(source: str) -> dict[str, Any]:
    module = types.ModuleType("model")
    module.__file__ = _FILE
    linecache.cache[_FILE] = (len(source), None, source.splitlines(True), _FILE)
    _call(lambda: exec(builtins.compile(source, _FILE, "exec"), module.__dict__), "importing the module")
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if name not in module.__dict__:
            raise TaskError(f"{_FILE} defines no {name}; a task needs Model, get_inputs and get_init_inputs")
    return module.__dict__


def _call(function: Any, what: str) -> Any:
    """Foreign code may raise anything; it becomes one sentence with its line."""
    try:
        return function()
    except Exception as error:
        raise TaskError(f"{_FILE}{_at(error)}: {what} raised {type(error).__name__}: {_first_line(error)}") from error


def _at(error: BaseException) -> str:
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is None and isinstance(error, SyntaxError):
        line = error.lineno
    return f":{line}" if line else ""


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else "no message"


def _fake(mode: Any, tensor: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensor

    fake = tensor if isinstance(tensor, FakeTensor) else mode.from_tensor(tensor, static_shapes=True)
    return fake.detach()


def _export(model: Any, arguments: tuple[Any, ...]) -> Any:
    import torch

    try:
        program = torch.export.export(model, arguments, strict=False)
        return program.run_decompositions(torch.export.default_decompositions())
    except Exception as error:  # export wraps what the model raises in its own types
        line = _at(error).lstrip(":")
        frames = [m for m in _FRAME.findall(str(error)) if m[0] == _FILE]
        line = line or (frames[-1][1] if frames else "")
        name = type(error).__name__
        if "DataDependent" in name or "data-dependent" in str(error).lower() or "GuardOnDataDependent" in name:
            raise Unsupported("control flow that depends on data", int(line) if line else None) from error
        raise Unsupported(
            "forward as one static graph",
            int(line) if line else None,
            f"torch.export raised {name}: {_first_line(error)}",
        ) from error


def _encode(program: Any, model: Any, arguments: list[Any]) -> dict[str, Any]:
    import torch
    from torch.export.graph_signature import InputKind, OutputKind

    signature = program.graph_signature
    for spec in signature.output_specs:
        if spec.kind != OutputKind.USER_OUTPUT:
            raise Unsupported(f"a forward that changes {spec.target or 'its inputs'} in place")
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    leaves = torch.utils._pytree.tree_flatten_with_path(arguments)[0]
    names = _argument_names(model, leaves)
    user = [spec for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    inputs, scalars, params, constants = [], [], [], []
    for spec, (path, leaf), name in zip(user, leaves, names, strict=True):
        keys = [_key(k) for k in path]
        if isinstance(leaf, torch.Tensor):
            inputs.append({"node": spec.arg.name, "name": name, "path": keys, **_meta(leaf)})
        else:
            scalars.append({"name": name, "path": keys, "value": _argument(leaf)})
    for spec in signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            continue
        value = placeholders[spec.arg.name].meta["val"]
        entry = {"node": spec.arg.name, "target": spec.target, **_meta(value)}
        literal = program.constants.get(spec.target) if spec.kind == InputKind.CONSTANT_TENSOR else None
        if literal is not None and spec.target.startswith("lifted_tensor"):
            constants.append(entry | {"values": _literal(literal)})
        else:
            kind = {InputKind.PARAMETER: "parameter", InputKind.BUFFER: "buffer"}.get(spec.kind, "attribute")
            params.append(entry | {"kind": kind})
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    nodes = [_node(node) for node in calls if "_assert" not in str(node.target)]  # export's own checks of its inputs
    bad = [node for node in program.graph.nodes if node.op in ("get_attr", "call_method", "call_module")]
    if bad:
        raise Unsupported(f"a nested graph ({bad[0].target})", _line(bad[0]))
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    results = torch.utils._pytree.tree_unflatten(list(output.args[0]), program.call_spec.out_spec)
    return {
        "inputs": inputs,
        "scalars": scalars,
        "params": params,
        "constants": constants,
        "nodes": nodes,
        "results": _structure(results),
    }


def _argument_names(model: Any, leaves: list[Any]) -> list[str]:
    """A C identifier per leaf of get_inputs(): the parameter's name in forward, with keys appended when nested."""
    parameters = list(inspect.signature(model.forward).parameters.values())
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names: list[str] = []
    for path, _ in leaves:
        position = int(_key(path[0]))
        base = plain[position] if position < len(plain) else f"arg{position}"
        name = "_".join([base, *(re.sub(r"\W", "_", str(_key(k))) for k in path[1:])])
        while name in names:
            name += "_"
        names.append(name)
    return names


def _key(key: Any) -> int | str:
    index: int | str = key.idx if hasattr(key, "idx") else key.key
    return index


def _meta(tensor: Any) -> dict[str, Any]:
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": [int(n) for n in tensor.shape],
        "stride": [int(n) for n in tensor.stride()],
    }


def _literal(tensor: Any) -> list[Any]:
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor):
        if tensor.constant is None:
            raise Unsupported("a tensor literal whose values are unknown while tracing")
        tensor = tensor.constant
    return [_argument(v) for v in tensor.detach().cpu().reshape(-1).tolist()]


def _node(node: Any) -> dict[str, Any]:
    import torch

    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    op = "getitem" if node.target.__name__ == "getitem" else str(node.target)
    return {
        "name": node.name,
        "op": op,
        "args": [_argument(a) for a in node.args],
        "kwargs": {k: _argument(v) for k, v in node.kwargs.items()},
        "line": _line(node),
        "outputs": [_meta(v) if isinstance(v, torch.Tensor) else None for v in values],
    }


def _line(node: Any) -> int | None:
    frames = [frame for frame in _FRAME.findall(node.meta.get("stack_trace") or "") if frame[0] == _FILE]
    return int(frames[-1][1]) if frames else None


def _argument(value: Any) -> Any:
    import torch

    if isinstance(value, torch.fx.Node):
        return {"ref": value.name}
    if isinstance(value, (list, tuple)):
        return [_argument(v) for v in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return None  # where and how eager would store it: of no concern to what is computed
    raise Unsupported(f"an argument of type {type(value).__name__}")


def _structure(value: Any) -> Any:
    """What forward returns: {"tuple": […]}, {"list": […]}, {"dict": {…}}, {"ref": node} or a plain literal."""
    if type(value) is tuple:
        return {"tuple": [_structure(v) for v in value]}
    if isinstance(value, list):
        return {"list": [_structure(v) for v in value]}
    if isinstance(value, dict):
        return {"dict": {str(k): _structure(v) for k, v in value.items()}}
    return _argument(value)
