"""Where errors become exit codes: one sentence for a mistake of the user's, one JSON object under `--json`.

Exit codes: 0 accepted (or done), 1 rejected, 2 unusable task, usage or set-up, 3 a fault of ours, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from types import FrameType

import typer

from cuda_agent.errors import CandidateError, CudaAgentError, SetupError, TaskError

ACCEPTED, REJECTED, UNUSABLE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 130

# typer brings its own copy of click in newer versions; this reaches ClickException without naming the copy.
_ClickException: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

# Errors of the outer rooms carry a `status` of their own.
_STATUS: tuple[tuple[type[CudaAgentError], str], ...] = (
    (TaskError, "unusable_task"),
    (CandidateError, "unusable_candidate"),
    (SetupError, "setup_error"),
)


class UsageMistake(CudaAgentError):
    """What the arguments say does not make sense (found after parsing)."""

    status = "usage_error"


class Interrupted(CudaAgentError):
    """Ctrl-C, with a word on what is left behind."""

    status = "interrupted"
    exit_code = INTERRUPTED


def main() -> None:
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # CPython remembers a KeyboardInterrupt that passed through exec() of a string (every dataclass is one), and
        # ends the process by SIGINT instead of with the code, although it was caught.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code. Every error ends here."""
    from cuda_agent.cli.app import app

    # A plain `kill` and a closed terminal end like Ctrl-C: contexts close, and nothing is left running.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminate)
    as_json = "--json" in arguments
    try:
        code = int(app(args=arguments, prog_name="cuda-agent", standalone_mode=False) or 0)
        if code == INTERRUPTED:  # what typer makes of a KeyboardInterrupt
            raise Interrupted("Interrupted.")
        return code
    except (typer.Abort, KeyboardInterrupt):
        return _fail(Interrupted.status, "Interrupted.", INTERRUPTED, as_json)
    except _ClickException as error:
        return _fail("usage_error", _usage_sentence(error), UNUSABLE, as_json)
    except CudaAgentError as error:
        return _fail(status_of(error), str(error), getattr(error, "exit_code", UNUSABLE), as_json)
    except BrokenPipeError:  # `cuda-agent … | head` is no error; keep Python from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the outermost frame: whatever comes here is our fault, and is shown on request
        if os.environ.get("CUDA_AGENT_DEBUG") == "1":
            traceback.print_exc()
        sentence = (
            f"Internal error ({type(error).__name__}: {_one_line(str(error))}); set CUDA_AGENT_DEBUG=1 to see where."
        )
        return _fail("internal_error", sentence, INTERNAL, as_json)


def status_of(error: CudaAgentError) -> str:
    """The `status` under `--json`."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    named = getattr(error, "status", None)
    if named is not None:
        return str(named)
    from cuda_agent.expert import Unsupported

    return "unsupported" if isinstance(error, Unsupported) else "error"


def _terminate(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _fail(status: str, message: str, code: int, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"status": status, "message": message}), flush=True)
    else:
        print(f"cuda-agent: {message}", file=sys.stderr, flush=True)
    return code


def _usage_sentence(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "cuda-agent"
    sentence = _one_line(error.format_message()).replace("Value error, ", "")  # type: ignore[attr-defined]
    return f"{sentence.rstrip('.')}; see `{command} --help`."


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 300 else text[:299] + "…"
