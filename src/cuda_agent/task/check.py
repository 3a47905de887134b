"""Static checks of a task's source: text in, TaskError out. Nothing here runs it."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterable, Iterator

from cuda_agent.errors import TaskError

REQUIRED = ("Model", "get_inputs", "get_init_inputs")
_HOW = {
    "Model": "add `class Model(torch.nn.Module)` with a `forward`",
    "get_inputs": "add `def get_inputs()` that returns the list of forward's arguments",
    "get_init_inputs": "add `def get_init_inputs()` that returns the list of Model's arguments (`return []` if none)",
}


def check_source(source: str, origin: str) -> None:
    """Raise TaskError unless `source` parses and defines the three names as a task must. Never runs it."""
    try:
        tree = _parse(source)
    except SyntaxError as error:
        raise TaskError(f"{origin}:{error.lineno or 1}: syntax error: {error.msg}.") from None
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes; nesting too deep for the parser
        raise TaskError(f"{origin}:1: Python cannot parse this file: {error or 'it is nested too deeply'}.") from None
    for module, line in _imports(tree):
        if module.startswith("."):
            raise TaskError(f"{origin}:{line}: relative import; a task is one file, so paste in what it needs.")
    defined = _module_names(tree)
    missing = [name for name in REQUIRED if name not in defined]
    if missing == list(REQUIRED) and "ModelNew" in defined:
        raise TaskError(
            f"{origin}: this is a candidate (`ModelNew`), not a task; pass the file with `Model` as the task."
        )
    if missing:
        raise TaskError(f"{origin}: {listed(missing)} missing; {'; '.join(_HOW[name] for name in missing)}.")
    _check_model(defined["Model"], origin)
    for name in ("get_inputs", "get_init_inputs"):
        _check_getter(defined[name], name, origin)


def missing_packages(source: str) -> list[tuple[str, int]]:
    """Top-level packages that the source imports and that are not installed here, each with the first line that
    imports it. Imports guarded by `try … except ImportError` or `if TYPE_CHECKING` do not count."""
    found: dict[str, int] = {}
    for module, line in _imports(_parse(source)):
        package = module.partition(".")[0]
        if package not in found and not _installed(package):
            found[package] = line
    return list(found.items())


def listed(names: Iterable[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " and " + quoted[-1]


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():  # `"\d"` in a docstring is no concern of whoever reads our stderr
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        return ast.parse(source)


def _module_names(tree: ast.Module) -> dict[str, ast.stmt]:
    """Names bound at module level, with the statement that binds each last; looks into `if`, `try` and `with`."""
    names: dict[str, ast.stmt] = {}

    def visit(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                names[node.name] = node
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names.update({alias.asname or alias.name.partition(".")[0]: node for alias in node.names})
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                stored = (leaf for target in targets for leaf in ast.walk(target) if isinstance(leaf, ast.Name))
                names.update({leaf.id: node for leaf in stored if isinstance(leaf.ctx, ast.Store)})
            else:
                for field in ("body", "orelse", "finalbody"):
                    visit(getattr(node, field, []))
                for handler in getattr(node, "handlers", []):
                    visit(handler.body)

    visit(tree.body)
    return names


def _check_model(node: ast.stmt, origin: str) -> None:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise TaskError(
            f"{origin}:{node.lineno}: `Model` is a function; it must be a class derived from torch.nn.Module."
        )
    if not isinstance(node, ast.ClassDef):
        return  # bound by an assignment or an import: only running it can tell
    if not node.bases:
        raise TaskError(f"{origin}:{node.lineno}: `Model` must derive from torch.nn.Module: `class Model(nn.Module)`.")
    plain = len(node.bases) == 1 and ast.unparse(node.bases[0]) in ("nn.Module", "torch.nn.Module", "Module")
    bound = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    bound |= {t.id for n in node.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    if plain and "forward" not in bound:
        raise TaskError(f"{origin}:{node.lineno}: `Model` has no `forward`; add `def forward(self, …)`.")


def _check_getter(node: ast.stmt, name: str, origin: str) -> None:
    if isinstance(node, (ast.ClassDef, ast.AsyncFunctionDef)):
        raise TaskError(f"{origin}:{node.lineno}: `{name}` must be a plain function.")
    if not isinstance(node, ast.FunctionDef):
        return
    arguments = node.args
    required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    required += sum(default is None for default in arguments.kw_defaults)
    if required:
        raise TaskError(f"{origin}:{node.lineno}: `{name}` is called without arguments; give its parameters defaults.")
    if not any(isinstance(child, (ast.Return, ast.Yield, ast.Raise)) for child in ast.walk(node)):
        raise TaskError(f"{origin}:{node.lineno}: `{name}` returns nothing; it must return a list.")


def _imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Absolute imports anywhere in the source that must succeed, with their lines."""

    def visit(node: ast.AST) -> Iterator[tuple[str, int]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "", node.lineno) if not node.level else ("." * node.level, node.lineno)
        elif isinstance(node, ast.Try) and any(_catches_import_error(handler) for handler in node.handlers):
            for child in (*node.orelse, *node.finalbody):
                yield from visit(child)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from visit(child)
        else:
            for sub in ast.iter_child_nodes(node):
                yield from visit(sub)

    return visit(tree)


def _catches_import_error(handler: ast.ExceptHandler) -> bool:
    caught = "" if handler.type is None else ast.unparse(handler.type)
    return not caught or bool(re.search(r"\b(ImportError|ModuleNotFoundError|Exception|BaseException)\b", caught))


def _installed(package: str) -> bool:
    if package in sys.stdlib_module_names or package in sys.modules:
        return True
    return importlib.util.find_spec(package) is not None
