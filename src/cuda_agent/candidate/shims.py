"""`torch.utils.cpp_extension.load_inline` and `load`, without a compiler in the runner: sources out, an object back."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from cuda_agent.candidate.build_plan import BuildUnit, Toolchain
from cuda_agent.candidate.candidate import MAX_BYTES
from cuda_agent.candidate.extension import extension_unit
from cuda_agent.candidate.ops_build import HEADERS
from cuda_agent.errors import CandidateError

Request = Callable[[dict[str, Any]], Path]
Text = str | Sequence[str] | None


def install_build_shims(request: Request) -> None:
    """Replace `load_inline` and `load` in torch.

    request: takes the fields of an `ExtensionRequest` as JSON values and returns the path of the built object; it
    raises what the candidate shall see when the build failed.
    """
    import torch.utils.cpp_extension as cpp_extension

    def load_inline(
        name: str,
        cpp_sources: Text,
        cuda_sources: Text = None,
        functions: str | Sequence[str] | Mapping[str, str] | None = None,
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: Sequence[str] | str | None = None,
        with_cuda: bool | None = None,
        is_python_module: bool = True,
        with_pytorch_error_handling: bool = True,
        no_implicit_headers: bool = False,
        **_unused: Any,
    ) -> ModuleType | str:
        files = inline_sources(cpp_sources, cuda_sources, functions, with_pytorch_error_handling, no_implicit_headers)
        root, include = Path.cwd(), _folders(extra_include_paths)
        message = {
            "name": name,
            "files": {**_headers(include, root), **files},
            "sources": list(files),
            "include": [_relative(folder, root) for folder in include],
            "cflags": list(extra_cflags or []),
            "cuda_cflags": list(extra_cuda_cflags or []),
            "ldflags": list(extra_ldflags or []),
            "with_cuda": bool(with_cuda),
        }
        return _load_object(name, request(message), is_python_module)

    def load(
        name: str,
        sources: str | Sequence[str],
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: Sequence[str] | str | None = None,
        build_directory: str | None = None,
        verbose: bool = False,
        with_cuda: bool | None = None,
        is_python_module: bool = True,
        **_unused: Any,
    ) -> ModuleType | str:
        paths = [Path(source) for source in ([sources] if isinstance(sources, (str, os.PathLike)) else sources)]
        root, include = Path.cwd(), _folders(extra_include_paths)
        files = {_relative(path, root): path.read_text() for path in paths}
        message = {
            "name": name,
            "files": {**_headers({*include, *(path.absolute().parent for path in paths)}, root), **files},
            "sources": list(files),
            "include": [_relative(folder, root) for folder in include],
            "cflags": list(extra_cflags or []),
            "cuda_cflags": list(extra_cuda_cflags or []),
            "ldflags": list(extra_ldflags or []),
            "with_cuda": bool(with_cuda),
        }
        return _load_object(name, request(message), is_python_module)

    for shim in (load_inline, load):
        setattr(cpp_extension, shim.__name__, shim)


def unit_of_request(message: Mapping[str, Any], device: str, toolchain: Toolchain) -> BuildUnit:
    """The orchestrator's half: what a shim sent, checked, as a unit. Raises CandidateError."""
    assert device == toolchain.device
    return extension_unit(message, toolchain)


def inline_sources(
    cpp_sources: Text,
    cuda_sources: Text,
    functions: str | Sequence[str] | Mapping[str, str] | None,
    error_handling: bool = True,
    no_implicit_headers: bool = False,
) -> dict[str, str]:
    """What `load_inline` compiles: main.cpp with torch's header and the pybind module over `functions`, and cuda.cu."""
    cpp = _texts(cpp_sources)
    cuda = _texts(cuda_sources)
    if not no_implicit_headers:
        cpp.insert(0, "#include <torch/extension.h>")
        cuda[:0] = ["#include <torch/types.h>", "#include <cuda.h>", "#include <cuda_runtime.h>"] if cuda else []
    if functions is not None:
        named = [functions] if isinstance(functions, str) else functions
        documented = dict(named) if isinstance(named, Mapping) else {function: function for function in named}
        cpp.append("PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {")
        for function, text in documented.items():
            bound = f"torch::wrap_pybind_function({function})" if error_handling else function
            cpp.append(f'm.def("{function}", {bound}, "{text}");')
        cpp.append("}")
    return {"main.cpp": "\n".join(cpp), **({"cuda.cu": "\n".join(cuda)} if cuda else {})}


def _texts(sources: Text) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources or [])


def _folders(paths: Sequence[str] | str | None) -> list[Path]:
    return [Path(path).absolute() for path in ([paths] if isinstance(paths, str) else paths or [])]


def _relative(path: Path, root: Path) -> str:
    absolute = Path(os.path.normpath(path.absolute()))
    if not absolute.is_relative_to(root):
        raise CandidateError(f"{path} is outside the candidate; copy it beside {root.name}/model_new.py.")
    return absolute.relative_to(root).as_posix()


def _headers(folders: Iterable[Path], root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in HEADERS and path.is_file() and path.stat().st_size < MAX_BYTES:
                found[_relative(path, root)] = path.read_text(errors="replace")
    return found


def _load_object(name: str, path: Path, is_python_module: bool) -> ModuleType | str:
    if not is_python_module:
        import torch

        torch.ops.load_library(str(path))
        return str(path)
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{path} is not an extension module")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
