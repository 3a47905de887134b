"""The compilers that candidates are built with: where they are, and how they are called."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cuda_agent.errors import SetupError

# IEEE arithmetic on purpose: -ffast-math would let the compiler drop NaN checks and reassociate sums.
_CXX_FLAGS = (
    "-shared",
    "-fPIC",
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
)
_NVCC_FLAGS = ("-shared", "-std=c++17", "-O3", "-Xcompiler", "-fPIC", "-cudart", "shared")


@dataclass(frozen=True)
class Toolchain:
    """One compiler, ready to turn a source into a shared object.

    compiler: path. version: as it reports itself. arch: `sm_90`, or the CPU's model where flags say `-march=native`.
    flags: base flags of every build. cxx: the host C++ compiler (the compiler itself on the CPU). suffix: of the
    sources.
    """

    kind: Literal["cpu", "cuda"]
    compiler: Path
    version: str
    arch: str
    flags: tuple[str, ...]
    cxx: Path
    suffix: str

    @property
    def key(self) -> str:
        """Hash of all that decides what a source becomes, for content-addressed builds."""
        parts = (self.kind, self.version, self.arch, *self.flags, self.cxx.name)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def command(
        self,
        sources: Sequence[str | Path],
        output: str | Path,
        *,
        macros: Mapping[str, int] | None = None,
        include: Sequence[str | Path] = (),
        extra: Sequence[str] = (),
    ) -> list[str]:
        """The command line that builds `sources` into the shared object `output`."""
        defines = [f"-D{name}={value}" for name, value in sorted((macros or {}).items())]
        folders = [f"-I{folder}" for folder in include]
        host = ["-ccbin", str(self.cxx)] if self.kind == "cuda" else []
        inputs = [str(source) for source in sources]
        return [str(self.compiler), *self.flags, *host, *defines, *folders, *extra, *inputs, "-o", str(output)]

    def report_command(self, sources: Sequence[str | Path], output: str | Path, macros: Mapping[str, int]) -> list[str]:
        """As `command`, and ptxas prints registers, shared memory and spills of every kernel. CUDA only."""
        assert self.kind == "cuda"
        return self.command(sources, output, macros=macros, extra=("-Xptxas", "-v"))


def cpu_toolchain() -> Toolchain:
    """g++, or clang++ where there is no g++; $CXX comes first. Raises SetupError."""
    compiler = _find_cxx()
    version = _version(compiler)
    return Toolchain("cpu", compiler, version, cpu_model(), _CXX_FLAGS, compiler, ".cpp")


def cuda_toolchain(arch: str) -> Toolchain:
    """nvcc for `arch` (`sm_90`). Looks in $CUDA_HOME, $CUDA_PATH, PATH, /usr/local/cuda. Raises SetupError."""
    cxx = _find_cxx()
    for folder in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")):
        if folder and (Path(folder) / "bin/nvcc").exists():
            nvcc = Path(folder) / "bin/nvcc"
            break
    else:
        found = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
        if found is None:
            raise SetupError(
                "no CUDA compiler: nvcc is not in $CUDA_HOME/bin, on PATH or in /usr/local/cuda/bin; install the "
                "toolkit that fits your torch build (`apt-get install cuda-nvcc-13-0` from NVIDIA's repository, or "
                "`conda install -c nvidia cuda-nvcc cuda-cudart-dev`) or set CUDA_HOME"
            )
        nvcc = Path(found)
    return Toolchain("cuda", nvcc, _version(nvcc), arch, (*_NVCC_FLAGS, f"-arch={arch}"), cxx, ".cu")


def missing_python_headers() -> str | None:
    """torch.compile on the CPU builds against Python.h: a sentence that says how to get it, None if it is there."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.exists():
        return None
    package = f"python{sysconfig.get_python_version()}-dev"
    return (
        f"torch.compile needs Python's headers, and {header} is missing: `sudo apt-get install {package}` "
        "(or use a Python that ships them, e.g. `uv python install 3.12`)"
    )


def _find_cxx() -> Path:
    for name in (os.environ.get("CXX"), "g++", "clang++"):
        found = name and shutil.which(name)
        if found:
            return Path(found)
    raise SetupError(
        "no C++ compiler: neither $CXX, g++ nor clang++ is on PATH; install one: `sudo apt-get install g++` on Debian "
        "and Ubuntu, `sudo dnf install gcc-c++` on Fedora"
    )


@functools.cache
def _version(compiler: Path) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetupError(f"the compiler {compiler} does not run ({error}): reinstall it or take it off PATH") from error
    if done.returncode != 0:
        first = (done.stderr or done.stdout).strip().splitlines()[:1]
        raise SetupError(f"the compiler {compiler} does not run ({' '.join(first)}): reinstall it or take it off PATH")
    release = re.search(r"release .*", done.stdout)
    return (release.group() if release else done.stdout.splitlines()[0]).strip()


@functools.cache
def cpu_model() -> str:
    """The CPU's name with a hash of its instruction sets."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^(?:model name|Model)\s*:\s*(.*)$", text, re.MULTILINE)
    features = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    digest = hashlib.sha256((features.group(1) if features else "").encode()).hexdigest()[:8]
    return f"{name.group(1).strip() if name else platform.machine()} ({digest})"
