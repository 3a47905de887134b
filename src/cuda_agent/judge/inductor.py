"""The precompiled header of inductor's C++ kernels, made once per machine instead of once per runner.

A runner's /tmp is its own, so that every torch.compile on the CPU would begin with six seconds of g++ on one and the
same header. Inductor names the file by a hash of compiler, flags and contents: one that does not fit is never used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock

from cuda_agent.sandbox import Policy, spawn

_MAKE = "import torch; torch.compile(lambda x: x + 1)(torch.ones(64))"
_LIMIT_BYTES = 1 << 30


def precompiled_headers(cache: Path, environment: Mapping[str, str], stop: int) -> dict[str, Path]:
    """Files by their name in inductor's header folder; none where they cannot be made.

    environment: what runners run with. stop: a descriptor; Stopped is raised once it is readable.
    """
    import torch

    compiler = os.environ.get("CXX", "g++")
    place = hashlib.sha256(f"{torch.__file__} {sys.prefix} {compiler}".encode()).hexdigest()[:8]  # of include paths
    folder = cache / "headers" / f"torch{torch.__version__}-py{platform.python_version()}-{place}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            _make(folder, Path(torch.__file__).parents[1], environment, stop)
    return {path.name: path for path in folder.iterdir()} if folder.is_dir() else {}


def _make(folder: Path, packages: Path, environment: Mapping[str, str], stop: int) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "CXX", "USER", "LOGNAME") if key in os.environ}
        env = {**kept, **environment, "HOME": name, "TMPDIR": name, "TORCHINDUCTOR_CACHE_DIR": str(scratch / "cache")}
        policy = Policy(
            memory_bytes=6 << 30, wall_s=300, file_bytes=_LIMIT_BYTES, writable=(scratch,), readable=(packages,)
        )
        done = spawn([sys.executable, "-c", _MAKE], policy, cwd=scratch, env=env, output_limit=1 << 16, stop=stop)
        made = next(scratch.glob("torchinductor_*/precompiled_headers"), None)
        staged = scratch / "staged"
        staged.mkdir()
        for path in made.iterdir() if made is not None else ():
            if path.is_file():
                shutil.move(path, staged / path.name)
        if done.returncode == 0:  # then also without files, where inductor makes none
            os.rename(staged, folder)


def install_headers(files: Mapping[str, bytes]) -> None:
    """In a runner, before torch.compile: put them where inductor looks."""
    from torch._inductor import codecache

    root = getattr(codecache, "_HEADER_DIR", None)
    if root is None:  # it is a private name; without it each runner makes its own
        return
    for name, content in files.items():
        target = Path(root, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_bytes(content)
