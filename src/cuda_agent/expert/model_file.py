"""`model_new.py` for a plan: the original's constructor, and a forward that allocates and launches."""

from __future__ import annotations

import ast
import keyword
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.expert.emitter import Emitter
from cuda_agent.expert.errors import Unsupported
from cuda_agent.expert.ir import Buffer, Kernel
from cuda_agent.expert.plan import Planned

_RESERVED = {"self", "torch", "ops", "expect"}

_EXPECT = '''
def expect(tensor, name, shape, dtype):
    """The tensor, contiguous, if it is what the kernels were made for."""
    if tensor.shape != shape or tensor.dtype != dtype:
        raise ValueError(
            f"these kernels were made for {name} of shape {shape} and {dtype}, "
            f"not {tuple(tensor.shape)} and {tensor.dtype}; optimize the model again for other inputs"
        )
    return tensor.contiguous()
'''


def model_file(source: str, graph: Mapping[str, Any], planned: Planned, emitter: Emitter) -> str:
    """Python text. source: of the task, whose constructor is reused word for word. Raises Unsupported."""
    original = _Original(source)
    body = _forward(graph, planned, emitter, original.parameters)
    parts = [
        '"""Made by the built-in expert of cuda-agent: kernels/ has the work, ops.py calls it."""\n',
        *original.kept,
        "import ops" + ("\nimport torch" if not original.imports_torch else "") + "\n",
        _EXPECT,
        f"\nclass ModelNew({original.bases}):",
        *(textwrap.indent(part, "    ") + "\n" for part in original.members),
        f"    def forward({original.signature}):",
        textwrap.indent("\n".join(body), "        "),
    ]
    return "\n".join(parts) + "\n"


class _Original:
    """What of model.py goes on into model_new.py."""

    def __init__(self, source: str) -> None:
        self._source = source
        tree = ast.parse(source)
        top = {name: node for node in tree.body for name in _defined(node)}
        model = top.get("Model")
        assert isinstance(model, ast.ClassDef)
        self.bases = ", ".join(ast.unparse(base) for base in model.bases) or "torch.nn.Module"
        methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)}
        forward = methods.get("forward")
        if forward is None:
            raise Unsupported("a Model whose forward is inherited", model.lineno)
        self.signature = ast.unparse(_plain(forward.args))
        self.parameters = [a.arg for a in (*forward.args.posonlyargs, *forward.args.args)][1:]
        members = self._members(model, methods)
        self.members = [self._text(node).replace("super(Model, self)", "super()") for node in members]
        wanted = _closure([*members, *model.bases], top) - {"Model"}
        nodes = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) or wanted & set(_defined(n))]
        self.kept = [self._text(node) + ("\n" if not _is_import(node) else "") for node in nodes]
        self.imports_torch = any("torch" in _defined(n) for n in nodes if isinstance(n, ast.Import))

    def _members(self, model: ast.ClassDef, methods: Mapping[str, ast.FunctionDef]) -> list[ast.stmt]:
        """The constructor, what it calls, and the class's own constants."""
        needed, pending = set[str](), ["__init__"]
        while pending:
            name = pending.pop()
            if name in methods and name not in needed:
                needed.add(name)
                pending += [n.attr for n in ast.walk(methods[name]) if isinstance(n, ast.Attribute)]
        needed.discard("forward")
        return [
            node
            for node in model.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            or (isinstance(node, ast.FunctionDef) and node.name in needed)
        ]

    def _text(self, node: ast.AST) -> str:
        assert isinstance(node, ast.stmt)
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        lines = self._source.splitlines()[first - 1 : node.end_lineno]
        return textwrap.dedent("\n".join(lines))


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _plain(arguments: ast.arguments) -> ast.arguments:
    """Without annotations, whose names need not exist here."""
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return arguments


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return []


def _closure(roots: Sequence[ast.AST], top: Mapping[str, ast.stmt]) -> set[str]:
    """Top-level names that these nodes lead to."""
    found, pending = set[str](), list(roots)
    while pending:
        for node in ast.walk(pending.pop()):
            if isinstance(node, ast.Name) and node.id in top and node.id not in found:
                found.add(node.id)
                pending.append(top[node.id])
    return found


def _forward(graph: Mapping[str, Any], planned: Planned, emitter: Emitter, parameters: list[str]) -> list[str]:
    plan = planned.plan
    buffers = {b.name: b for b in plan.buffers}
    names = {b.name: _variable(b.name) for b in plan.buffers}
    entries = {entry["name"]: entry for entry in graph["inputs"]}
    lines = []
    for entry in graph["scalars"]:
        argument = _access(parameters, entry["path"])
        lines += [
            f"if {argument} != {entry['value']!r}:",
            f'    raise ValueError(f"made for {entry["name"]} = {entry["value"]!r}, not {{{argument}}}")',
        ]
    used = {b for kernel in plan.kernels for b in kernel.reads} | set(plan.results)
    for buffer in plan.buffers:
        if buffer.role == "input" and buffer.name in used:
            entry = entries[buffer.source]
            argument = _access(parameters, entry["path"])
            shape, dtype = tuple(entry["shape"]), entry["dtype"]
            order = planned.program.layouts.get(buffer.name)
            moved = argument if order is None else f"{argument}.permute{order}"
            stored = shape if order is None else tuple(shape[d] for d in order)
            lines.append(f'{names[buffer.name]} = expect({moved}, "{buffer.source}", {stored}, torch.{dtype})')
        elif buffer.role in ("param", "const") and buffer.name in used:
            lines.append(f"{names[buffer.name]} = self.{buffer.source}")
    device = next((names[b.name] for b in plan.buffers if b.role in ("input", "param") and b.name in used), None)
    if device is None:
        raise Unsupported("a forward that reads no tensor")
    made = [b for b in plan.buffers if b.role in ("temp", "output")]
    for buffer in made:
        lines.append(_empty(names[buffer.name], buffer, device))
    for kernel in plan.kernels:
        assert isinstance(kernel, Kernel)
        workspaces = emitter.workspaces(plan, kernel)
        for buffer in workspaces:
            lines.append(_empty(_variable(buffer.name), buffer, device))
        arguments = [names[b] for b in (*kernel.reads, *kernel.writes)] + [_variable(b.name) for b in workspaces]
        lines.append(f"ops.{kernel.name}({', '.join(arguments)})")
    results = [names[name] for name in plan.results if name in buffers]
    lines.append(f"return {_structure(planned.results, results)}")
    return lines


def _empty(name: str, buffer: Buffer, device: str) -> str:
    return f"{name} = torch.empty({buffer.shape}, dtype=torch.{buffer.dtype}, device={device}.device)"


def _access(parameters: list[str], path: Sequence[int | str]) -> str:
    position, *keys = path
    assert isinstance(position, int)
    return parameters[position] + "".join(f"[{key!r}]" for key in keys)


def _variable(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name in _RESERVED else name


def _structure(result: Any, names: list[str]) -> str:
    kind, body = result
    if kind == "tensor":
        return names[body]
    if kind == "dict":
        return "{" + ", ".join(f"{key!r}: {_structure(item, names)}" for key, item in body.items()) + "}"
    if kind == "literal":
        return repr(body)
    items = ", ".join(_structure(item, names) for item in body)
    return f"[{items}]" if kind == "list" else f"({items}{',' if len(body) == 1 else ''})"
