"""Measuring what a device can do at best: copies, sums, matrix products. Kept per device, torch version and threads."""

from __future__ import annotations

import ctypes
import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from cuda_agent.backends.base import Ceilings, Kind
from cuda_agent.paths import cache_dir

if TYPE_CHECKING:
    import torch

_CPU_COPY_BYTES, _CUDA_COPY_BYTES = 256 << 20, 2 << 30  # beyond every cache
_CPU_MATMUL, _CUDA_MATMUL = 2048, 8192
_CPU_BUDGET_S, _CUDA_BUDGET_S = 0.4, 0.3
_VERSION = 2
_BUSY_LOAD, _BUSY_FOR_S = 0.5, 600.0


def cached_ceilings(kind: Kind, device: str, threads: int | None) -> Ceilings:
    """From the cache, else measured now (a few seconds on a CPU, about two on a GPU) and stored.

    What was measured while other programs kept the CPU busy is measured again ten minutes later; the higher rates stay.
    """
    import torch

    label = re.sub(r"[^\w.+-]+", "-", f"{device}-torch{torch.__version__}-{threads or 'gpu'}-v{_VERSION}")
    path = cache_dir() / "ceilings" / f"{label}.json"
    before: Ceilings | None = None
    if path.exists():
        stored = json.loads(path.read_text())
        before = Ceilings.from_json(stored)
        if not stored["busy"] or time.time() - stored["measured_at"] < _BUSY_FOR_S:
            return before
    busy = kind == "cpu" and os.getloadavg()[0] > _BUSY_LOAD * len(os.sched_getaffinity(0))
    measured = measure_ceilings(kind, device, threads)
    if before is not None:
        measured = _higher(before, measured)
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps({**measured.to_json(), "busy": busy, "measured_at": time.time()}, indent=1))
    partial.replace(path)
    return measured


def _higher(one: Ceilings, other: Ceilings) -> Ceilings:
    pairs = {name: (value, getattr(other, name)) for name, value in one.to_json().items()}
    rates = {name: max(pair) for name, pair in pairs.items() if all(isinstance(value, float) for value in pair)}
    return replace(other, **rates)


def measure_ceilings(kind: Kind, device: str, threads: int | None) -> Ceilings:
    import torch

    with torch.inference_mode():
        copy, read = _bandwidths(kind)
        fp32, tf32, bf16 = _matmul_rates(kind)
        again = _bandwidths(kind)  # a neighbour rarely disturbs both
    copy, read = max(copy, again[0]), max(read, again[1])
    return Ceilings(device, str(torch.__version__), threads, copy, read, fp32, tf32, bf16)


def _best_seconds(run: Callable[[], object], kind: Kind) -> float:
    """Shortest time of one run; on CUDA the mean of ten between events, to leave launches out."""
    import torch

    run()
    best, budget = float("inf"), _CUDA_BUDGET_S if kind == "cuda" else _CPU_BUDGET_S
    end = time.perf_counter() + budget
    while time.perf_counter() < end or best == float("inf"):
        if kind == "cuda":
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(10):
                run()
            stop.record()
            stop.synchronize()
            best = min(best, start.elapsed_time(stop) / 1e4)
        else:
            begin = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - begin)
    return best


def _bandwidths(kind: Kind) -> tuple[float, float]:
    import torch

    nbytes = _CUDA_COPY_BYTES if kind == "cuda" else _CPU_COPY_BYTES
    if kind == "cuda":
        nbytes = min(nbytes, torch.cuda.mem_get_info()[0] // 8 // 4 * 4)
    source = torch.ones(nbytes // 4, device=kind)
    target = torch.zeros_like(source)
    seconds = _best_seconds(lambda: target.copy_(source), kind)
    if kind == "cpu":  # libc's copy does not read the target first, as torch's does
        seconds = min(seconds, _streaming_copy_seconds(source, target))
    read = _best_seconds(lambda: source.sum(), kind)
    return 2 * nbytes / seconds / 1e9, nbytes / read / 1e9


def _streaming_copy_seconds(source: torch.Tensor, target: torch.Tensor) -> float:
    import torch

    workers = torch.get_num_threads()
    part = source.numel() * 4 // workers // 4096 * 4096
    memcpy = ctypes.CDLL(None).memcpy
    memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def copy(index: int) -> None:
        memcpy(target.data_ptr() + index * part, source.data_ptr() + index * part, part)

    with ThreadPoolExecutor(workers) as pool:
        seconds = _best_seconds(lambda: list(pool.map(copy, range(workers))), "cpu")
    return seconds * source.numel() * 4 / (part * workers)


def _matmul_rates(kind: Kind) -> tuple[float, float | None, float | None]:
    import torch

    size = _CUDA_MATMUL if kind == "cuda" else _CPU_MATMUL
    left, right = (torch.randn(size, size, device=kind) for _ in range(2))

    def rate(a: torch.Tensor, b: torch.Tensor) -> float:
        return 2 * size**3 / _best_seconds(lambda: a @ b, kind) / 1e12

    halves = left.bfloat16(), right.bfloat16()
    if kind == "cpu":
        fp32 = rate(left, right)
        # Without bf16 instructions torch's product is a thousand times slower; a small one tells soon enough.
        small = 256
        halves = halves[0][:small, :small].contiguous(), halves[1][:small, :small].contiguous()
        return fp32, None, 2 * small**3 / _best_seconds(lambda: halves[0] @ halves[1], kind) / 1e12
    matmul = torch.backends.cuda.matmul
    allowed = matmul.allow_tf32
    try:
        matmul.allow_tf32 = False
        fp32 = rate(left, right)
        matmul.allow_tf32 = True
        tf32 = rate(left, right)
    finally:
        matmul.allow_tf32 = allowed
    major, _ = torch.cuda.get_device_capability()
    return fp32, tf32 if major >= 8 else None, rate(*halves) if major >= 8 else None
