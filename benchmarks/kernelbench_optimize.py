"""KernelBench tasks through `optimize`: supported, accepted, faster than eager and than torch.compile, geometric means.

Resumable: results are appended to a JSONL file, and tasks that are in it are skipped.

    python benchmarks/kernelbench_optimize.py kernelbench.jsonl --state docs/results/kernelbench_level1_h200.jsonl

`kernelbench.jsonl` holds one row per task with level, problem_id, name and code. --reference: eager and compile times
measured elsewhere (rows with level, id, compile, mb), to tell which tasks compile already runs at the roofline.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

from report import finish

from cuda_agent.errors import CudaAgentError
from cuda_agent.expert import Unsupported
from cuda_agent.judge import LocalJudge
from cuda_agent.optimize import NoCandidate, optimize
from cuda_agent.task import Task

COVERED = [*range(19, 41), 47, 48, 49, 51, 52, 53, 88, 94, 95, 96, 98, 99, 100]


def run_one(task: Task, judge: LocalJudge, budget_s: float, out: Path | None) -> dict[str, Any]:
    started = time.monotonic()
    record: dict[str, Any] = {}
    try:
        result = optimize(task, device=judge.device, budget_s=budget_s, judge=judge, out=out)
    except Unsupported as error:
        record |= {"status": "unsupported", "message": str(error)}
    except NoCandidate as error:
        record |= {"status": "rejected", "message": str(error)}
    except CudaAgentError as error:
        record |= {"status": "unusable", "message": str(error)}
    else:
        verdict = result.verdict
        schedule = result.candidate.files.get("kernels/schedule.json", b"{}")
        record |= {
            "status": "accepted",
            "trials": len(result.history),
            "schedule": json.loads(schedule),
            "verdict": verdict.model_dump(mode="json", exclude={"log", "device", "versions", "task"}),
        }
    return record | {"wall_s": round(time.monotonic() - started, 1)}


def geomean(values: list[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--ids", type=int, nargs="*", default=COVERED)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of search per task")
    parser.add_argument("--limit", type=float, default=1e9, help="start no task after this many seconds")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the result folders")
    options = parser.parse_args()
    rows = {row["problem_id"]: row for row in map(json.loads, options.tasks.open()) if row["level"] == options.level}
    done = {}
    if options.state.exists():
        done = {record["id"]: record for record in map(json.loads, options.state.open())}
    begun = time.monotonic()
    with LocalJudge(options.device) as judge:
        for number in options.ids:
            if number in done or time.monotonic() - begun > options.limit:
                continue
            task = Task(rows[number]["name"], rows[number]["code"], "model.py")
            out = options.keep / rows[number]["name"] if options.keep else None
            done[number] = {"id": number, "name": task.name} | run_one(task, judge, options.budget, out)
            with options.state.open("a") as stream:
                stream.write(json.dumps(done[number]) + "\n")
            print(number, task.name, done[number]["status"], done[number].get("message", "")[:200], flush=True)
            if os.environ.get("OUT"):
                shutil.copy(options.state, os.environ["OUT"])
    summarise(options, done)


def summarise(options: argparse.Namespace, done: dict[int, dict[str, Any]]) -> None:
    reference = {}
    if options.reference:
        reference = {r["id"]: r for r in map(json.loads, options.reference.open()) if r["level"] == options.level}
    table = []
    for number in options.ids:
        record = done.get(number)
        if record is None:
            continue
        verdict = record.get("verdict")
        if verdict is None:
            table.append([number, record["name"][:28], record["status"], *[None] * 7])
            continue
        times = verdict["times"]
        ms = [times[k]["ms"] if times[k] else None for k in ("eager", "compile", "candidate")]
        at_roof = None
        if number in reference:
            at_roof = verdict["roofline"]["floor_ms"] / reference[number]["compile"]
        table.append(
            [number, record["name"][:28], f"reward {verdict['reward']}", *ms, verdict["speedup_eager"],
             verdict["speedup_compile"], verdict["roofline"]["fraction"], at_roof]
        )  # fmt: skip
    accepted = [r["verdict"] for r in done.values() if "verdict" in r and r["id"] in options.ids]
    columns = [
        "id",
        "task",
        "result",
        "eager ms",
        "compile ms",
        "ours ms",
        "×eager",
        "×compile",
        "ours/roof",
        "compile/roof",
    ]
    finish(f"kernelbench_level{options.level}", options.device, columns, table, list(done.values()))
    supported = sum(r["status"] != "unsupported" for r in done.values())
    print(
        f"{len(done)} of {len(options.ids)} tasks run; supported {supported}, accepted {len(accepted)}, "
        f"faster than eager {sum(v['reward'] >= 2 for v in accepted)}, "
        f"than compile by over 5 % {sum(v['reward'] >= 3 for v in accepted)}; geometric mean "
        f"×eager {geomean([v['speedup_eager'] for v in accepted if v['speedup_eager']]):.3f}, "
        f"×compile {geomean([v['speedup_compile'] for v in accepted if v['speedup_compile']]):.3f}"
        if accepted
        else "nothing accepted"
    )


if __name__ == "__main__":
    main()
