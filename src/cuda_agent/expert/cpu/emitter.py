"""Plans as C++ sources with their schedule space."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Literal

from cuda_agent.expert.cpu.source import KernelSource
from cuda_agent.expert.cpu.traits import fetching_pass, kept_lets, prefetched, shape_of, streamed
from cuda_agent.expert.emitter import Schedule, Space
from cuda_agent.expert.ir import Buffer, Kernel, Plan

# Outputs from this size on are written past the caches by default: they would not stay there.
_STREAM_BYTES = 4 << 20


class CpuEmitter:
    """Prints C++17 with OpenMP."""

    device: Literal["cpu", "cuda"] = "cpu"

    def space(self, plan: Plan) -> dict[str, Space]:
        buffers = {b.name: b for b in plan.buffers}
        return {k.name: self._space(k, buffers) for k in plan.steps if isinstance(k, Kernel)}

    def _space(self, kernel: Kernel, buffers: dict[str, Buffer]) -> Space:
        if shape_of(kernel) == "columns":
            return Space({"COLUMNS": 256}, {"COLUMNS": (64, 128, 256, 512, 1024)})
        default = {"TILE": 4096 if kernel.reductions else 1024}
        choices: dict[str, tuple[int, ...]] = {"TILE": (256, 512, 1024, 2048, 4096)}
        stores = streamed(kernel)
        if stores:
            large = max(buffers[s.buffer].nbytes for s in stores) >= _STREAM_BYTES
            default["STREAM"], choices["STREAM"] = int(large), (0, 1)
        if kept_lets(kernel):
            default["KEEP"], choices["KEEP"] = 1, (0, 1)
        if prefetched(kernel, buffers):
            default["PREFETCH"] = fetching_pass(kernel)
            choices["PREFETCH"] = tuple(range(len(kernel.passes)))
        return Space(default, choices)

    def workspaces(self, plan: Plan, kernel: Kernel) -> tuple[Buffer, ...]:
        return ()

    def emit(self, plan: Plan, schedule: Schedule) -> dict[str, bytes]:
        buffers = {b.name: b for b in plan.buffers}
        spaces = self.space(plan)
        headers = files("cuda_agent.expert.cpu") / "include"
        sources = {f"kernels/{name}": (headers / name).read_bytes() for name in ("simd_math.h", "stream.h")}
        for kernel in plan.steps:
            if isinstance(kernel, Kernel):
                text = KernelSource(kernel, buffers, spaces[kernel.name].default).text()
                sources[f"kernels/{kernel.name}.cpp"] = text.encode()
        settled = {name: {**space.default, **schedule.get(name, {})} for name, space in spaces.items()}
        sources["kernels/schedule.json"] = json.dumps(settled, indent=2).encode()
        return sources
