"""What every benchmark ends with: where it ran, a short table, and all numbers under $OUT (or --out)."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def machine(device: str) -> dict[str, Any]:
    """Versions and hardware, for the head of a result."""
    import torch

    facts = {"python": platform.python_version(), "torch": torch.__version__, "device": platform.processor()}
    facts["commit"] = _said("git", "rev-parse", "--short", "HEAD") or os.environ.get("CUDA_AGENT_COMMIT", "unknown")
    if device == "cuda":
        facts |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
        facts["driver"] = _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    else:
        model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        facts |= {"device": model[0].partition(":")[2].strip() if model else "", "threads": torch.get_num_threads()}
    facts["cores"] = os.cpu_count()
    return facts


def finish(name: str, device: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], details: Any = None) -> None:
    """Print the table last and keep everything as JSON."""
    facts = machine(device)
    out = os.environ.get("OUT")
    if out:
        record = {"machine": facts, "columns": list(columns), "rows": [list(r) for r in rows], "details": details}
        (Path(out) / f"{name}.json").write_text(json.dumps(record, indent=1))
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    print()
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    for line in [list(columns), ["-" * w for w in widths], *cells]:
        print("| " + " | ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) + " |")


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
