"""Emitted plans as shared objects, and what ptxas says of their kernels."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cuda_agent.candidate import Candidate, Toolchain
from cuda_agent.candidate import plan as build_units
from cuda_agent.expert.cuda import CudaEmitter
from cuda_agent.expert.ir import Plan

ARCH = "sm_90"


@dataclass(frozen=True)
class Built:
    """objects: kernel name → shared object. report: of ptxas, for all kernels."""

    objects: Mapping[str, Path]
    report: str

    @property
    def spills(self) -> list[str]:
        return re.findall(r"[1-9]\d* bytes (?:stack frame|spill \w+)", self.report)


def build(folder: Path, plan: Plan, changes: Mapping[str, int] | None = None, arch: str = ARCH) -> Built:
    """Compile all kernels of a plan as the judge would; changes: macros that differ from the default."""
    emitter = CudaEmitter()
    spaces = emitter.space(plan)
    schedule = {name: {**space.default, **(changes or {})} for name, space in spaces.items()}
    candidate = Candidate(emitter.emit(plan, schedule), "launchers")
    objects, report = {}, ""
    for unit in build_units(candidate, "cuda", Toolchain.detect("cuda", arch)):
        for path, content in unit.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        done = subprocess.run(unit.argv, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, f"{unit.name} {schedule[unit.name]}\n{done.stderr}"
        objects[unit.name] = folder / unit.output
        report += done.stderr
    return Built(objects, report)


def build_all(root: Path, jobs: Iterable[tuple[str, Plan, Mapping[str, int]]]) -> dict[str, Built | AssertionError]:
    """Many at once, on all cores, by name; a build that fails gives its error."""

    def one(job: tuple[str, Plan, Mapping[str, int]]) -> tuple[str, Built | AssertionError]:
        try:
            return job[0], build(root / job[0], job[1], job[2])
        except AssertionError as error:
            return job[0], error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(pool.map(one, jobs))
