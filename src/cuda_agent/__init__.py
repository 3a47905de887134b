"""CUDA Agent: PyTorch models in, verified fast kernels out. torch is not imported until a function needs it.

`cuda_agent.judge(...)` and `cuda_agent.optimize(...)` are the functions of `cuda_agent.api`; the same names are rooms
of this package (`from cuda_agent.judge import Settings`). Both readings hold whatever was imported first, because
those two modules can be called.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["judge", "load_task", "load_tasks", "optimize"]

if TYPE_CHECKING:
    from cuda_agent.api import judge as judge
    from cuda_agent.api import optimize as optimize
    from cuda_agent.task import load_task as load_task
    from cuda_agent.task import load_tasks as load_tasks

_CALLABLE = ("judge", "optimize")


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = getattr(importlib.import_module("cuda_agent.api"), self.__name__.rpartition(".")[2])
        return function(*args, **kwargs)


class _Package(ModuleType):
    """importlib binds a submodule to its package by plain attribute assignment, however it came to be imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CALLABLE and isinstance(value, ModuleType):
            value.__class__ = _CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in ("load_task", "load_tasks"):
        return getattr(importlib.import_module("cuda_agent.task"), name)
    if name in _CALLABLE:
        return importlib.import_module(f"cuda_agent.{name}")
    raise AttributeError(f"module 'cuda_agent' has no attribute {name!r}")
