"""What a generated `ops.py` does when imported: find each source's shared object, or compile it, and load it.

Everything below the marker is written into `ops.py`; see `ops_build.py`.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from cuda_agent.candidate.ops_build import (
    HEADERS,
    LAUNCH_STATUS,
    compile_command,
    compiler_flags,
    find_compiler,
    object_name,
    read_schedule,
)

# --- written into ops.py from here on ---


def load_sources(folder: Path, sources: Sequence[str], device: str) -> list[ctypes.CDLL]:
    """Load the shared objects of `sources` (paths below `folder`), after compiling those that are missing."""
    arch = ""
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        arch = f"sm_{major}{minor}"
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda source: _built(folder, source, device, arch), sources))
    return [ctypes.CDLL(str(path)) for path in built]


def _built(folder: Path, source: str, device: str, arch: str) -> Path:
    kernels = folder / "kernels"
    schedule = kernels / "schedule.json"
    stem = Path(source).stem
    macros = read_schedule(schedule.read_text()).get(stem, {}) if schedule.exists() else {}
    content = (folder / source).read_bytes()
    headers = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in kernels.rglob("*")
        if path.suffix in HEADERS and ".build" not in path.parts
    }
    flags = compiler_flags(content.decode(errors="replace"), device, arch)
    target = kernels / ".build" / object_name(stem, content, headers, macros, flags)
    if not target.exists():
        _compile(folder, source, target, find_compiler(device), flags, macros)
    return target


def _compile(folder: Path, source: str, target: Path, compiler: str, flags: list[str], macros: dict[str, int]) -> None:
    target.parent.mkdir(exist_ok=True)
    # Compiled beside the target and renamed into place: another process may be doing the same.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        (Path(scratch) / "launch_status.h").write_text(LAUNCH_STATUS)
        output = os.path.join(scratch, target.name)
        command = compile_command(compiler, flags, macros, str((folder / source).resolve()), output)
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{source} does not compile:\n{' '.join(command)}\n{done.stdout}{done.stderr}")
        os.replace(output, target)
