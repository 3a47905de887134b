"""One line of judgement: a referee, the runners of the tasks it has warm, and one candidate at a time."""

from __future__ import annotations

import base64
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cuda_agent.candidate import Candidate
from cuda_agent.errors import SetupError, TaskError
from cuda_agent.judge.blame import Failure
from cuda_agent.judge.builder import Built
from cuda_agent.judge.job import Settings
from cuda_agent.judge.peer import Peer, RunnerFailed
from cuda_agent.judge.wire import Channel, ChannelClosed, ChannelTimeout, Message, ProtocolError
from cuda_agent.judge.zygote import Worker, Zygote
from cuda_agent.sandbox import Exit, Policy
from cuda_agent.task import Task

BuildRequest = Callable[[Message], "Path | str"]  # a unit → its object, or why there is none


class CandidateFailed(Exception):
    """The candidate failed, in whatever way. ended: how its process ended, None if it had not."""

    def __init__(self, failure: Failure, ended: Exit | None, output: str, level: str) -> None:
        super().__init__(failure.message)
        self.failure, self.ended, self.output, self.level = failure, ended, output, level


class RefereeLost(Exception):
    """Our own process failed: a `judge_error`, never the candidate's success."""


class Lane:
    def __init__(self, zygote: Zygote, policy: Policy, warm_tasks: int) -> None:
        self._zygote = zygote
        self._policy = policy
        self._warm_tasks = warm_tasks
        self._referee: Worker | None = None
        self._channel: Channel | None = None
        self._tasks: OrderedDict[str, tuple[Worker, Message]] = OrderedDict()
        self._candidate: Worker | None = None
        self._spare: Worker | None = None

    def warm(self, task: Task) -> bool:
        return task.key in self._tasks

    def open(self, task: Task, settings: Settings) -> Message:
        """Facts of a task whose runner is ready. Raises TaskError."""
        if task.key in self._tasks:
            self._tasks.move_to_end(task.key)
            return self._tasks[task.key][1]
        while len(self._tasks) >= self._warm_tasks:
            self._forget(next(iter(self._tasks)))
        runner = self._zygote.spawn("runner", self._policy)
        request = {
            "do": "open_task",
            "key": task.key,
            "source": task.source,
            "filename": Path(task.origin.partition("#")[0]).name if task.origin.endswith(".py") else "model.py",
            "timeout": max(settings.timeout_s, 60.0),
        }
        try:
            facts = self._ask(request, [runner.channel.fileno()])
            runner.channel.close()
        except BaseException as error:
            output = runner.output() if isinstance(error, TaskError) else ""
            runner.close()
            if isinstance(error, TaskError) and "the process ended" in str(error):
                raise TaskError(f"{error}; it printed: {output[-500:].strip()!r}") from error
            raise
        self._tasks[task.key] = (runner, facts)
        return facts

    def baseline(self, task: Task, variant: str, mode: str) -> Message:
        return self._ask({"do": "baseline", "key": task.key, "variant": variant, "mode": mode})

    def prepare(self, task: Task, variant: str, own_files: Mapping[str, Path]) -> Message:
        files = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in own_files.values()]
        try:
            return self._ask({"do": "prepare", "key": task.key, "variant": variant, "names": list(own_files)}, files)
        finally:
            for fd in files:
                os.close(fd)

    def ceilings(self) -> Message:
        return self._ask({"do": "ceilings"})

    def judge(
        self,
        task: Task,
        candidate: Candidate,
        built: Sequence[Built],
        settings: Settings,
        build: BuildRequest,
        beside: Sequence[str] = (),
    ) -> Message:
        """What the referee found. beside: baselines, prepared, to time in alternation with the candidate.

        Raises CandidateFailed, TaskError, RefereeLost.
        """
        worker = self._candidate = self._runner(settings)
        objects = [os.open(b.path, os.O_RDONLY | os.O_CLOEXEC) for b in built if b.path is not None]
        request = {
            "do": "judge",
            "key": task.key,
            "settings": asdict(settings),
            "form": candidate.form,
            "files": {path: base64.b64encode(body).decode() for path, body in candidate.files.items()},
            "names": [b.unit.installed for b in built],
            "beside": list(beside),
            "keeper": worker.child.pid,
            "level": worker.level,
        }
        start = time.perf_counter()
        try:
            found = self._ask(request, [worker.channel.fileno(), *objects], build)
            worker.channel.close()
            if "failed" in found:
                failure = Failure(**found["failed"])
                ended = worker.ended(2.0) if failure.kind == "crashed" else None
                raise CandidateFailed(failure, ended, worker.output(), worker.level)
            return {
                **found,
                "isolation": worker.level,
                "seconds": {**found["seconds"], "runner": time.perf_counter() - start},
            }
        finally:
            for fd in objects:
                os.close(fd)
            self._candidate = None
            worker.close()

    def _runner(self, settings: Settings) -> Worker:
        """A runner for a candidate; the next one gets its device ready meanwhile."""
        if settings.memory_bytes is not None:
            return self._zygote.spawn("runner", replace(self._policy, memory_bytes=settings.memory_bytes))
        worker = self._take_spare() or self._zygote.spawn("runner", self._policy)
        self._spare = self._zygote.spawn("runner", self._policy)
        Channel(self._spare.channel).send({"do": "ping"})
        return worker

    def _take_spare(self) -> Worker | None:
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        try:
            Peer.answer(Channel(spare.channel).call_answer(timeout=60))
        except (ChannelClosed, ChannelTimeout, ProtocolError, RunnerFailed):
            spare.close()
            return None
        return spare

    def interrupt(self) -> None:
        """From another thread: end the candidate that is being judged."""
        worker = self._candidate
        if worker is not None:
            worker.child.kill()

    def close(self) -> None:
        if self._spare is not None:
            self._spare.close()
            self._spare = None
        for key in list(self._tasks):
            self._tasks.pop(key)[0].close()
        if self._referee is not None:
            self._referee.close()
            self._referee = self._channel = None

    def _forget(self, key: str) -> None:
        runner, _ = self._tasks.pop(key)
        self._ask({"do": "close_task", "key": key})
        runner.close()

    def _ask(self, request: Message, fds: Sequence[int] = (), build: BuildRequest | None = None) -> Message:
        if self._channel is None:
            self._referee = self._zygote.spawn("referee", Policy())
            self._channel = Channel(self._referee.channel)
        try:
            self._channel.send(request, fds)
            while True:
                answer, received = self._channel.recv(timeout=3600)
                for fd in received:
                    os.close(fd)
                if "build" not in answer:
                    break
                self._answer_build(answer["build"], build)
        except (ChannelClosed, ChannelTimeout) as error:
            assert self._referee is not None
            said = self._referee.output()
            self.close()
            raise RefereeLost(f"the referee failed: {error}; its last words: {said[-2000:]}") from error
        if "unusable" in answer:
            raise TaskError(answer["unusable"])
        if "setup" in answer:
            raise SetupError(answer["setup"])
        if "failed" in answer:
            return {"failed": answer["failed"]}
        result = answer["ok"]
        return result if isinstance(result, dict) else {}

    def _answer_build(self, unit: Message, build: BuildRequest | None) -> None:
        assert self._channel is not None
        made = build(unit) if build is not None else "nothing can be built here"
        if isinstance(made, str):
            self._channel.send({"error": made})
            return
        fd = os.open(made, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._channel.send({"filename": made.name}, [fd])
        finally:
            os.close(fd)
