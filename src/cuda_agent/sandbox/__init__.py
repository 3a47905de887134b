"""Confining processes: no network, a read-only system, limits on memory, processes, files and time.

`fork_confined` for a pre-imported worker that runs foreign Python code, `spawn` for a program, `probe` for what this
machine offers. Standard library and ctypes only; this room knows nothing of tasks, judges or devices.
"""

from cuda_agent.sandbox.child import Child, Exit, kill_tree
from cuda_agent.sandbox.freeze import Frozen, NotStill
from cuda_agent.sandbox.keeper import fork_confined
from cuda_agent.sandbox.linux import die_with_parent
from cuda_agent.sandbox.policy import Level, Policy
from cuda_agent.sandbox.probe import Offer, probe
from cuda_agent.sandbox.program import Completed, Stopped, spawn
from cuda_agent.sandbox.support import available_level

__all__ = [
    "Child",
    "Completed",
    "Exit",
    "Frozen",
    "Level",
    "NotStill",
    "Offer",
    "Policy",
    "Stopped",
    "available_level",
    "die_with_parent",
    "fork_confined",
    "kill_tree",
    "probe",
    "spawn",
]
