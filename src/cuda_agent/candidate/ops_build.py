"""How one launcher source becomes a shared object: flags, macros, names.

Everything below the marker is also written into every generated `ops.py`, so that the result folder stands alone and
the judge and the folder agree on names by construction. Hence: standard library only, and no import from this package.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from pathlib import Path

# --- written into ops.py from here on ---

HEADERS = (".h", ".hpp", ".hh", ".cuh", ".inc", ".inl")
# Neither of the last two changes a result; without them sqrt is not vectorised and no comparison is if-converted.
CPU_FLAGS = (
    "-O3",
    "-march=native",
    "-fopenmp",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fno-math-errno",
    "-fno-trapping-math",
)
CUDA_FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler=-fPIC", "-Xptxas=-v")

# What a source may ask for in its first lines: `// cuda-agent: flags=-ffast-math,-funroll-loops arch=sm_90a`
CPU_EXTRA = (
    r"-ffast-math|-f(no-)?(math-errno|trapping-math|signed-zeros|unroll-loops|finite-math-only|associative-math"
    r"|reciprocal-math|tree-vectorize|strict-aliasing)|-ffp-contract=(fast|on|off)|-mprefer-vector-width=(128|256|512)"
    r"|-O[123]|-std=(c|gnu)\+\+(17|20)"
)
CUDA_EXTRA = (
    r"--?use_fast_math|--?maxrregcount=\d+|--?extra-device-vectorization|--?(expt-relaxed-constexpr|extended-lambda)"
    r"|--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)|-std=c\+\+(17|20)"
)

# Included before every CUDA source: each object has its own CUDA runtime, so a failed launch must be asked for there.
LAUNCH_STATUS = """\
#include <cuda_runtime.h>
extern "C" const char* cuda_agent_launch_error() {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
"""


def requested(text: str) -> dict[str, str]:
    """Settings in `// cuda-agent: key=value …` comments among the first 20 lines of a source."""
    found: dict[str, str] = {}
    for line in text.splitlines()[:20]:
        comment = re.match(r"\s*//\s*cuda-agent:\s*(.*)", line)
        if comment:
            found.update(re.findall(r"(\w+)=(\S+)", comment.group(1)))
    return found


def compiler_flags(text: str, device: str, arch: str) -> list[str]:
    """All flags for a source. arch: `sm_90` and the like, of the GPU that is there; unused on the CPU."""
    wants = requested(text)
    unknown = set(wants) - {"flags", "arch"}
    if unknown:
        raise ValueError(f"`// cuda-agent: {min(unknown)}=` is not known; there are flags= and arch=")
    extra = [flag for flag in wants.get("flags", "").split(",") if flag]
    for flag in extra:
        if not re.fullmatch(CPU_EXTRA if device == "cpu" else CUDA_EXTRA, flag):
            raise ValueError(f"`// cuda-agent: flags={flag}` is not among the flags a source may ask for")
    if device == "cpu":
        return [*CPU_FLAGS, *extra]
    if wants.get("arch", arch).rstrip("af") == arch:  # sm_90a: the instructions of that GPU alone, WGMMA among them
        arch = wants.get("arch", arch)
    return [*CUDA_FLAGS, f"-arch={arch}", *extra]


def read_schedule(text: str) -> dict[str, dict[str, int]]:
    """`{"stem": {"MACRO": 4}}` of kernels/schedule.json."""
    schedule = json.loads(text)
    if not isinstance(schedule, dict) or not all(isinstance(macros, dict) for macros in schedule.values()):
        raise ValueError('it must look like {"rmsnorm": {"VEC": 4}}')
    for stem, macros in schedule.items():
        for macro, value in macros.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", macro) or type(value) is not int:
                raise ValueError(f"{stem}: {macro!r}: {value!r} is not a macro name with an integer")
    return schedule


def object_name(stem: str, source: bytes, headers: dict[str, bytes], macros: dict[str, int], flags: list[str]) -> str:
    """`<stem>-<hash>.so`; the hash covers everything that decides the object's content, but the compiler."""
    host = _host_instructions() if "-march=native" in flags else ""
    digest = hashlib.sha256(json.dumps([sorted(macros.items()), flags, host]).encode())
    for content in (source, *(part for path in sorted(headers) for part in (path.encode(), headers[path]))):
        digest.update(b"%d:" % len(content) + content)
    return f"{stem}-{digest.hexdigest()[:16]}.so"


def compile_command(compiler: str, flags: list[str], macros: dict[str, int], source: str, output: str) -> list[str]:
    """Run it where `source`'s path starts. On CUDA `launch_status.h` must lie there too."""
    included = ["-include", "launch_status.h"] if os.path.basename(compiler).startswith("nvcc") else []
    defines = [f"-D{macro}={value}" for macro, value in sorted(macros.items())]
    return [compiler, *flags, *defines, *included, source, "-o", output]


def find_compiler(device: str) -> str:
    """Path of the C++ compiler ($CXX, g++, clang++) or of nvcc ($CUDACXX, on the path, in /usr/local/cuda)."""
    names = [os.environ.get("CXX"), "g++", "clang++"]
    if device == "cuda":
        home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        names = [os.environ.get("CUDACXX"), "nvcc", f"{home}/bin/nvcc"]
    for name in names:
        path = shutil.which(name) if name else None
        if path:
            return path
    raise RuntimeError(
        "no CUDA compiler: nvcc is neither on PATH nor in /usr/local/cuda: `sudo apt-get install cuda-nvcc-13-0` from "
        "NVIDIA's repository, or set CUDACXX to the path of one"
        if device == "cuda"
        else "no C++ compiler: neither $CXX, g++ nor clang++ is on PATH: `sudo apt-get install g++` on Debian and "
        "Ubuntu"
    )


def _host_instructions() -> str:
    """What `-march=native` means here, so that a folder carried to another machine is compiled again."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
