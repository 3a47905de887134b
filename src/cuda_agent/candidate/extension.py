"""Python extensions over torch's headers: the published workdir, and what `load_inline` and `load` ask for.

An `ExtensionRequest` is what foreign code may say; it arrives in the orchestrator as JSON from a process that may be
hostile. So paths, the module's name and every flag are checked here, and the command line is ours.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cuda_agent.candidate.build_plan import BuildUnit, Toolchain
from cuda_agent.candidate.candidate import MAX_BYTES, MAX_FILES, check_path
from cuda_agent.errors import CandidateError, SetupError

PARALLEL_COMPILERS = 4  # each takes about 1 GB with torch's headers

# torch's headers ask for C++20 since 2.13; flags of older code that ask for less are left out.
_COMMON = ("-std=c++20",)
_NVCC = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
    "--expt-relaxed-constexpr",
    "-Xptxas=-v",
)
_HOST_FLAGS = re.compile(
    r"-O([0-3]|fast|s)|-std=(c|gnu)\+\+2[03abc]|-g[0-3]?|-w|-pthread|-fopenmp|-W[a-z][\w-]*(=\w+)?"
    r"|-f(?!plugin|dump|profile|compare|callgraph|stack-usage)[a-z][\w-]*(=[\w-]+)?"
    r"|-m(arch|tune|cpu|prefer-vector-width)=[\w.+-]+|-m(no-)?(avx\w*|sse[\w.]*|fma|bmi2?|f16c|amx[\w-]*)|-[DU]\w+(=[\w.+-]*)?"
)
_DEVICE_FLAGS = re.compile(
    r"--?use_fast_math|--?maxrregcount=\d+|--?extra-device-vectorization|--?expt-(relaxed-constexpr|extended-lambda)"
    r"|--?extended-lambda|--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)|-lineinfo|--generate-line-info|-O[0-3]"
    r"|-std=c\+\+2[03]|-[DU]\w+(=[\w.+-]*)?|-Xptxas=[\w,=-]+|--?threads=?\d+|-t=?\d+|-w|--?restrict|-diag-suppress=[\d,]+"
)
_LIBRARIES = re.compile(
    r"-l(cuda|cudart|cublas|cublasLt|cudnn|curand|cusparse|cufft|cusolver|nvrtc|gomp|m|dl|rt|pthread|c10|c10_cuda"
    r"|torch|torch_cpu|torch_cuda|torch_python)|-fopenmp|-pthread"
)
_DROPPED = re.compile(
    r"-std=(c|gnu)\+\+(11|14|17|0x|1[yz])|--?compiler-options=-fPIC|-Xcompiler=-fPIC|-fPIC|--?ptxas-options=-v|-v"
)
_WITH_VALUE = ("-Xcompiler", "--compiler-options", "-Xptxas", "--ptxas-options", "-gencode", "--generate-code", "-arch")


class ExtensionRequest(BaseModel):
    """files: relative path → text of sources and headers. sources: those to compile. include: relative folders."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    files: dict[str, str]
    sources: list[str] = Field(min_length=1)
    include: list[str] = []
    cflags: list[str] = []
    cuda_cflags: list[str] = []
    ldflags: list[str] = []
    with_cuda: bool = False


def read_request(message: Mapping[str, Any]) -> ExtensionRequest:
    """Check a request from outside. Raises CandidateError."""
    try:
        request = ExtensionRequest.model_validate(dict(message))
    except ValidationError as error:
        first = error.errors()[0]
        raise CandidateError(f"load_inline: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from None
    size = sum(len(text) for text in request.files.values())
    if size > MAX_BYTES or len(request.files) > MAX_FILES:
        raise CandidateError(f"load_inline: the sources of {request.name} are over {MAX_BYTES >> 20} MiB.")
    return request


def extension_unit(message: Mapping[str, Any] | ExtensionRequest, toolchain: Toolchain) -> BuildUnit:
    """The unit of one extension module. Raises CandidateError for a flag, path or device that is not accepted."""
    request = message if isinstance(message, ExtensionRequest) else read_request(message)
    files = {check_path(path).as_posix(): text.encode() for path, text in request.files.items()}
    for path in request.sources:
        if path not in files:
            raise CandidateError(f"load: the source {path} is not among the candidate's files.")
    cuda = request.with_cuda or any(path.endswith(".cu") for path in request.sources)
    if cuda and toolchain.device == "cpu":
        raise CandidateError(f"{request.name} has CUDA sources, but the device here is the CPU.")
    return _unit(request, files, toolchain, cuda, installed=f"{request.name}.so")


def workdir_unit(files: Mapping[str, bytes], toolchain: Toolchain) -> BuildUnit:
    """The published workdir (github.com/BytedTsinghua-SIA/CUDA-Agent, agent_workdir/): every .cpp and .cu of the root
    and of kernels/ in one module, `cuda_extension`. On the CPU its .cpp files only. Raises CandidateError."""
    suffixes = (".cpp",) if toolchain.device == "cpu" else (".cpp", ".cu")
    sources = sorted(
        p for p in files if str(PurePosixPath(p).parent) in (".", "kernels") and PurePosixPath(p).suffix in suffixes
    )
    if "binding.cpp" not in sources:
        raise CandidateError("the workdir has binding_registry.h but no binding.cpp; add the published one.")
    host = ["-O3", "-march=native", "-fopenmp"] if toolchain.device == "cpu" else ["-O3"]
    request = ExtensionRequest(
        name=_module_name(files["binding.cpp"]),
        files={},
        sources=sources,
        cflags=host,
        cuda_cflags=["-O3", "--use_fast_math"],
        ldflags=["-fopenmp"] if toolchain.device == "cpu" else [],
    )
    compiled = {
        p: files[p] for p in files if p in sources or PurePosixPath(p).suffix not in (".py", ".md", ".cpp", ".cu")
    }
    for path in compiled:
        check_path(path)
    return _unit(request, compiled, toolchain, toolchain.device == "cuda", installed=f"{request.name}.so")


def _module_name(binding: bytes) -> str:
    match = re.search(rb"PYBIND11_MODULE\s*\(\s*([A-Za-z_]\w*)", binding)
    name = match.group(1).decode() if match else "cuda_extension"
    return "cuda_extension" if name == "TORCH_EXTENSION_NAME" else name


def _unit(
    request: ExtensionRequest, files: Mapping[str, bytes], toolchain: Toolchain, cuda: bool, installed: str
) -> BuildUnit:
    output = f"{request.name}.so"
    ninja = shutil.which("ninja") or shutil.which("ninja", path=str(Path(sys.executable).parent))
    if ninja is None:
        raise SetupError("ninja was not found: `pip install ninja`.")
    text = _ninja_file(request, toolchain, cuda, output)
    versions = f"{toolchain.version}; torch {importlib.metadata.version('torch')}; Python {sys.version}"
    return BuildUnit(
        name=request.name,
        files={**files, "build.ninja": text.encode()},
        argv=(ninja, "--quiet", "-j", str(PARALLEL_COMPILERS), output),
        output=output,
        installed=installed,
        toolchain=versions,
    )


def _ninja_file(request: ExtensionRequest, toolchain: Toolchain, cuda: bool, output: str) -> str:
    torch = _torch_folder()
    defines = [f"-DTORCH_EXTENSION_NAME={request.name}", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    folders = [f"-I{_plain(folder)}" for folder in request.include if folder != "."]
    system = [torch / "include", torch / "include/torch/csrc/api/include", Path(sysconfig.get_path("include"))]
    common = [*defines, "-I.", *folders, *(f"-isystem {_ninja_path(path)}" for path in system)]
    host = [*_COMMON, *_accepted(request.cflags, _HOST_FLAGS)]
    if cuda:  # nvcc also compiles the .cpp files: it knows where CUDA's headers are
        passed = ("-std", "-O0", "-O1", "-O2", "-O3", "-D", "-U")
        host = [flag if flag.startswith(passed) else f"-Xcompiler={flag}" for flag in host]
    device_flags, arch = _device_flags(request.cuda_cflags, toolchain.arch)
    fpic = "-Xcompiler=-fPIC" if cuda else "-fPIC"
    libraries = ["c10", "torch_cpu", "torch", "torch_python"] + (["c10_cuda", "torch_cuda"] if cuda else [])
    links = [f"-l{name}" for name in libraries if (torch / "lib" / f"lib{name}.so").exists()]
    extra = [f"-Xcompiler={flag}" if cuda and flag.startswith(("-f", "-p")) else flag
             for flag in _accepted(request.ldflags, _LIBRARIES)]  # fmt: skip
    lines = [
        f"compiler = {_ninja_path(Path(toolchain.compiler))}",
        "rule host",
        f"  command = $compiler -c $in -o $out {fpic} {' '.join([*common, *host])}",
        "rule device",
        f"  command = $compiler -c $in -o $out {fpic} -arch={arch} {' '.join([*common, *_NVCC, *device_flags])}",
        "rule link",
        f"  command = $compiler -shared $in -o $out -L{_ninja_path(torch / 'lib')} {' '.join([*links, *extra])}",
    ]
    objects = []
    for index, path in enumerate(request.sources):
        _plain(path)
        objects.append(f"{index}-{PurePosixPath(path).stem}.o")
        lines.append(f"build {objects[-1]}: {'device' if path.endswith('.cu') else 'host'} {path}")
    lines.append(f"build {output}: link {' '.join(objects)}")
    return "\n".join(lines) + "\n"


def _plain(path: str) -> str:
    """The path, if it means nothing else to ninja and the shell."""
    if not re.fullmatch(r"[\w./+-]+", path):
        raise CandidateError(f"{path!r}: the name of a source or folder may hold letters, digits and ._+- only.")
    return check_path(path).as_posix()


def _device_flags(flags: Sequence[str], arch: str) -> tuple[list[str], str]:
    """nvcc's flags without architectures, and the architecture: what is there, or its `a` form if asked for."""
    kept = []
    for flag in _joined(flags):
        if flag.startswith(("-gencode", "--generate-code", "-arch", "--gpu-architecture")):
            arch = f"{arch}a" if re.search(rf"sm_{arch.removeprefix('sm_')}a\b", flag) else arch
        else:
            kept.append(flag)
    nested = [flag for flag in kept if flag.startswith(("-Xcompiler=", "--compiler-options="))]
    _accepted([part for flag in nested for part in flag.partition("=")[2].split(",")], _HOST_FLAGS)
    accepted = _accepted([flag for flag in kept if flag not in nested], _DEVICE_FLAGS)
    if not any(flag.startswith("-std=") for flag in accepted):
        accepted += _COMMON
    return [*accepted, *(flag for flag in nested if not _DROPPED.fullmatch(flag))], arch


def _joined(flags: Sequence[str]) -> list[str]:
    """`-Xcompiler -fopenmp` in two words, or two flags in one, as one flag a word."""
    words = [word for flag in flags for word in flag.split()]
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in _WITH_VALUE:
            joined[-1] += f"={word.strip(chr(39))}"
        else:
            joined.append(word)
    return joined


def _accepted(flags: Sequence[str], allowed: re.Pattern[str]) -> list[str]:
    words = [flag for flag in _joined(flags) if not _DROPPED.fullmatch(flag)]
    for word in words:
        if not allowed.fullmatch(word):
            raise CandidateError(f"the compiler flag {word!r} is not accepted; leave it out.")
    return words


def _torch_folder() -> Path:
    found = importlib.util.find_spec("torch")  # torch itself is not imported for this
    if found is None or found.origin is None:
        raise SetupError("torch was not found: `pip install torch`.")
    return Path(found.origin).parent


def _ninja_path(path: Path) -> str:
    if re.search(r"[^\w./+@=,~-]", str(path)):
        raise SetupError(f"{path} has a character in its name that compilers and ninja cannot take; move it.")
    return str(path)
