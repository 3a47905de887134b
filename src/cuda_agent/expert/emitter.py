"""What an emitter for a device offers to the search. Emitters print source text; they never run anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from cuda_agent.expert.ir import Buffer, Kernel, Plan

Schedule = Mapping[str, Mapping[str, int]]  # kernel name → macro → value, the content of kernels/schedule.json


@dataclass(frozen=True)
class Space:
    """The schedule space of one kernel: named integer macros, each with a finite list of values.

    Every combination must compile and be right (clamp in the source what does not fit). default: one value each,
    a good guess. choices: in a sensible order, since the search steps to neighbours. Empty choices: nothing to tune.
    """

    default: Mapping[str, int]
    choices: Mapping[str, tuple[int, ...]]


class Emitter(Protocol):
    device: Literal["cpu", "cuda"]

    def space(self, plan: Plan) -> dict[str, Space]:
        """Kernel name → its schedule space. Changing a macro never changes the source text."""
        ...

    def workspaces(self, plan: Plan, kernel: Kernel) -> tuple[Buffer, ...]:
        """Scratch buffers (role `temp`, uninitialised) that the launcher takes after `reads` and `writes`, large
        enough for every schedule in the space. Their names start with the kernel's name."""
        ...

    def emit(self, plan: Plan, schedule: Schedule) -> dict[str, bytes]:
        """Relative POSIX path → content, all under kernels/: one source per kernel (kernels/<kernel name>.cpp or .cu,
        one `extern "C"` launcher of that name), headers, and kernels/schedule.json. Raises Unsupported."""
        ...
