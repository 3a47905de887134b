"""What the commands do: call the API, show progress on stderr and the answer on stdout, choose the exit code."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cuda_agent.cli.boundary import ACCEPTED, REJECTED, Interrupted, UsageMistake, status_of
from cuda_agent.cli.console import reserved_stdout, stdout

if TYPE_CHECKING:
    from cuda_agent.optimize import Result

Device = Literal["auto", "cpu", "cuda"]


def run_judge(
    model: str,
    candidate: str,
    *,
    device: Device,
    mode: Literal["full", "training", "search"],
    rtol: float,
    atol: float,
    timeout_s: float,
    as_json: bool,
) -> int:
    from cuda_agent.task import load_task

    task = load_task(model)
    if not Path(candidate).exists():
        raise UsageMistake(
            f"{candidate}: no such file or folder; CANDIDATE is a folder with model_new.py or a .py file"
        )
    with reserved_stdout():
        from cuda_agent.cli.progress import spinner

        with spinner(f"judging {Path(candidate).name} against {task.name}"):
            from cuda_agent import api
            from cuda_agent.judge import Settings

            settings = Settings(mode=mode, rtol=rtol, atol=atol, timeout_s=timeout_s)
            verdict = api.judge(task, candidate, device=device, settings=settings)
    if as_json:
        print(verdict.model_dump_json())
    else:
        from cuda_agent.cli.render import print_verdict

        print_verdict(stdout(), verdict)
    return ACCEPTED if verdict.accepted else REJECTED


def run_optimize(model: str, out: Path | None, *, device: Device, budget_s: float, force: bool, as_json: bool) -> int:
    from cuda_agent.task import load_task

    task = load_task(model)
    folder = out if out is not None else Path("runs") / task.name
    with reserved_stdout():
        from cuda_agent.cli.progress import SearchProgress

        with SearchProgress(budget_s) as progress:
            from cuda_agent.optimize import optimize
            from cuda_agent.result import check_output

            check_output(folder, force=force)
            try:
                result = optimize(task, device=device, budget_s=budget_s, out=folder, on_event=progress)
            except KeyboardInterrupt:
                kept = f"the best so far is in {folder}" if progress.written else "nothing was accepted yet"
                raise Interrupted(f"Interrupted; {kept}.") from None
    if as_json:
        print(json.dumps(_summary(result, folder)))
    else:
        from cuda_agent.cli.render import print_verdict

        print_verdict(stdout(), result.verdict)
        stdout().print(f"\nThe kernels are in [bold]{folder}[/bold]; REPORT.md there says how they were measured.")
    return ACCEPTED


def run_doctor(*, as_json: bool) -> int:
    from cuda_agent.cli.progress import spinner

    with spinner("looking at this machine"):
        from cuda_agent.doctor import examine

        findings = examine()
    if as_json:
        print(findings.model_dump_json())
    else:
        from cuda_agent.cli.render import print_findings

        print_findings(stdout(), findings)
    return ACCEPTED if findings.can_optimize else REJECTED


def run_demo(examples: Path | None, out: Path, *, device: Device, budget_s: float, as_json: bool) -> int:
    from cuda_agent.task import load_tasks

    tasks = load_tasks(examples if examples is not None else shipped_examples())
    rows: list[dict[str, Any]] = []
    with reserved_stdout():
        from cuda_agent.cli.progress import SearchProgress

        with SearchProgress(budget_s, total=len(tasks)) as progress:
            from cuda_agent.errors import CudaAgentError
            from cuda_agent.judge import LocalJudge
            from cuda_agent.optimize import optimize

            with LocalJudge(device=device) as judge:
                for task in tasks:
                    try:
                        result = optimize(
                            task, device=device, budget_s=budget_s, out=out / task.name, judge=judge, on_event=progress
                        )
                    except CudaAgentError as error:  # one task's failure is a row of the table, not the end of it
                        rows.append({"task": task.name, "status": status_of(error), "message": str(error)})
                    else:
                        rows.append(_summary(result, out / task.name))
    means = {name: _geometric_mean(rows, f"speedup_{name}") for name in ("eager", "compile")}
    if as_json:
        print(json.dumps({"tasks": rows, "geometric_mean": means}))
    else:
        from cuda_agent.cli.render import print_table

        print_table(stdout(), rows, means)
        stdout().print(f"\nKernels, verdicts and reports: {out}/", highlight=False)
    return ACCEPTED if all(row["status"] == "accepted" for row in rows) else REJECTED


def shipped_examples() -> Path:
    """The repository's examples/ folder, for an editable installation."""
    folder = Path(__file__).resolve().parents[3] / "examples"
    if not folder.is_dir():
        raise UsageMistake("the shipped examples are in the source repository; pass a folder of tasks")
    return folder


def _summary(result: Result, folder: Path) -> dict[str, Any]:
    verdict = result.verdict
    times = {name: getattr(verdict.times, name) for name in ("eager", "compile", "candidate")}
    return {
        "task": result.task.name,
        "status": verdict.status,
        "reward": verdict.reward,
        **{f"{name}_ms": interval.ms if interval else None for name, interval in times.items()},
        "speedup_eager": verdict.speedup_eager,
        "speedup_compile": verdict.speedup_compile,
        "device": verdict.device.name,
        "tried": len(result.history),
        "out": str(folder),
    }


def _geometric_mean(rows: list[dict[str, Any]], field: str) -> float | None:
    values = [row[field] for row in rows if row.get(field)]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
