"""The judge's clock against a clock inside the process: CUDA events, or perf_counter on the CPU.

Both time the same loop: a batch of iterations over distinct inputs, outputs kept alive, launches included. The judge's
is the time that a verdict reports, from outside the process.

    python benchmarks/clock_accuracy.py --device cuda
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from report import finish

from cuda_agent.candidate import Candidate
from cuda_agent.judge import Job, LocalJudge, Settings
from cuda_agent.judge.zygote import ENVIRONMENT
from cuda_agent.task import Task

POINTWISE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.sin(x)

def get_inputs():
    return [torch.rand({n})]

def get_init_inputs():
    return []
"""

GEMM = POINTWISE.replace("torch.sin(x)", "x @ x.t()").replace("torch.rand({n})", "torch.rand({n}, {n})")

CASES = {
    "cuda": [("sin", POINTWISE, n << 20) for n in (1, 8, 16, 32, 64, 256, 1024)]
    + [("gemm", GEMM, n) for n in (512, 1024, 2048, 4096, 6144)],
    "cpu": [("sin", POINTWISE, n << 10) for n in (32, 128, 512, 2048, 8192)]
    + [("gemm", GEMM, n) for n in (256, 512, 1024)],
}


def in_process(source: str, device: str, batch: int = 16) -> float:
    """Milliseconds per iteration of a loop over `batch` distinct inputs."""
    module: dict[str, Any] = {}
    exec(source, module)
    model = module["Model"]().eval()
    with torch.device(device):
        first = module["get_inputs"]()
        nbytes = sum(t.nbytes for t in first)
        batch = max(3, min(batch, (8 << 30 if device == "cuda" else 1 << 29) // nbytes))
        inputs = [first] + [module["get_inputs"]() for _ in range(batch - 1)]
    times = []
    with torch.no_grad():
        for _ in range(12):
            results = []
            if device == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                start.record()
                for arguments in inputs:
                    results.append(model(*arguments))
                end.record()
                torch.cuda.synchronize()
                times.append(start.elapsed_time(end) / batch)
            else:
                begun = time.perf_counter()
                for arguments in inputs:
                    results.append(model(*arguments))
                times.append((time.perf_counter() - begun) * 1e3 / batch)
    return statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--mode", choices=("full", "training", "search"), default="full")
    device = parser.parse_args().device
    mode = parser.parse_args().mode
    rows = []
    with tempfile.TemporaryDirectory() as cache, LocalJudge(device, cache=Path(cache)) as judge:
        for name, template, n in CASES[device]:
            source = template.format(n=n)
            candidate = source.replace("class Model", "class ModelNew").partition("def get_inputs")[0]
            job = Job(
                Task(f"{name}-{n}", source, "model.py"),
                Candidate({"model_new.py": candidate.encode()}, "single"),
                Settings(mode=mode, baselines=False),
            )
            before = in_process(source, device)
            verdict = judge.submit(job).result()
            after = in_process(source, device)
            inside = (before + after) / 2
            found = verdict.times.candidate
            if found is None:
                print(name, n, verdict.status, verdict.message)
                continue
            half = (found.high - found.low) / 2 / found.ms * 100
            whole = verdict.times.candidate_whole
            rows.append([name, n, inside * 1e3, found.ms * 1e3, (found.ms / inside - 1) * 100, half, whole.ms * 1e3])
            if device == "cuda":
                torch.cuda.empty_cache()
    finish(
        f"clock_accuracy_{device}", device, ["kernel", "n", "inside µs", "judge µs", "off %", "± %", "whole µs"], rows
    )


if __name__ == "__main__":
    if os.environ.get("GLIBC_TUNABLES") != ENVIRONMENT["GLIBC_TUNABLES"]:  # read when a process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ENVIRONMENT})
    main()
