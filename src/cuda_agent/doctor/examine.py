"""Each check tries the thing itself; none trusts a version number alone."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from cuda_agent.doctor import system
from cuda_agent.errors import SetupError

DISK_NEEDED = 2 * 1024**3  # bytes in the cache folder: builds, baselines, inductor's own cache

_OPENMP = r"""
#include <omp.h>
int main() {
    int n = 0;
    #pragma omp parallel for reduction(+ : n)
    for (int i = 0; i < 1000; ++i) n += 1;
    return n == 1000 && omp_get_max_threads() >= 1 ? 0 : 1;
}
"""

State = Literal["ok", "missing", "limited", "absent"]


class Finding(BaseModel):
    """state: ok; missing: `optimize` cannot work without; limited: it works, with less; absent: not needed here.
    mend: the command that mends it."""

    name: str
    state: State
    detail: str
    mend: str | None = None


class Findings(BaseModel):
    """device: the one that `auto` takes. can_optimize: nothing that it needs is missing."""

    device: Literal["cpu", "cuda"]
    can_optimize: bool
    summary: str
    findings: list[Finding]


def examine() -> Findings:
    """Look at this machine. Takes a few seconds, most of them for importing torch."""
    torch_finding, device = _torch()
    findings = [
        _python(),
        torch_finding,
        *_devices(device),
        *_compilers(device),
        _headers(device),
        _ninja(),
        _venv(),
        *_isolation(),
        _disk(),
    ]
    missing = [finding.name for finding in findings if finding.state == "missing"]
    place = "the GPU" if device == "cuda" else "the CPU"
    if missing:
        summary = f"`cuda-agent optimize` cannot work here yet: {', '.join(missing)} missing."
    else:
        summary = f"`cuda-agent optimize` can work on {place} of this machine."
    return Findings(device=device, can_optimize=not missing, summary=summary, findings=findings)


def _python() -> Finding:
    version = platform.python_version()
    detail = f"{version} ({sys.executable})"
    if sys.version_info[:2] < system.MINIMUM:
        return Finding(name="Python", state="missing", detail=f"{detail}; 3.11 is needed", mend=system.mend("python"))
    return Finding(name="Python", state="ok", detail=detail)


def _torch() -> tuple[Finding, Literal["cpu", "cuda"]]:
    try:
        import torch
    except ImportError as error:
        return Finding(name="torch", state="missing", detail=str(error), mend="python3 scripts/setup.py"), "cpu"
    build = f"CUDA {torch.version.cuda} build" if torch.version.cuda else "CPU build"
    detail = f"{torch.__version__} ({build})"
    has_gpu = torch.cuda.is_available()
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 9):
        finding = Finding(name="torch", state="missing", detail=f"{detail}; 2.9 is needed", mend="pip install -U torch")
    elif system.has_nvidia_gpu() and not has_gpu:
        why = "has no CUDA" if not torch.version.cuda else "does not reach the GPU; is the driver new enough for it?"
        mend = None if torch.version.cuda else "rm -r .venv && CUDA_AGENT_TORCH=cuda python3 scripts/setup.py"
        finding = Finding(name="torch", state="limited", detail=f"{detail}: {why}", mend=mend)
    else:
        finding = Finding(name="torch", state="ok", detail=detail)
    return finding, "cuda" if has_gpu else "cpu"


def _devices(device: str) -> Iterator[Finding]:
    from cuda_agent.backends.cpu import cpu_model

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding(name="CPU", state="ok", detail=f"{cpu_model()}, {cores} cores")
    if device == "cuda":
        import torch

        for index in range(torch.cuda.device_count()):
            facts = torch.cuda.get_device_properties(index)
            detail = f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, sm_{facts.major}{facts.minor}"
            yield Finding(name=f"GPU {index}", state="ok", detail=detail)
    elif not system.has_nvidia_gpu():
        yield Finding(name="GPU", state="absent", detail="no NVIDIA GPU; kernels are written in C++ for the CPU")


def _compilers(device: str) -> Iterator[Finding]:
    from cuda_agent.candidate import Toolchain

    try:
        host = Toolchain.detect("cpu")
    except SetupError as error:
        yield Finding(name="C++ compiler", state="missing", detail=str(error), mend=system.mend("cxx"))
    else:
        yield Finding(name="C++ compiler", state="ok", detail=f"{host.compiler}: {host.version}")
        yield _openmp(str(host.compiler))
    try:
        nvcc = Toolchain.detect("cuda", arch="sm_90")
    except SetupError as error:
        state: State = "missing" if device == "cuda" else "absent"
        detail = str(error) if device == "cuda" else "not needed without a GPU"
        yield Finding(name="nvcc", state=state, detail=detail)
    else:
        yield Finding(name="nvcc", state="ok", detail=f"{nvcc.compiler}: {nvcc.version}")


def _openmp(compiler: str) -> Finding:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "openmp.cpp", Path(folder) / "openmp"
        source.write_text(_OPENMP)
        command = [compiler, "-fopenmp", str(source), "-o", str(program)]
        built = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if built.returncode == 0 and subprocess.run([program], timeout=60).returncode == 0:
            return Finding(name="OpenMP", state="ok", detail="compiles and runs")
    first = (built.stderr.strip().splitlines() or ["the program built with it does not run"])[0]
    mend = system.mend("cxx") if "clang" not in compiler else "sudo apt install libomp-dev"
    return Finding(name="OpenMP", state="missing", detail=first, mend=mend)


def _headers(device: str) -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return Finding(name="Python.h", state="ok", detail=str(header))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Finding(
        name="Python.h",
        state="missing",
        detail=f"{header} is not there; torch.compile builds against it",
        mend=system.mend("headers", version),
    )


def _ninja() -> Finding:
    from importlib.util import find_spec

    if shutil.which("ninja") or find_spec("ninja"):
        return Finding(name="ninja", state="ok", detail=shutil.which("ninja") or "as a Python package")
    return Finding(name="ninja", state="limited", detail="not installed", mend="pip install ninja")


def _venv() -> Finding:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = system.probe_interpreter(sys.executable)
    if found is not None and found.venv:
        return Finding(name="venv", state="ok", detail="python -m venv works")
    return Finding(name="venv", state="limited", detail="no ensurepip", mend=system.mend("venv", version))


def _isolation() -> Iterator[Finding]:
    """Less isolation is a weaker verdict, and no reason not to work: the verdict names the level that was reached."""
    if sys.platform != "linux":
        yield Finding(name="isolation", state="limited", detail="candidates run unconfined: Linux only")
        return
    from cuda_agent.sandbox import probe

    for name, offer in probe().items():
        label = "isolation: " + name.replace("_", " ")
        if offer.available:
            yield Finding(name=label, state="ok", detail=offer.detail or "works")
        else:
            yield Finding(name=label, state="limited", detail=offer.reason or "not offered", mend=offer.mend)


def _disk() -> Finding:
    from cuda_agent.paths import cache_dir

    folder = cache_dir()
    free = shutil.disk_usage(folder).free
    detail = f"{folder}: {free / 1e9:.1f} GB free"
    if free < DISK_NEEDED:
        mend = "set CUDA_AGENT_CACHE to a folder on a larger disk"
        return Finding(name="cache", state="limited", detail=f"{detail}, {DISK_NEEDED / 1e9:.0f} GB wanted", mend=mend)
    return Finding(name="cache", state="ok", detail=detail)
