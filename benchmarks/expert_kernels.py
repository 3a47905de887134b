"""The expert's CUDA kernels alone, without judge or search: default schedules and their neighbours on KernelBench.

Each kernel is compiled with its default schedule and with schedules that differ from it in one macro; then with all
changes that helped. Times are medians between CUDA events; inputs rotate where they are not far larger than the L2
cache. Eager and compile times come from a baseline file, `floor` from the bytes that must move.

    python benchmarks/expert_kernels.py kernelbench.jsonl --baseline kernelbench_h200_baseline.jsonl --ids 19-40,47
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import operator
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from report import finish

from cuda_agent.candidate import BuildUnit, Candidate, Toolchain
from cuda_agent.candidate import plan as build_units
from cuda_agent.errors import CudaAgentError
from cuda_agent.expert.capture import capture_source
from cuda_agent.expert.cuda import CudaEmitter
from cuda_agent.expert.emitter import Space
from cuda_agent.expert.ir import Plan
from cuda_agent.expert.plan import plan_graph

COPY, READ = 4.25e9, 4.7e9  # bytes a millisecond: ceilings of an H200
L2_BYTES = 50 << 20
TOLERANCE = 1e-4  # of ‖ours - eager‖ / ‖eager‖
DEFAULT_IDS = "19-40,47-49,51-53,88,94-96,98-100"
Change = tuple[str, str, int]  # kernel, macro, value


class Builder:
    """Compiles each distinct source and schedule once, as the judge would, in the background."""

    def __init__(self, folder: Path, arch: str) -> None:
        self.folder, self.toolchain = folder, Toolchain.detect("cuda", arch)
        self.pool = ThreadPoolExecutor(os.cpu_count())
        self.builds: dict[str, Future[Path]] = {}

    def submit(self, files: Mapping[str, bytes]) -> dict[str, Future[Path]]:
        """Kernel name → its shared object."""
        units = build_units(Candidate(files, "launchers"), "cuda", self.toolchain)
        for unit in units:
            if unit.key not in self.builds:
                self.builds[unit.key] = self.pool.submit(self._compile, unit)
        return {unit.name: self.builds[unit.key] for unit in units}

    def _compile(self, unit: BuildUnit) -> Path:
        folder = self.folder / unit.key
        for path, content in unit.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        done = subprocess.run(unit.argv, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{unit.argv}: {done.stderr[:500]}")
        return folder / unit.output


@dataclass
class Entry:
    """A task with its plan and the builds of its schedules. changes: what differs from the default schedule."""

    number: int
    name: str
    code: str
    plan: Plan
    spaces: Mapping[str, Space]
    builds: dict[tuple[Change, ...], dict[str, Future[Path]]] = field(default_factory=dict)
    times: dict[tuple[Change, ...], float | str] = field(default_factory=dict)
    error: float | None = None
    copy: float | None = None

    def schedule(self, changes: tuple[Change, ...]) -> dict[str, dict[str, int]]:
        made = {name: dict(space.default) for name, space in self.spaces.items()}
        for kernel, macro, value in changes:
            made[kernel][macro] = value
        return made

    def submit(self, builder: Builder, changes: tuple[Change, ...]) -> None:
        self.builds[changes] = builder.submit(CudaEmitter().emit(self.plan, self.schedule(changes)))

    @property
    def best(self) -> tuple[float, tuple[Change, ...]] | None:
        found = [(t, c) for c, t in self.times.items() if isinstance(t, float)]
        return min(found, key=operator.itemgetter(0)) if found else None


def neighbours(entry: Entry, limit: int) -> Iterator[tuple[Change, ...]]:
    """Single changes, nearest values first, in a random but repeatable order among those."""
    found: list[tuple[int, float, Change]] = []
    chance = random.Random(entry.number)
    for kernel, space in entry.spaces.items():
        for macro, values in space.choices.items():
            at = values.index(space.default[macro])
            found += [(abs(i - at), chance.random(), (kernel, macro, v)) for i, v in enumerate(values) if i != at]
    for _, _, change in sorted(found)[:limit]:
        yield (change,)


def named(entry: Entry, macros: Mapping[str, int]) -> tuple[Change, ...]:
    """Changes written as `MACRO` or `kernel.MACRO` (without a kernel: the first) and values."""
    first, changes = next(iter(entry.spaces)), []
    for name, value in macros.items():
        kernel, _, macro = name.rpartition(".")
        changes.append((kernel or first, macro, value))
    return tuple(changes)


def prepare(row: Mapping[str, Any]) -> Entry:
    plan = plan_graph(capture_source(row["code"], "cuda")).plan
    return Entry(row["problem_id"], row["name"], row["code"], plan, CudaEmitter().space(plan))


class Bench:
    """A task's tensors on the GPU."""

    def __init__(self, entry: Entry) -> None:
        self.entry, plan = entry, entry.plan
        namespace: dict[str, Any] = {}
        with torch.device("cuda"):
            exec(entry.code, namespace)
            model = namespace["Model"](*namespace["get_init_inputs"]()).eval()
            sets = [namespace["get_inputs"]()]
            size = sum(t.nbytes for t in sets[0] if isinstance(t, torch.Tensor))
            sets += [namespace["get_inputs"]() for _ in range(min(8, 4 * L2_BYTES // max(size, 1)))]
        self.model, self.sets = model, sets
        names = [b.name for b in plan.buffers if b.role == "input"]
        self.inputs = [
            dict(zip(names, (t.contiguous() for t in s if isinstance(t, torch.Tensor)), strict=True)) for s in sets
        ]
        self.memory: dict[str, torch.Tensor] = {}
        for b in plan.buffers:
            if b.role == "param":
                self.memory[b.name] = operator.attrgetter(b.source)(model).detach().contiguous()
            elif b.role != "input":
                self.memory[b.name] = torch.empty(b.shape, dtype=getattr(torch, b.dtype), device="cuda")
        for kernel in plan.kernels:
            for w in CudaEmitter().workspaces(plan, kernel):
                self.memory[w.name] = torch.full(w.shape, 0xAB, dtype=torch.uint8, device="cuda")

    def runner(self, objects: Mapping[str, Path]) -> Any:
        """A function of the input set's number that launches the whole plan."""
        plan, stream = self.entry.plan, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        libraries = {name: ctypes.CDLL(str(path))[name] for name, path in objects.items()}
        calls = []
        for inputs in self.inputs:
            known = {**inputs, **self.memory}
            steps = []
            for k in plan.kernels:
                names = [*k.reads, *k.writes, *(w.name for w in CudaEmitter().workspaces(plan, k))]
                steps.append((libraries[k.name], [*(ctypes.c_void_p(known[n].data_ptr()) for n in names), stream]))
            calls.append(steps)

        def run(number: int) -> None:
            for launcher, arguments in calls[number % len(calls)]:
                code = launcher(*arguments)
                if code:
                    raise RuntimeError(f"CUDA error {code}")

        return run

    def time(self, run: Any, repeats: int = 9) -> float:
        """Median milliseconds."""
        run(0)
        run(1)
        torch.cuda.synchronize()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for i in range(repeats):
            run(i)
            events[i + 1].record()
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))

    def copy(self) -> float | None:
        """Milliseconds of PyTorch's own copy, where one input and one output have the same size."""
        source = next(iter(self.inputs[0].values()))
        target = self.memory.get(self.entry.plan.results[0])
        if target is None or target.shape != source.shape or target.dtype != source.dtype:
            return None
        return self.time(lambda number: target.copy_(source))

    def warm_up(self, run: Any, seconds: float = 0.15) -> None:
        """Clocks rise."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            run(0)
            torch.cuda.synchronize()

    def difference(self, run: Any) -> float:
        """Largest ‖ours - eager‖ / ‖eager‖ over the outputs; for integers, the share that differs."""
        outputs = [self.memory[n] for n in self.entry.plan.results]
        for out in outputs:
            out.fill_(float("nan") if out.is_floating_point() else -7)
        run(0)
        with torch.no_grad():
            made = self.model(*self.sets[0])
        eager = torch.utils._pytree.tree_leaves(made)
        torch.cuda.synchronize()
        worst = 0.0
        for ours, theirs in zip(outputs, eager, strict=True):
            if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
                return float("inf")
            error = norm = 0.0
            for a, b in zip(ours.view(-1).split(1 << 28), theirs.reshape(-1).split(1 << 28), strict=True):
                if not a.is_floating_point():
                    error, norm = error + float((a != b).sum()), norm + a.numel()
                    continue
                error += float((a - b).double().square().sum())
                norm += float(b.double().square().sum())
            worst = max(worst, (error / norm) ** (0.5 if ours.is_floating_point() else 1) if norm else error)
        return worst


def floor_ms(plan: Plan) -> float:
    outside = [b for b in plan.buffers if b.role != "temp"]
    total = sum(b.nbytes for b in outside)
    written = sum(b.nbytes for b in outside if b.role == "output")
    return total / (READ if written * 20 < total else COPY)


def measure(bench: Bench, changes: tuple[Change, ...], repeats: int = 7) -> None:
    entry = bench.entry
    try:
        run = bench.runner({name: build.result() for name, build in entry.builds[changes].items()})
        entry.times[changes] = bench.time(run, repeats)
    except RuntimeError as error:
        entry.times[changes] = str(error)
        if "CUDA error" in str(error) or "illegal" in str(error):
            print(entry.name, changes, error, file=sys.stderr)


def tune(entry: Entry, builder: Builder) -> None:
    """Default and others, then everything that helped at once; the fastest and the default once more."""
    builds = [build for made in entry.builds.values() for build in made.values()]
    wait(builds)
    bench = Bench(entry)
    run = bench.runner({name: build.result() for name, build in entry.builds[()].items()})
    entry.error = bench.difference(run)
    bench.warm_up(run)
    entry.copy = bench.copy()
    for changes in list(entry.builds):
        measure(bench, changes)
    base = entry.times[()]
    if not isinstance(base, float):
        return
    helped: dict[tuple[str, str], tuple[float, Change]] = {}
    for changes, t in entry.times.items():
        if len(changes) == 1 and isinstance(t, float) and t < 0.99 * base:
            key = changes[0][:2]
            helped[key] = min(helped.get(key, (t, changes[0])), (t, changes[0]))
    ranked = [change for _, change in sorted(helped.values())]
    for count in range(2, min(len(ranked), 4) + 1):
        entry.submit(builder, tuple(ranked[:count]))
    for changes in [c for c in entry.builds if c not in entry.times]:
        measure(bench, changes)
    found = sorted((t, c) for c, t in entry.times.items() if isinstance(t, float))
    for changes in [(), *(c for _, c in found[:4] if c)]:
        measure(bench, changes, 21)
    while (best := entry.best) and best[1]:  # the winner has to be right
        run = bench.runner({name: build.result() for name, build in entry.builds[best[1]].items()})
        error = bench.difference(run)
        if error < TOLERANCE:
            break
        entry.times[best[1]] = f"wrong by {error:.2g}"


def numbers(text: str) -> list[int]:
    parts = [part.partition("-") for part in text.split(",")]
    return [n for low, _, high in parts for n in range(int(low), int(high or low) + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tasks", type=Path, help="KernelBench as JSONL")
    parser.add_argument("--baseline", type=Path, help="JSONL with level, id, eager and compile in ms")
    parser.add_argument("--ids", default=DEFAULT_IDS, help="of level 1")
    parser.add_argument("--variants", type=int, default=8, help="other schedules for each task")
    parser.add_argument("--more", default="", help="id=count,…: other numbers of variants for these tasks")
    parser.add_argument("--schedules", type=Path, help='JSON of more schedules to try: {"23": [{"TEAM": 8}, …], …}')
    parser.add_argument("--seconds", type=float, default=600, help="stop starting tasks after so long")
    options = parser.parse_args()
    started, wanted = time.monotonic(), numbers(options.ids)
    rows = {r["problem_id"]: r for r in map(json.loads, options.tasks.open()) if r["level"] == 1}
    baseline: dict[int, Any] = {}
    if options.baseline:
        baseline = {r["id"]: r for r in map(json.loads, options.baseline.open()) if r["level"] == 1}
    more = {int(k): int(v) for k, _, v in (part.partition("=") for part in options.more.split(",") if part)}
    major, minor = torch.cuda.get_device_capability()
    table: list[list[Any]] = []
    details: list[Any] = []
    entries: list[Entry] = []
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder), f"sm_{major}{minor}")
        for number in wanted:
            try:
                entry = prepare(rows[number])
            except (CudaAgentError, AssertionError, KeyError) as error:
                table.append([number, rows[number]["name"][:24], *[None] * 6, "", None, None, str(error)[:60]])
                continue
            entry.submit(builder, ())
            entries.append(entry)
        tried = json.loads(options.schedules.read_text()) if options.schedules else {}
        for entry in entries:  # after all defaults, which everybody needs
            for macros in tried.get(str(entry.number), ()):
                entry.submit(builder, named(entry, macros))
            for changes in neighbours(entry, more.get(entry.number, options.variants)):
                entry.submit(builder, changes)
        print(f"{len(builder.builds)} builds submitted after {time.monotonic() - started:.0f} s", file=sys.stderr)
        for entry in entries:
            if time.monotonic() - started > options.seconds:
                break
            try:
                tune(entry, builder)
            except torch.cuda.OutOfMemoryError as error:
                entry.times.setdefault((), str(error)[:60])
            torch.cuda.empty_cache()
            table.append(row_of(entry, baseline.get(entry.number, {})))
            details.append(
                {
                    "id": entry.number,
                    "default": {n: dict(s.default) for n, s in entry.spaces.items()},
                    "times": [[list(c), t] for c, t in entry.times.items()],
                    "error": entry.error,
                }
            )
        builder.pool.shutdown(cancel_futures=True)
    print(f"took {time.monotonic() - started:.0f} s", file=sys.stderr)
    columns = [
        "id",
        "name",
        "eager",
        "compile",
        "copy",
        "default",
        "best",
        "floor",
        "best schedule",
        "fraction",
        "error",
        "ok",
    ]
    finish("expert_kernels", "cuda", columns, sorted(table), details)


def row_of(entry: Entry, known: Mapping[str, Any]) -> list[Any]:
    base, best, floor = entry.times.get(()), entry.best, floor_ms(entry.plan)
    head = [entry.number, entry.name[:24], known.get("eager"), known.get("compile"), entry.copy]
    if not isinstance(base, float) or best is None:
        return [*head, None, None, floor, "", None, entry.error, str(base)[:60]]
    many = len(entry.spaces) > 1
    changed = " ".join(f"{kernel + '.' if many else ''}{macro}={value}" for kernel, macro, value in best[1])
    ok = "yes" if entry.error is not None and entry.error < TOLERANCE else "NO"
    return [*head, base, best[0], floor, changed, floor / best[0], entry.error, ok]


if __name__ == "__main__":
    main()
