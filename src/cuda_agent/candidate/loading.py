"""Inside the confined runner: a candidate's files on disk, its model class in memory."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from cuda_agent.candidate.candidate import SINGLE_FILE, Form, check_path, find_form
from cuda_agent.candidate.ops import Device, write_ops
from cuda_agent.candidate.shims import install_build_shims
from cuda_agent.errors import CandidateError

__all__ = ["MODULE", "import_model", "install_build_shims", "materialize"]

MODULE = "model_new"


def materialize(
    files: Mapping[str, bytes],
    objects: Mapping[str, Path | bytes],
    into: Path,
    device: Device,
    form: Form | None = None,
) -> None:
    """Write the candidate's tree below `into`: its files, a freshly generated `ops.py`, and the built objects.

    objects: where an object belongs (`BuildUnit.installed`) → the object or its path. form None: found out.
    Raises CandidateError for a path that leaves `into` or a launcher that cannot be bound.
    """
    tree: dict[str, bytes] = dict(files)
    if (form or find_form(files, "the candidate")) == "launchers":
        tree["ops.py"] = write_ops(files, device).encode()
    for path, content in tree.items():
        target = into / check_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    for path, built in objects.items():
        target = into / check_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        if isinstance(built, bytes):
            scratch.write_bytes(built)
        else:
            shutil.copyfile(built, scratch)
        os.replace(scratch, target)  # a mapped object is never written over


def import_model(into: Path, form: Form) -> type:
    """Import model_new.py of the tree at `into` as the module `model_new` and return its `ModelNew`.

    `into` becomes the first entry of sys.path. Raises CandidateError: no file, a syntax error, no class of that name.
    What the module itself raises passes through.
    """
    path = into / SINGLE_FILE
    if not path.is_file():
        raise CandidateError(f"the candidate has no {SINGLE_FILE}; write class ModelNew there.")
    source = path.read_bytes()
    try:
        tree = ast.parse(source, filename=SINGLE_FILE)
    except SyntaxError as error:
        raise CandidateError(f"{SINGLE_FILE}:{error.lineno or 0}: {error.msg}.") from None
    except ValueError as error:  # a null byte
        raise CandidateError(f"{SINGLE_FILE} is not Python source: {error}.") from None
    sys.path.insert(0, str(into))
    sys.dont_write_bytecode = True
    for name in {MODULE, *_top_level_modules(into)}:
        sys.modules.pop(name, None)  # of an earlier candidate
    importlib.invalidate_caches()
    specification = importlib.util.spec_from_file_location(MODULE, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[MODULE] = module
    specification.loader.exec_module(module)
    return _model_class(module, tree)


def _model_class(module: ModuleType, tree: ast.Module) -> type:
    model: Any = getattr(module, "ModelNew", None)
    if isinstance(model, type):
        return model
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    there = f"its classes are {', '.join(classes)}" if classes else "it has no class"
    if model is not None:
        there = f"ModelNew is {type(model).__name__}, not a class"
    raise CandidateError(f"{SINGLE_FILE} defines no class ModelNew ({there}).")


def _top_level_modules(into: Path) -> set[str]:
    files = {path.stem for path in into.glob("*.py")} | {path.name.partition(".")[0] for path in into.glob("*.so")}
    return files | {path.name for path in into.iterdir() if path.is_dir() and any(path.glob("*.py"))}
