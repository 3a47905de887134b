"""Write docs/cli.md from the commands' own help: `python scripts/cli_reference.py > docs/cli.md`."""

from __future__ import annotations

import os
import subprocess
import sys

COMMANDS = ("judge", "optimize", "demo", "doctor")

HEAD = """\
# Command line

Written by `python scripts/cli_reference.py`; a test keeps it current.

Answers go to stdout, progress and errors to stderr. With `--json` stdout holds one JSON object whatever happens; an
error's has `status` and `message`.

| exit code | meaning | `status` under `--json` |
|---|---|---|
| 0 | accepted, or done | `accepted` |
| 1 | rejected; `optimize` found nothing; `doctor`: `optimize` cannot work here | the verdict's, `no_candidate` |
| 2 | unusable task, usage, or set-up | `unusable_task`, `unsupported`, `usage_error`, `setup_error` |
| 3 | a fault of ours; `CUDA_AGENT_DEBUG=1` shows where | `internal_error` |
| 130 | interrupted; what was accepted so far is in the result folder | `interrupted` |
"""


def text_of(*arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "cuda_agent.cli", *arguments, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def reference() -> str:
    parts = [HEAD, f"## cuda-agent\n\n```text\n{text_of()}\n```\n"]
    parts += [f"## cuda-agent {name}\n\n```text\n{text_of(name)}\n```\n" for name in COMMANDS]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
