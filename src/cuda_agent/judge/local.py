"""The judge on this machine: zygote, builder, lanes; from a job to a verdict."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, cast

from cuda_agent.backends import get_backend
from cuda_agent.candidate import Toolchain, plan
from cuda_agent.candidate.extension import extension_unit
from cuda_agent.errors import CandidateError, CudaAgentError, TaskError
from cuda_agent.judge import inductor
from cuda_agent.judge.baselines import Baselines
from cuda_agent.judge.blame import explain
from cuda_agent.judge.builder import Builder, Built
from cuda_agent.judge.job import Job, Settings
from cuda_agent.judge.lane import CandidateFailed, Lane, RefereeLost
from cuda_agent.judge.reward import near_threshold, reward_of
from cuda_agent.judge.verdict import Device, Errors, Interval, Roofline, Speedup, Status, Times, Verdict
from cuda_agent.judge.wire import Channel, ChannelClosed, ChannelTimeout
from cuda_agent.judge.zygote import ENVIRONMENT, Zygote
from cuda_agent.paths import cache_dir
from cuda_agent.sandbox import Policy, Stopped
from cuda_agent.task import Task


@dataclass(frozen=True)
class LocalHandle:
    """A judgement under way."""

    future: Future[Verdict]

    def result(self, timeout: float | None = None) -> Verdict:
        """Raises TaskError (the task is unusable), SetupError, TimeoutError, CancelledError."""
        return self.future.result(timeout)

    def cancel(self) -> None:
        """Give it up if it has not begun."""
        self.future.cancel()


class LocalJudge:
    """device: `cpu`, `cuda`, or `auto`. lanes: judgements side by side; timing itself is always exclusive.

    warm_tasks: tasks whose runner is kept per lane. Each costs a process, and on a GPU a context (0.5 GB).

    A context manager: leaving it ends every process that it started.
    """

    def __init__(
        self,
        device: Literal["auto", "cpu", "cuda"] | str = "auto",
        *,
        lanes: int = 1,
        build_jobs: int | None = None,
        warm_tasks: int = 4,
        cache: Path | None = None,
    ) -> None:
        self._backend = get_backend(cast(Any, device))
        self.device = self._backend.kind
        self._zygote = Zygote(self.device)  # first, since it needs seconds to start
        self._device_name = self._backend.device_name()
        self._cache = cache or cache_dir()
        self._toolchain: Toolchain | None = None
        hidden = (self._cache.absolute(),)
        cores = os.cpu_count() or 2
        self._builder = Builder(self._cache / "objects", jobs=build_jobs or cores, hidden=hidden)
        self._versions = _versions(self.device)
        self._baselines = Baselines(self._cache / "baselines", self._device_name, self._versions)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._policy = Policy(
            memory_bytes=int(0.8 * memory),
            hidden=hidden,
            address_space=self.device == "cpu",
            devices=self.device == "cuda",
        )
        self._lanes = [Lane(self._zygote, self._policy, warm_tasks) for _ in range(lanes)]
        self._idle = list(self._lanes)
        self._free = threading.Condition()
        self._building = ThreadPoolExecutor(cores, thread_name_prefix="plan")
        self._judging = ThreadPoolExecutor(lanes, thread_name_prefix="judge")
        self._inductor_files: Future[dict[str, Path]] | None = None
        if self.device == "cpu":
            self._inductor_files = self._building.submit(self._make_inductor_files)
        self._ceilings: dict[str, Any] | None = None
        self._closed = False

    def __enter__(self) -> LocalJudge:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # The interface

    def submit(self, job: Job) -> LocalHandle:
        """Builds start at once; judging waits for its turn."""
        building = self._building.submit(self._build, job)
        return LocalHandle(self._judging.submit(self._judge, job, building))

    def warm_up(self, task: Task) -> None:
        """Have the task ready for a judgement with baselines, in turn. What goes wrong is told by that judgement.

        On the CPU this goes on in the background. On a GPU it waits until the other tasks have given back the memory
        that this one may need.
        """
        warm = self._judging.submit(self._warm_up, task)
        if self.device == "cuda":
            warm.result()

    def _warm_up(self, task: Task) -> None:
        with suppress(CudaAgentError, RefereeLost, ChannelClosed, Stopped), self._lane(task) as lane:
            lane.open(task, Settings())
            if self.device == "cpu":
                self._compiles(lane, task)

    def prepare(self, task: Task) -> None:
        """Have a task's runner warm in every lane. Raises TaskError."""
        with self._free:
            self._free.wait_for(lambda: len(self._idle) == len(self._lanes))
            lanes, self._idle = self._idle, []
        try:
            with ThreadPoolExecutor(len(lanes)) as pool:
                list(pool.map(lambda lane: lane.open(task, Settings()), lanes))
        finally:
            with self._free:
                self._idle = lanes
                self._free.notify_all()

    def confined_call(self, entry: str, arguments: dict[str, Any], timeout: float = 300.0) -> Any:
        """Run `cuda_agent.<module>:<function>(**arguments)` where foreign code may run; JSON in, JSON out.

        An error of ours (CudaAgentError) is raised here as what it is.
        """
        worker = self._zygote.spawn("runner", self._policy)
        try:
            channel = Channel(worker.channel)
            answer = channel.call({"do": "call", "entry": entry, "arguments": arguments}, timeout=timeout)
        except ChannelTimeout:
            raise TaskError(f"running the task's code took longer than {timeout:g} s") from None
        except ChannelClosed:
            ended, said = worker.ended(), worker.output()[-1000:].strip()
            raise TaskError(f"the process that ran the task's code died ({ended}); it printed: {said!r}") from None
        finally:
            worker.close()
        if "ok" in answer:
            return answer["ok"]
        raise _ours(answer["error"])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._judging.shutdown(wait=False, cancel_futures=True)
        self._building.shutdown(wait=False, cancel_futures=True)
        for lane in self._lanes:
            lane.interrupt()
        self._zygote.close()  # all that it forked dies with it
        self._builder.close()
        self._judging.shutdown(wait=True)
        for lane in self._lanes:
            lane.close()

    # One job

    def _build(self, job: Job) -> list[Built] | CandidateError:
        try:
            if job.candidate.form == "single":
                return []
            units = plan(job.candidate, self.device, self._tools())
        except CandidateError as error:
            return error
        return self._compile(units, job.settings)

    def _compile(self, units: list[Any], settings: Settings) -> list[Built]:
        if self.device == "cuda":
            return self._builder.build(units, settings.compile_timeout_s)
        with self._backend.timer_lease(shared=True):  # compilers and the clock share the cores
            return self._builder.build(units, settings.compile_timeout_s)

    def _tools(self) -> Toolchain:
        if self._toolchain is None:
            self._toolchain = Toolchain.detect(self.device)
        return self._toolchain

    def _judge(self, job: Job, building: Future[list[Built] | CandidateError]) -> Verdict:
        try:
            built = building.result()
        except Stopped:
            raise CancelledError from None
        if isinstance(built, CandidateError):
            return self._rejected(job, "load_failed", "load", str(built))
        if failed := next((b for b in built if b.failure is not None), None):
            status: Status = "timed_out" if failed.failure == "timed_out" else "build_failed"
            what = {
                "failed": "does not compile",
                "timed_out": "took too long to compile",
                "memory": "needs too much memory",
            }
            message = f"{failed.unit.name} {what[failed.failure or 'failed']}: {_first_error(failed.log)}"
            return self._rejected(job, status, "build", message, log=failed.log)
        with self._lane(job.task) as lane:
            try:
                return self._judge_built(lane, job, built)
            except RefereeLost as error:
                if self._closed:
                    raise CancelledError from None
                return self._rejected(job, "judge_error", None, str(error))

    def _judge_built(self, lane: Lane, job: Job, built: list[Built]) -> Verdict:
        facts = lane.open(job.task, job.settings)
        measure = job.settings.baselines and job.settings.mode != "search"
        beside: list[str] = []
        if measure and self.device == "cpu":
            beside = ["eager", "compile"] if self._compiles(lane, job.task) else ["eager"]
            eager = compiled = None
        else:
            eager, compiled = (self._baseline(lane, job.task, v, measure) for v in ("eager", "compile"))
        try:
            found = lane.judge(
                job.task, job.candidate, built, job.settings, lambda unit: self._shim(unit, job.settings), beside
            )
        except CandidateFailed as error:
            status, rule, message = explain(error.failure, error.ended)
            return self._rejected(job, status, rule, message, log=error.output[-4000:], isolation=error.level)
        candidate = Interval(**found["candidate"])
        paired = {variant: Speedup(**other["speedup"]) for variant, other in found["beside"].items()}
        if beside:
            eager, compiled = (self._beside(job.task, v, found["beside"]) for v in ("eager", "compile"))
        elif measure:
            eager, compiled = (
                self._again(lane, job.task, v, known, candidate)
                for v, known in (("eager", eager), ("compile", compiled))
            )
        matched = compiled
        if measure and found["precision"] == "reduced" and self.device == "cuda":
            matched = self._baseline(lane, job.task, "compile_tf32", measure)
        times = Times(
            eager=eager,
            compile=compiled,
            compile_matched=matched,
            candidate=candidate,
            candidate_whole=Interval(**found["candidate_whole"]),
        )
        return Verdict(
            task=job.task.name,
            status="accepted",
            reward=reward_of(times, paired),
            times=times,
            speedup_eager=_ratio(eager, candidate, paired.get("eager")),
            speedup_compile=_ratio(compiled, candidate, paired.get("compile")),
            speedup_matched=_ratio(matched, candidate, paired.get("compile")),
            side_by_side=paired,
            errors=Errors(**found["errors"]),
            oracle=found["oracle"],
            precision=found["precision"],
            roofline=self._roofline(lane, facts["traffic"], candidate),
            isolation=found["isolation"],
            device=self._described(),
            versions=self._versions,
            flags=self._flags(lane, facts["traffic"], candidate),
            seconds={k: round(v, 4) for k, v in found["seconds"].items()}
            | {"build": round(sum(b.seconds for b in built if not b.cached), 4)},
        )

    def _shim(self, unit: dict[str, Any], settings: Settings) -> Path | str:
        try:
            wanted = extension_unit(unit, self._tools())
        except CandidateError as error:
            return str(error)
        (built,) = self._compile([wanted], settings)
        return built.path if built.path is not None else f"{wanted.name} does not compile: {built.log[-3000:]}"

    # Baselines and ceilings

    def _make_inductor_files(self) -> dict[str, Path]:
        with self._backend.timer_lease(shared=True):  # compilers and the clock share the cores
            return inductor.own_files(self._cache, ENVIRONMENT, self._builder.stop)

    def _compiles(self, lane: Lane, task: Task) -> bool:
        """Have the task's model ready under torch.compile on the CPU, if that works on it."""
        assert self._inductor_files is not None
        known, time = self._baselines.read(task.key, "compile")
        if known and time is None:
            return False
        failed = lane.prepare(task, "compile", self._inductor_files.result()).get("failed")
        if failed is not None:
            self._baselines.write(task.key, "compile", None, failed)
        return failed is None

    def _beside(self, task: Task, variant: str, found: dict[str, Any]) -> Interval | None:
        """The time of a baseline that was measured beside the candidate, also for judgements that measure none."""
        if variant not in found:
            return None
        time = Interval(**found[variant]["time"])
        self._baselines.write(task.key, variant, time)
        return time

    def _baseline(self, lane: Lane, task: Task, variant: str, measure: bool) -> Interval | None:
        known, time = self._baselines.read(task.key, variant)
        if known or not measure:
            return time
        return self._measure_baseline(lane, task, variant)

    def _measure_baseline(self, lane: Lane, task: Task, variant: str) -> Interval | None:
        found = lane.baseline(task, variant, "full")
        if "failed" in found:
            failure = found["failed"]
            if isinstance(failure, dict):
                raise TaskError(f"{task.origin}: {variant} failed while it was timed: {failure['message']}")
            self._baselines.write(task.key, variant, None, failure)
            return None
        time = Interval(**found)
        self._baselines.write(task.key, variant, time)
        return time

    def _again(
        self, lane: Lane, task: Task, variant: str, known: Interval | None, candidate: Interval
    ) -> Interval | None:
        """A baseline that decides is measured once more, now that the candidate is gone; the faster one counts."""
        if known is None or not near_threshold(candidate, known):
            return known
        fresh = self._measure_baseline(lane, task, variant)
        if fresh is None or fresh.ms > known.ms:
            fresh = known
        self._baselines.write(task.key, variant, fresh)
        return fresh

    def _roofline(self, lane: Lane, traffic: int, candidate: Interval) -> Roofline:
        if self._ceilings is None:
            self._ceilings = lane.ceilings()
        floor = traffic / (self._ceilings["copy_gbps"] * 1e9) * 1e3
        return Roofline(bytes=traffic, floor_ms=floor, fraction=floor / candidate.ms if candidate.ms > 0 else None)

    def _flags(self, lane: Lane, traffic: int, candidate: Interval) -> list[str]:
        fraction = self._roofline(lane, traffic, candidate).fraction or 0.0
        flags = []
        if fraction > 1.1:
            flags.append(
                "faster than the copy bandwidth allows if all inputs are read: look at it before you believe it"
            )
        return flags

    # Records

    def _rejected(
        self, job: Job, status: Status, rule: str | None, message: str, *, log: str = "", isolation: str = "none"
    ) -> Verdict:
        return Verdict(
            task=job.task.name,
            status=status,
            reward=-1,
            rule=rule,
            message=message,
            isolation=isolation,
            device=self._described(),
            versions=self._versions,
            log=log,
        )

    def _described(self) -> Device:
        return Device(kind=self.device, name=self._device_name)

    @contextmanager
    def _lane(self, task: Task) -> Iterator[Lane]:
        """An idle lane, one that has the task warm if there is one."""
        with self._free:
            self._free.wait_for(lambda: self._idle)
            lane = next((lane for lane in self._idle if lane.warm(task)), self._idle[0])
            self._idle.remove(lane)
        try:
            yield lane
        finally:
            with self._free:
                self._idle.append(lane)
                self._free.notify()


def _ratio(baseline: Interval | None, candidate: Interval, paired: Speedup | None) -> float | None:
    if paired is not None:
        return paired.ratio
    return None if baseline is None else baseline.ms / max(candidate.ms, 1e-9)


def _versions(device: str) -> dict[str, str]:
    import torch

    found = {"torch": torch.__version__, "threads": str(torch.get_num_threads())}
    if device == "cuda":
        found["cuda"] = str(torch.version.cuda)
        del found["threads"]
    return found


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message")[:500]


def _ours(error: dict[str, Any]) -> Exception:
    """An error of this package that a confined process reported; anything else is the task's."""
    module, _, name = str(error.get("class", "")).partition(":")
    message = str(error.get("message"))
    if module.startswith("cuda_agent."):
        kind = getattr(importlib.import_module(module), name, None)
        if isinstance(kind, type) and issubclass(kind, CudaAgentError):
            try:
                return kind(*error.get("args", ()))
            except TypeError:  # the process is not ours: it may say anything
                return TaskError(message)
    where = f"{error['where']}: " if error.get("where") else ""
    return TaskError(f"{where}{error.get('type')}: {message}")
