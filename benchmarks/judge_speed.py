"""From sources to verdict: distinct launcher candidates for KernelBench tasks at published sizes.

Workers are warm, and baselines are not measured here (a cached one costs reading a file). Beside it, on the same
kernels, KernelBench's own `eval_kernel_against_ref` and the published workdir's scripts, if their checkouts are given.

    python benchmarks/judge_speed.py kernelbench.jsonl --kernelbench KernelBench --workdir CUDA-Agent/agent_workdir
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kernelbench_optimize import COVERED
from report import finish

from cuda_agent.candidate import Candidate, read_launchers
from cuda_agent.expert import Expert
from cuda_agent.judge import Job, LocalJudge, Settings
from cuda_agent.task import Task

FORTY = [5, *COVERED]
RIVAL_IDS = [40, 88, 95]  # of moderate size: the rivals draw inputs on the CPU, minutes for the largest tasks


def candidates(rows: dict[int, dict[str, Any]], ids: list[int], judge: LocalJudge) -> dict[int, tuple[Task, Candidate]]:
    """The expert's first proposal for each task."""
    found = {}
    for number in ids:
        task = Task(rows[number]["name"], rows[number]["code"], "model.py")
        request = {"source": task.source, "device": judge.device}
        graph = judge.confined_call("cuda_agent.expert.capture:capture_source", request)
        found[number] = task, Expert(graph, device=judge.device).ask(1)[0].candidate
    return found


def salted(candidate: Candidate, salt: str) -> Candidate:
    """The same kernels as other content, so that nothing is cached."""
    files = {
        path: body + f"\n// {salt}\n".encode() if path.endswith((".cu", ".cpp")) else body
        for path, body in candidate.files.items()
    }
    return Candidate(files, candidate.form)


def ours(made: dict[int, tuple[Task, Candidate]], judge: LocalJudge, mode: str, together: bool, salt: str) -> Any:
    """Seconds per candidate one after another, or in all when they are submitted together."""
    settings = Settings(mode=mode, baselines=False)  # type: ignore[arg-type]
    jobs = [Job(task, salted(c, f"{salt} {n}"), settings) for n, (task, c) in made.items()]
    begun = time.perf_counter()
    if together:
        verdicts = [handle.result() for handle in [judge.submit(job) for job in jobs]]
        return time.perf_counter() - begun, [v.status for v in verdicts]
    each = []
    for job in jobs:
        start = time.perf_counter()
        verdict = judge.submit(job).result()
        each.append((time.perf_counter() - start, verdict.status, verdict.seconds, verdict.message[:200]))
    return each


# The same kernels behind a torch binding, for the rivals.


def inlined(files: dict[str, bytes], path: str) -> str:
    """A kernel source with its local headers pasted in."""
    text = files[path].decode()

    def paste(match: re.Match[str]) -> str:
        for name in (match.group(1), f"kernels/{match.group(1)}"):
            if name in files:
                return inlined(files, name).replace("#pragma once", "")
        return match.group(0)

    macros = json.loads(files.get("kernels/schedule.json", b"{}")).get(Path(path).stem, {})
    defines = "".join(f"#define {name} {value}\n" for name, value in macros.items())
    return defines + re.sub(r'#include "([^"]+)"', paste, text)


def binding(files: dict[str, bytes], sources: list[str]) -> tuple[str, list[str]]:
    """C++ that takes tensors and scalars, and the names it defines."""
    lines = ["#include <torch/extension.h>", "#include <c10/cuda/CUDAStream.h>", "#include <cuda_runtime.h>"]
    names = []
    for path in sources:
        for launcher in read_launchers(files[path].decode(), path):
            declared, taken, passed = [], [], []
            for p in launcher.parameters:
                declared.append("cudaStream_t" if p.stream else f"{p.type}*" if p.pointer else p.type)
                if p.stream:
                    passed.append("c10::cuda::getCurrentCUDAStream().stream()")
                elif p.pointer:
                    taken.append(f"torch::Tensor {p.name}")
                    passed.append(f"({p.type}*){p.name}.data_ptr()")
                else:
                    taken.append(f"{p.type} {p.name}")
                    passed.append(p.name)
            result = "int" if launcher.returns_status else "void"
            lines.append(f'extern "C" {result} {launcher.name}({", ".join(declared)});')
            lines.append(f"void bound_{launcher.name}({', '.join(taken)}) {{ {launcher.name}({', '.join(passed)}); }}")
            names.append(launcher.name)
    return "\n".join(lines), names


def kernelbench(checkout: Path, task: Task, candidate: Candidate) -> list[float]:
    """Seconds of `eval_kernel_against_ref`, cold and with the build cached, in a process that is up already."""
    files = dict(candidate.files)
    sources = [path for path in files if path.endswith(".cu")]
    cpp, names = binding(files, sources)
    functions = {f"bound_{name}": f"bound_{name}" for name in names}
    head = (
        "import torch\nfrom torch.utils.cpp_extension import load_inline\n"
        f"_built = load_inline(name='kb_{candidate.key[:8]}', cpp_sources={cpp!r}, "
        f"cuda_sources={[inlined(files, path) for path in sources]!r}, functions={list(functions)!r})\n"
        "class ops:\n" + "".join(f"    {n} = staticmethod(_built.bound_{n})\n" for n in names)
    )
    source = head + files["model_new.py"].decode().replace("import ops\n", "")
    script = f"""
import importlib.util, json, sys, time, types, torch
for module, names in (("dotenv", ["load_dotenv"]), ("openai", ["OpenAI"]), ("litellm", ["completion"])):
    if importlib.util.find_spec(module) is None:  # its prompts need them, its evaluation does not
        sys.modules[module] = types.SimpleNamespace(**dict.fromkeys(names, lambda *a, **k: None))
sys.path.insert(0, {str(checkout / "src")!r})
from kernelbench.eval import eval_kernel_against_ref
torch.zeros(1, device="cuda")
ref, new = json.load(open(sys.argv[1]))
for _ in range(2):
    start = time.perf_counter()
    result = eval_kernel_against_ref(ref, new, num_correct_trials=5, num_perf_trials=100, measure_performance=True,
                                     build_dir=sys.argv[2], device=torch.device("cuda:0"))
    print("SECONDS", time.perf_counter() - start, result.compiled, result.correctness)
"""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sources.json").write_text(json.dumps([task.source, source]))
        return _seconds([sys.executable, "-c", script, f"{folder}/sources.json", f"{folder}/build"], Path(folder))


def workdir(checkout: Path, task: Task, candidate: Candidate) -> list[float]:
    """Seconds of compile, verification and profiling, cold; then of the last two alone."""
    files = dict(candidate.files)
    sources = [path for path in files if path.endswith(".cu")]
    cpp, names = binding(files, sources)
    registered = "".join(f'    m.def("{n}", &bound_{n});\n' for n in names)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "work"
        shutil.copytree(checkout, root)
        for leftover in (root / "kernels").iterdir():
            leftover.unlink()
        for path in sources:
            (root / path).write_text(inlined(files, path))
        (root / "kernels" / "ops_binding.cpp").write_text(
            f'{cpp}\n#include "../binding_registry.h"\n'
            f"static void register_ops(pybind11::module& m) {{\n{registered}}}\n"
            "REGISTER_BINDING(ops, register_ops);\n"
        )
        (root / "model.py").write_text(task.source)
        model = files["model_new.py"].decode().replace("import ops\n", "import cuda_extension as ops\n")
        (root / "model_new.py").write_text(model)
        steps = []
        for module in ("utils.compile", "utils.verification", "utils.profiling"):
            start = time.perf_counter()
            done = subprocess.run([sys.executable, "-m", module], cwd=root, capture_output=True, text=True, timeout=400)
            steps.append(time.perf_counter() - start)
            if done.returncode:
                print(module, done.stdout[-800:], done.stderr[-800:])
        return [sum(steps), steps[1] + steps[2]]


def _seconds(argv: list[str], cwd: Path) -> list[float]:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=500)
    found = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("SECONDS")]
    if len(found) != 2 or "True True" not in done.stdout:
        print(done.stdout[-1000:], done.stderr[-2000:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ids", type=int, nargs="*", default=FORTY)
    parser.add_argument("--rival-ids", type=int, nargs="*", default=RIVAL_IDS)
    parser.add_argument("--lanes", type=int, default=3)
    parser.add_argument("--kernelbench", type=Path)
    parser.add_argument("--workdir", type=Path)
    options = parser.parse_args()
    rows = {row["problem_id"]: row for row in map(json.loads, options.tasks.open()) if row["level"] == 1}
    table: list[list[Any]] = []
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        with LocalJudge(options.device, cache=Path(cache), warm_tasks=64) as judge:
            made = candidates(rows, options.ids, judge)
            for task, _ in made.values():
                judge.prepare(task)
            for mode in ("full", "training"):
                each = ours(made, judge, mode, False, f"{mode} alone")
                details[f"{mode} alone"] = dict(zip(made, each, strict=True))
                seconds = [s for s, *_ in each]
                good = sum(status == "accepted" for _, status, *_ in each)
                table.append([f"{mode}, one at a time", len(each), good, statistics.median(seconds), max(seconds),
                              60 * len(each) / sum(seconds)])  # fmt: skip
            singles = {n: details["full alone"][n][0] for n in options.rival_ids if n in made}
        with LocalJudge(options.device, cache=Path(cache), warm_tasks=64, lanes=options.lanes) as judge:
            for task, _ in made.values():
                judge.prepare(task)
            for mode in ("full", "training"):
                total, statuses = ours(made, judge, mode, True, f"{mode} together")
                table.append([f"{mode}, {options.lanes} lanes", len(made), statuses.count("accepted"), None, None,
                              60 * len(made) / total])  # fmt: skip
    for name, checkout, run in (
        ("KernelBench", options.kernelbench, kernelbench),
        ("workdir", options.workdir, workdir),
    ):
        if checkout is None:
            continue
        for number in singles:
            cold, warm = (*run(checkout.absolute(), *made[number]), float("nan"), float("nan"))[:2]
            details[f"{name} {number}"] = [cold, warm]
            table.append([f"{name} on {number}: builds included, evaluation alone", 1, None, cold, warm,
                          cold / singles[number]])  # fmt: skip
    finish(
        "judge_speed",
        options.device,
        ["what", "n", "accepted", "median s", "max s", "per minute | × ours"],
        table,
        details,
    )


if __name__ == "__main__":
    main()
