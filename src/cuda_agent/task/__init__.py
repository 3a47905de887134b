"""A task: a KernelBench-style source with `Model`, `get_inputs`, `get_init_inputs`.

The convention is KernelBench's (https://github.com/ScalingIntelligence/KernelBench), so that every public task runs
unchanged. Everything here reads and checks the source as text (`ast`); nothing here runs it. What only shows when it
runs (a `get_inputs` that raises, a random model) is the judge's to find.
"""

from cuda_agent.task.check import check_source
from cuda_agent.task.load import Task, check_packages, load_task, load_tasks

__all__ = ["Task", "check_packages", "check_source", "load_task", "load_tasks"]
