"""What has to be compiled before a candidate can run, as commands over contents: nothing is run or read here."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from cuda_agent.candidate.candidate import Candidate
from cuda_agent.candidate.ops import Device, kernel_headers, launchers_of, schedule
from cuda_agent.candidate.ops_build import (
    LAUNCH_STATUS,
    compile_command,
    compiler_flags,
    find_compiler,
    object_name,
)
from cuda_agent.errors import CandidateError, SetupError


@dataclass(frozen=True)
class Toolchain:
    """A compiler and what it compiles for. compiler: path. version: its own first words, part of every build's key.
    arch: `sm_90` and the like on CUDA, empty on the CPU."""

    device: Device
    compiler: str
    version: str
    arch: str = ""

    @classmethod
    def detect(cls, device: Device, arch: str | None = None) -> Toolchain:
        """arch None: of the first GPU that nvidia-smi names (no CUDA context is made). Raises SetupError."""
        try:
            compiler = find_compiler(device)
        except RuntimeError as error:
            raise SetupError(f"{error}.") from None
        said = _version(compiler)
        if device == "cuda":
            return cls(device, compiler, said.strip().splitlines()[-1], arch or _detected_arch())
        return cls(device, compiler, said.splitlines()[0])


def _version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=60)
        broken = done.stderr.strip() if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        broken = str(error)
    if broken is not None:
        raise SetupError(f"the compiler {compiler} does not run ({broken}): reinstall it or take it off PATH.")
    return done.stdout


def _detected_arch() -> str:
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        raise SetupError("nvidia-smi names no GPU to compile for; name an architecture, such as sm_90.") from None
    return "sm_" + said.split()[0].replace(".", "")


@dataclass(frozen=True)
class BuildUnit:
    """One compiler run. files: relative path → content, written to an empty folder where argv is run.

    argv: paths in it are relative to that folder, or the system's. output: the relative path of what it makes.
    installed: where the object belongs in the candidate's tree. toolchain: compiler version, part of the key.
    """

    name: str
    files: Mapping[str, bytes]
    argv: tuple[str, ...]
    output: str
    installed: str
    toolchain: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """Content hash: the same key is the same object."""
        settings = [self.argv, self.output, self.toolchain, sorted(self.env.items())]
        digest = hashlib.sha256(json.dumps(settings).encode())
        for path in sorted(self.files):
            digest.update(f"\0{path}\0{len(self.files[path])}\0".encode() + self.files[path])
        return digest.hexdigest()


def plan(candidate: Candidate, device: Device, toolchain: Toolchain) -> list[BuildUnit]:
    """All units known before the candidate runs; `single` has none. Raises CandidateError for what cannot be bound."""
    if candidate.form == "launchers":
        sources = launchers_of(candidate.files, device)
        return [launcher_unit(candidate.files, path, device, toolchain) for path in sources]
    if candidate.form == "workdir":
        from cuda_agent.candidate.extension import workdir_unit

        return [workdir_unit(candidate.files, toolchain)]
    return []


def launcher_unit(files: Mapping[str, bytes], path: str, device: Device, toolchain: Toolchain) -> BuildUnit:
    """The unit of one kernel source: its own shared object, under the name that `ops.py` will look for."""
    stem = PurePosixPath(path).stem
    flags = _flags(files, path, device, toolchain.arch)
    macros, headers = schedule(files).get(stem, {}), kernel_headers(files)
    name = object_name(stem, files[path], headers, macros, flags)
    command = compile_command(toolchain.compiler, flags, macros, path, name)
    contents = {path: files[path], **headers}
    if device == "cuda":
        contents["launch_status.h"] = LAUNCH_STATUS.encode()
    return BuildUnit(stem, contents, tuple(command), name, f"kernels/.build/{name}", toolchain.version)


def _flags(files: Mapping[str, bytes], path: str, device: Device, arch: str) -> list[str]:
    try:
        return compiler_flags(files[path].decode(errors="replace"), device, arch)
    except ValueError as error:
        raise CandidateError(f"{path}: {error}.") from None
