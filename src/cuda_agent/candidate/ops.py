"""Generating `ops.py`: one readable Python function per launcher, in a file that needs torch and a compiler only."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Literal

from cuda_agent.candidate.candidate import Candidate
from cuda_agent.candidate.ops_build import HEADERS, read_schedule
from cuda_agent.candidate.prototypes import SCALARS, Launcher, Parameter, read_launchers
from cuda_agent.errors import CandidateError

Device = Literal["cpu", "cuda"]
SUFFIX = {"cpu": ".cpp", "cuda": ".cu"}
_MARKER = "# --- written into ops.py from here on ---\n"

_HEAD = '''\
"""Launchers of {sources} as Python functions over tensors.

Generated from the `extern "C"` prototypes; edit the kernels, not this file. It needs torch and {compiler} only.
Objects are kept in kernels/.build/ and compiled again when a source, a header, kernels/schedule.json or a flag changes.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import operator
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

__all__ = [{exported}]

DEVICE = "{device}"
SOURCES = [{source_list}]
'''

_CUDA_CALLS = '''
def _device(*tensors: Tensor | None) -> int:
    """Index of the GPU that the first tensor is on."""
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.is_cuda:
            return tensor.get_device()
    return torch.cuda.current_device()


def _check_launch(launch_error: Callable[[], bytes | None], name: str) -> None:
    error = launch_error()
    if error is not None:
        raise RuntimeError(f"{name} did not launch its kernel: {error.decode()}")


_current_device = torch._C._cuda_getDevice
_current_stream = torch._C._cuda_getCurrentRawStream
'''


def kernel_sources(files: Mapping[str, bytes], device: Device) -> list[str]:
    """The sources that `device` uses: kernels/*.cpp on the CPU, kernels/*.cu on CUDA. Raises CandidateError if none."""
    found = sorted(
        path
        for path in files
        if PurePosixPath(path).parent.as_posix() == "kernels" and PurePosixPath(path).suffix == SUFFIX[device]
    )
    if not found:
        others = ", ".join(sorted(path for path in files if path.startswith("kernels/"))) or "nothing"
        raise CandidateError(f"no kernels/*{SUFFIX[device]} for device {device}; kernels/ holds {others}.")
    return found


def kernel_headers(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """All headers below kernels/; every source may include every one."""
    return {p: files[p] for p in sorted(files) if p.startswith("kernels/") and PurePosixPath(p).suffix in HEADERS}


def schedule(files: Mapping[str, bytes]) -> dict[str, dict[str, int]]:
    """Macros per source stem, from kernels/schedule.json; empty without one. Raises CandidateError."""
    try:
        return read_schedule(files.get("kernels/schedule.json", b"{}").decode())
    except ValueError as error:
        raise CandidateError(f"kernels/schedule.json cannot be used: {error}.") from None


def launchers_of(files: Mapping[str, bytes], device: Device) -> dict[str, list[Launcher]]:
    """Source path → its launchers. Raises CandidateError: no launcher, an unbindable one, or a name defined twice."""
    found = {path: read_launchers(_text(files, path), path) for path in kernel_sources(files, device)}
    homes: dict[str, Launcher] = {}
    for path, launchers in found.items():
        if not launchers:
            raise CandidateError(f'{path} defines no launcher: a function after `extern "C"`, with a body.')
        for launcher in launchers:
            if launcher.name in _taken_names():
                raise CandidateError(
                    f"{path}:{launcher.line}: ops.py has something else called {launcher.name}; rename the launcher."
                )
            first = homes.setdefault(launcher.name, launcher)
            if first is not launcher:
                raise CandidateError(
                    f"{path}:{launcher.line}: {launcher.name} is also defined in {first.source}:{first.line}; "
                    "rename one of them."
                )
    return found


def write_ops(files: Mapping[str, bytes], device: Device) -> str:
    """The text of ops.py for a launcher candidate's files. Raises CandidateError."""
    found = launchers_of(files, device)
    stems = [PurePosixPath(path).stem for path in found]
    launchers = [launcher for group in found.values() for launcher in group]
    head = _HEAD.format(
        sources=", ".join(found),
        compiler="nvcc" if device == "cuda" else "a C++ compiler",
        exported=", ".join(f'"{launcher.name}"' for launcher in launchers),
        device=device,
        source_list=", ".join(f'"{path}"' for path in found),
    )
    calls = _embedded("ops_call.py")
    if device == "cuda":
        calls = calls.replace("tensor.is_cpu", "tensor.is_cuda") + "\n" + _CUDA_CALLS
    integers = sorted({_check_of(p) for launcher in launchers for p in launcher.arguments} & set(_INTEGERS))
    checks = "".join(f"{name} = _integer({_INTEGERS[name]})\n" for name in integers)
    loads = "\n\n".join(_load(f"_libraries[{i}]", found[path], device) for i, path in enumerate(found))
    assert len(stems) == len(set(stems))
    parts = [
        head,
        "\n# How sources are built and found.\n" + _embedded("ops_build.py") + "\n" + _embedded("ops_load.py"),
        "\n# How arguments are checked.\n" + calls + ("\n\n" + checks if checks else ""),
        "\n# The launchers.\n\n_libraries = load_sources(Path(__file__).resolve().parent, SOURCES, DEVICE)\n\n" + loads,
        "\n\n".join(_function(launcher, device) for launcher in launchers),
    ]
    return "\n".join(part.strip("\n") + "\n\n" for part in parts).rstrip("\n") + "\n"


def standalone(candidate: Candidate, device: Device) -> Candidate:
    """The candidate with its `ops.py`, always generated again; forms without launchers are returned as they are."""
    if candidate.form != "launchers":
        return candidate
    return replace(candidate, files={**candidate.files, "ops.py": write_ops(candidate.files, device).encode()})


_INTEGERS = {
    f"_{sign}int{bits}": f"{bits}{', signed=False' if sign else ''}" for bits in (8, 16, 32, 64) for sign in ("", "u")
}


_ANNOTATIONS = {"float": "float", "double": "float", "bool": "bool"}


@cache
def _taken_names() -> frozenset[str]:
    """Names at the top of every ops.py, and Python's own functions that it uses."""
    text = "".join([_embedded("ops_build.py"), _embedded("ops_load.py"), _embedded("ops_call.py"), _HEAD, _CUDA_CALLS])
    defined = re.findall(r"^(?:def |import )?(\w+)(?:\(| =|$)", text, re.MULTILINE)
    imported = re.findall(r"^from \S+ import (.+)$", text, re.MULTILINE)
    return frozenset([*defined, *(name for line in imported for name in line.split(", ")), *dir(builtins)])


@cache
def _embedded(name: str) -> str:
    return Path(__file__).with_name(name).read_text().partition(_MARKER)[2]


def _text(files: Mapping[str, bytes], path: str) -> str:
    try:
        return files[path].decode()
    except UnicodeDecodeError as error:
        raise CandidateError(f"{path} is not UTF-8 text (byte {error.start}).") from None


def _check_of(parameter: Parameter) -> str:
    if parameter.pointer:
        return "_pointer"
    return "_" + parameter.type.removesuffix("_t").replace("double", "float")


def _argument(parameter: Parameter) -> str:
    if parameter.stream:
        return "_current_stream(device)"
    name = parameter.name
    if parameter.pointer:
        dtype = "None" if parameter.dtype == "any" else f"torch.{parameter.dtype}"
        return f'_pointer({name}, "{name}", {dtype})'
    return f'{_check_of(parameter)}({name}, "{name}")'


def _load(library: str, launchers: list[Launcher], device: Device) -> str:
    lines = []
    for launcher in launchers:
        kinds = ["c_void_p" if p.pointer else SCALARS[p.type] for p in launcher.parameters]
        lines += [
            f"_{launcher.name} = {library}.{launcher.name}",
            f"_{launcher.name}.argtypes = [{', '.join(f'ctypes.{kind}' for kind in kinds)}]",
            f"_{launcher.name}.restype = {'ctypes.c_int' if launcher.returns_status else 'None'}",
        ]
        if device == "cuda":
            lines += [
                f"_{launcher.name}_error = {library}.cuda_agent_launch_error",
                f"_{launcher.name}_error.restype = ctypes.c_char_p",
            ]
    return "\n".join(lines)


def _function(launcher: Launcher, device: Device) -> str:
    name = launcher.name
    signature = []
    for p in launcher.arguments:
        kind = "Tensor | None" if p.pointer else _ANNOTATIONS.get(p.type, "int")
        signature.append(f"{p.name}: {kind}" + (f" = {p.default}" if p.default is not None else ""))
    lines = [
        f"def {name}({', '.join(signature)}) -> None:",
        f'    """{launcher.source}:{launcher.line}: {launcher.text}"""',
    ]
    if len(lines[0]) > 120:
        lines[0] = "\n".join([f"def {name}(", *(f"    {part}," for part in signature), ") -> None:"])
    if len(lines[1]) > 120:
        lines[1] = f'    """{launcher.source}:{launcher.line}\n\n    {launcher.text}\n    """'
    pointers = [p.name for p in launcher.arguments if p.pointer]
    if device == "cuda":
        passed = ", ".join(p.name for p in launcher.arguments)
        lines += [
            f"    device = _device({', '.join(pointers)})",
            "    if device != _current_device():",
            "        with torch.cuda.device(device):",
            f"            return {name}({passed})",
        ]
    call = [f"    {'status = ' if launcher.returns_status else ''}_{name}("]
    call += [f"        {_argument(p)}," for p in launcher.parameters]
    lines += [*call, "    )"] if launcher.parameters else [call[0] + ")"]
    if launcher.returns_status:
        lines += ["    if status != 0:", f'        raise RuntimeError(f"{name} returned {{status}}")']
    if device == "cuda":
        lines.append(f'    _check_launch(_{name}_error, "{name}")')
    return "\n".join(lines) + "\n"
