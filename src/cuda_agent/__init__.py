"""CUDA Agent: PyTorch models in, verified fast kernels out. torch is not imported until a function needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["judge", "load_task", "load_tasks", "optimize"]

if TYPE_CHECKING:
    from cuda_agent.api import judge as judge
    from cuda_agent.api import optimize as optimize
    from cuda_agent.task import load_task as load_task
    from cuda_agent.task import load_tasks as load_tasks


def __getattr__(name: str) -> Any:
    if name in ("load_task", "load_tasks"):
        import cuda_agent.task as module
    elif name in ("judge", "optimize"):
        import cuda_agent.api as module
    else:
        raise AttributeError(f"module 'cuda_agent' has no attribute {name!r}")
    return getattr(module, name)
