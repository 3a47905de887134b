"""Reading what `ptxas -v` says about each kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for 'sm_\w+'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


@dataclass(frozen=True)
class KernelResources:
    """Of one thread of one kernel, but shared_bytes: static shared memory of one block. kernel: mangled name."""

    kernel: str
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    shared_bytes: int = 0


def read_report(log: str) -> tuple[KernelResources, ...]:
    """Kernels in the order in which nvcc compiled them; empty for a log without `ptxas info`."""
    found: list[KernelResources] = []
    for part in re.split(r"(?=Compiling entry function)", log)[1:]:
        entry, stack, used, shared = (pattern.search(part) for pattern in (_ENTRY, _STACK, _USED, _SHARED))
        if entry and stack and used:
            frame, stores, loads = map(int, stack.groups())
            found.append(
                KernelResources(
                    entry.group(1), int(used.group(1)), frame, stores, loads, int(shared.group(1)) if shared else 0
                )
            )
    return tuple(found)
