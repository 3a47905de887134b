"""The CUDA side of the `Emitter` protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Literal

from cuda_agent.expert.cuda.layout import Layout, choose
from cuda_agent.expert.cuda.op_struct import Names
from cuda_agent.expert.cuda.schedule import DeviceFacts, space_of, workspace_bytes
from cuda_agent.expert.cuda.source import kernel_source
from cuda_agent.expert.emitter import Schedule, Space
from cuda_agent.expert.ir import Buffer, Kernel, Plan

HEADERS = ("scalar.cuh", "lanes.cuh", "rows.cuh", "teams.cuh", "launch.cuh")


class CudaEmitter:
    """Prints CUDA C++ for one GPU. facts: of the device that the defaults are meant for."""

    device: Literal["cpu", "cuda"] = "cuda"

    def __init__(self, facts: DeviceFacts | None = None) -> None:
        self.facts = facts or DeviceFacts()

    def space(self, plan: Plan) -> dict[str, Space]:
        return {kernel.name: self._space(plan, kernel, choose(plan, kernel)) for kernel in plan.kernels}

    def workspaces(self, plan: Plan, kernel: Kernel) -> tuple[Buffer, ...]:
        layout = choose(plan, kernel)
        size = workspace_bytes(Names(plan, kernel), layout, self._space(plan, kernel, layout), self.facts)
        return (Buffer(f"{kernel.name}_workspace", "uint8", (size,), "temp"),) if size else ()

    def emit(self, plan: Plan, schedule: Schedule) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        chosen: dict[str, Mapping[str, int]] = {}
        for kernel in plan.kernels:
            layout = choose(plan, kernel)
            default = self._space(plan, kernel, layout).default
            text = kernel_source(plan, kernel, layout, default, self.workspaces(plan, kernel))
            files[f"kernels/{kernel.name}.cu"] = text.encode()
            chosen[kernel.name] = {**default, **schedule.get(kernel.name, {})}
        for header in HEADERS:
            files[f"kernels/{header}"] = resources.files(__package__).joinpath("include", header).read_bytes()
        files["kernels/schedule.json"] = (json.dumps(chosen, indent=2) + "\n").encode()
        return files

    def _space(self, plan: Plan, kernel: Kernel, layout: Layout) -> Space:
        return space_of(Names(plan, kernel), layout, self.facts)
