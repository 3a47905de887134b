"""The Python API behind the command line: `cuda_agent.judge` and `cuda_agent.optimize`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cuda_agent.backends import get_backend
from cuda_agent.candidate import Candidate, load_candidate
from cuda_agent.errors import CandidateError
from cuda_agent.judge import Job, LocalJudge, Settings, Verdict
from cuda_agent.judge.verdict import Device
from cuda_agent.optimize import Event, Result
from cuda_agent.optimize import optimize as _optimize
from cuda_agent.result import check_output
from cuda_agent.task import Task, check_packages, load_task

DeviceName = Literal["auto", "cpu", "cuda"]


def judge(
    task: Task | str | os.PathLike[str],
    candidate: Candidate | str | os.PathLike[str],
    *,
    device: DeviceName = "auto",
    settings: Settings | None = None,
) -> Verdict:
    """Decide whether a candidate computes what the task computes, and how fast.

    Both are run in confined processes, `eval()` and `no_grad()`, on the task's own inputs, drawn afresh for every
    forward call. Outputs keep the task's shapes, dtypes and structure, and are compared with a float64 oracle:
    |error| ≤ rtol·|ref| + atol·min(1, rms(ref)). Times are wall-clock milliseconds per forward call with 95 %
    confidence intervals, for eager PyTorch, `torch.compile` and the candidate under one protocol. The reward is that
    of arXiv 2602.24286, section 3: −1 not accepted, 1 correct, 2 also more than 5 % faster than eager, 3 also more
    than 5 % faster than `torch.compile`.

    task: a Task, or whatever `load_task` reads. candidate: a Candidate, or a file or folder that `load_candidate`
    reads. device: `auto` takes CUDA where there is a GPU. settings: tolerances, limits, how tight the intervals are.

    A candidate that fails in any way, even to be read, is a verdict and not an exception. Raises TaskError if the
    task is unusable (it does not parse, its `get_inputs` raises, its model is random or constant), and SetupError if
    this machine lacks a compiler or the device.
    """
    task = task if isinstance(task, Task) else load_task(os.fspath(task))
    check_packages(task)
    if not isinstance(candidate, Candidate):
        try:
            candidate = load_candidate(os.fspath(candidate))
        except CandidateError as error:
            facts = get_backend(device).describe()
            where = Device(kind=facts.kind, name=facts.name)
            return Verdict(task=task.name, status="load_failed", reward=-1, message=str(error), device=where)
    with LocalJudge(device=device) as local:
        return local.submit(Job(task, candidate, settings or Settings())).result()


def optimize(
    task: Task | str | os.PathLike[str],
    *,
    device: DeviceName = "auto",
    budget_s: float = 60.0,
    out: str | os.PathLike[str] | None = None,
    judge: LocalJudge | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> Result:
    """Write kernels for a task, and keep the fastest that the judge accepts. No LLM is involved.

    task: a Task, or whatever `load_task` reads. device: `auto` takes CUDA where there is a GPU. budget_s: seconds of
    search, 0 for the expert's default schedule alone; the final judgement, with the tightest intervals, comes after.
    out: a folder for the result, which stands alone (`model_new.py`, `ops.py`, `kernels/`, `model.py`, `verdict.json`,
    `REPORT.md`); an earlier result there is replaced. judge: a running judge to share its warm workers. on_event:
    called with each Event as it happens.

    Returns the Result: `candidate` (files), `verdict` (times in milliseconds per forward call, reward as in `judge`)
    and `history` (every trial). KeyboardInterrupt leaves the best so far in `out`, ends all workers, and is raised on.

    Raises TaskError as `judge` does, `cuda_agent.expert.Unsupported` if an operator of the model is outside the
    expert's coverage (it names the operator and its line), NoCandidate if nothing that was tried is accepted,
    OutputRefused if `out` holds something else, SetupError if this machine lacks a compiler or the device.
    """
    task = task if isinstance(task, Task) else load_task(os.fspath(task))
    folder = Path(out) if out is not None else None
    if folder is not None:
        check_output(folder)
    return _optimize(task, device=device, budget_s=budget_s, out=folder, judge=judge, on_event=on_event)
