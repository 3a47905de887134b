"""The commands and their options. Each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(
    name="cuda-agent",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


Device = Literal["auto", "cpu", "cuda"]
Mode = Literal["full", "training", "search"]

TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="The task: a .py file with Model, get_inputs and get_init_inputs, a folder with model.py, or "
        "FILE.jsonl#ROW (also #LEVEL/PROBLEM_ID or #NAME).",
        show_default=False,
    ),
]
DeviceOption = Annotated[Device, typer.Option("--device", help="auto takes CUDA where there is a GPU.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout, and nothing else.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Turn PyTorch models into fast kernels, and judge the result so that it can be trusted.

    Exit codes: 0 accepted, 1 rejected, 2 unusable task, usage or set-up, 3 a fault of ours, 130 interrupted.
    """
    if version:
        from cuda_agent import __version__

        typer.echo(f"cuda-agent {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def judge(
    model: TaskArgument,
    candidate: Annotated[
        str,
        typer.Argument(
            metavar="CANDIDATE",
            help="A folder with model_new.py and kernels/, a published workdir, or one KernelBench .py file.",
            show_default=False,
        ),
    ],
    device: DeviceOption = "auto",
    mode: Annotated[Mode, typer.Option(help="Same guarantees; full has the tightest intervals.")] = "full",
    rtol: Annotated[float, typer.Option(min=0.0, help="Relative tolerance.")] = 1e-2,
    atol: Annotated[
        float, typer.Option(min=0.0, help="Absolute tolerance, scaled by min(1, rms of the output).")
    ] = 1e-2,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one phase of foreign code.")] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Decide whether a candidate is right, and how fast it is. Exit code 0: accepted, 1: rejected."""
    from cuda_agent.cli.commands import run_judge

    code = run_judge(
        model, candidate, device=device, mode=mode, rtol=rtol, atol=atol, timeout_s=timeout, as_json=as_json
    )
    raise typer.Exit(code)


@app.command()
def optimize(
    model: TaskArgument,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the result; default: runs/NAME.", show_default=False)
    ] = None,
    device: DeviceOption = "auto",
    budget: Annotated[
        float, typer.Option(min=0.0, help="Seconds of search, 0 for none; the final judgement comes after.")
    ] = 60.0,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that is not a result of ours.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write kernels for a model, and keep the fastest that the judge accepts.

    Ctrl-C ends the search early and keeps the best so far.
    """
    from cuda_agent.cli.commands import run_optimize

    raise typer.Exit(run_optimize(model, out, device=device, budget_s=budget, force=force, as_json=as_json))


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine offers, and the command that mends what is missing. Exit code 0: optimize can work."""
    from cuda_agent.cli.commands import run_doctor

    raise typer.Exit(run_doctor(as_json=as_json))


@app.command()
def demo(
    examples: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="A folder of tasks; default: the shipped examples.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results, one folder a task.")] = Path(
        "runs/demo"
    ),
    device: DeviceOption = "auto",
    budget: Annotated[
        float, typer.Option(min=0.0, help="Seconds of search for each task; 0 takes the default schedule.")
    ] = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Optimize the shipped examples one after another, and end with one table."""
    from cuda_agent.cli.commands import run_demo

    raise typer.Exit(run_demo(examples, out, device=device, budget_s=budget, as_json=as_json))
