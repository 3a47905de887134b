"""What inductor compiles for itself on the CPU, made once per machine instead of once per runner.

A runner's /tmp is its own, so that every torch.compile would begin with six seconds of g++ on one and the same header,
and a second or two on probes of the instruction set. Inductor names these files by hashes of compiler, flags and
contents: one that does not fit is never used.
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
_HEADERS = "precompiled_headers/"
_KERNEL = ".main.so"  # of the model that was compiled to have the rest made
_LIMIT_BYTES = 1 << 30


def own_files(cache: Path, environment: Mapping[str, str], stop: int) -> dict[str, Path]:
    """Files by their path in inductor's cache folder; none where they cannot be made.

    environment: what runners run with. stop: a descriptor; Stopped is raised once it is readable.
    """
    import torch

    compiler = os.environ.get("CXX", "g++")
    place = hashlib.sha256(f"{torch.__file__} {sys.prefix} {compiler}".encode()).hexdigest()[:8]  # of include paths
    folder = cache / "inductor" / f"torch{torch.__version__}-py{platform.python_version()}-{place}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not folder.is_dir():
            _make(folder, Path(torch.__file__).parents[1], environment, stop)
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def _make(folder: Path, packages: Path, environment: Mapping[str, str], stop: int) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "CXX", "USER", "LOGNAME") if key in os.environ}
        env = {**kept, **environment, "HOME": name, "TMPDIR": name}
        policy = Policy(
            memory_bytes=6 << 30, wall_s=300, file_bytes=_LIMIT_BYTES, writable=(scratch,), readable=(packages,)
        )
        done = spawn([sys.executable, "-c", _MAKE], policy, cwd=scratch, env=env, output_limit=1 << 16, stop=stop)
        staged = scratch / "staged"
        staged.mkdir()
        for made in scratch.glob("torchinductor_*"):
            for path in (*made.glob(f"{_HEADERS}*"), *made.glob("??/*.so")):
                if path.is_file() and not path.name.endswith(_KERNEL):
                    target = staged / path.relative_to(made)
                    target.parent.mkdir(exist_ok=True)
                    shutil.move(path, target)
        if done.returncode == 0:  # then also without files, where inductor makes none
            os.rename(staged, folder)


def install(files: Mapping[str, bytes]) -> None:
    """In a runner, before torch.compile: put them where inductor looks."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    for name, content in files.items():
        root = default_cache_dir() if name.startswith(_HEADERS) else cache_dir()  # headers outlive a fresh cache
        target = Path(root, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.write_bytes(content)
