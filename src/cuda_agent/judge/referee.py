"""The process that decides: our own code only. It owns the arenas, the private inputs, the comparison and the clock.

It serves one orchestrator, one request at a time, and talks to runners over their own channels.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, NamedTuple

import torch

from cuda_agent.backends import Backend, get_backend
from cuda_agent.errors import SetupError
from cuda_agent.judge.clock import EFFORT
from cuda_agent.judge.compare import NOTHING, Agreement, compare
from cuda_agent.judge.job import Settings
from cuda_agent.judge.measure import measure
from cuda_agent.judge.peer import Peer, RunnerFailed, told_as_failures
from cuda_agent.judge.session import TaskSession, Unusable, minimum_traffic
from cuda_agent.judge.stage import Stage
from cuda_agent.judge.wire import Channel, ChannelClosed, Message
from cuda_agent.sandbox import Frozen, Level, NotStill

_LARGE = 4 << 30  # bytes of a slot
_PREPARE_TIMEOUT = 600.0  # torch.compile of a whole network


class Trials(NamedTuple):
    """own_error: the candidate's largest. floor: what is allowed at full precision."""

    agreement: Agreement
    own_error: float
    floor: float


class Referee:
    def __init__(self, channel: Channel, backend: Backend) -> None:
        self._channel = channel
        self._backend = backend
        self._sessions: dict[str, TaskSession] = {}

    def serve(self) -> None:
        while True:
            request, fds = self._channel.recv()
            try:
                answer = {"ok": getattr(self, "do_" + request.pop("do"))(*fds, **request)}
            except Unusable as error:
                answer = {"unusable": str(error)}
            except SetupError as error:
                answer = {"setup": str(error)}
            except (MemoryError, torch.OutOfMemoryError) as error:
                self._rest_but(None)
                answer = {"unusable": f"the task does not fit into the memory of this machine: {error}"}
            except RunnerFailed as error:  # of a task's own model
                answer = {"unusable": f"{error.where or 'model.py'}: {error.message}"}
            self._channel.send(answer)

    # Tasks

    def do_open_task(self, fd: int, key: str, source: str, filename: str, timeout: float) -> Message:
        self._rest_but(key)
        peer = Peer(Channel.from_fd(fd), timeout)
        with self._backend.timer_lease(shared=True):
            session = TaskSession(self._backend, peer, source, filename)
            try:
                session.open()
            except BaseException:
                session.close()
                raise
        self._sessions[key] = session
        return {"traffic": minimum_traffic(session)}

    def do_close_task(self, key: str) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.close()
        self._backend.empty_cache()

    def do_baseline(self, key: str, variant: str, mode: str) -> Any:
        """Time the task's own model, with no candidate alive. None where torch.compile fails on it."""
        session = self._enter_task(key)
        peer = session.peer
        failed = self._prepare(session, variant)
        if failed is not None:
            return {"failed": failed}
        effort = EFFORT[self._backend.kind][mode]
        slots = session.timing_slots(effort, session.rough_seconds)
        session.stage_for(slots).share_with(peer)
        timed = measure(session, peer, variant, effort, Settings()).time
        peer.ask("detach", stage="timing")
        return timed.model_dump()

    def do_prepare(self, *own: int, key: str, variant: str, names: list[str]) -> Message:
        """Make a variant of the task's model. {"failed": why} where torch.compile fails on it.

        own: open files that inductor would make; names: where they belong.
        """
        session = self._enter_task(key)
        if own:
            session.peer.ask("install_inductor_files", fds=own, names=names)
        for fd in own:
            os.close(fd)
        failed = self._prepare(session, variant)
        return {} if failed is None else {"failed": failed}

    def _prepare(self, session: TaskSession, variant: str) -> str | None:
        """Why it cannot be made, None if it is ready."""
        if variant in session.ready:
            return None
        peer = session.peer
        patience, peer.timeout = peer.timeout, _PREPARE_TIMEOUT
        try:
            with self._backend.timer_lease(shared=True):
                session.fill([0])
                session.answer(0, "eager")
                peer.ask("prepare", variant=variant, stage="reference")
        except RunnerFailed as error:
            if error.kind in ("crashed", "timed_out", "protocol"):
                raise
            if "Python.h" in error.message:
                raise SetupError(
                    "torch.compile needs Python's C headers on the CPU (Python.h is missing): "
                    "sudo apt install python3-dev"
                ) from error
            return error.message
        finally:
            peer.timeout = patience
        session.ready.add(variant)
        return None

    def _enter_task(self, key: str) -> TaskSession:
        self._rest_but(key)
        return self._sessions[key]

    def _rest_but(self, key: str | None) -> None:
        """A task may need the whole device: the others give their memory back."""
        for other, session in self._sessions.items():
            if other != key:
                session.rest()

    # Candidates

    def do_judge(
        self, *fds: int, key: str, settings: dict[str, Any], form: str, files: dict[str, str], names: list[str],
        beside: list[str], keeper: int, level: str,
    ) -> Message:  # fmt: skip
        """keeper, level: of the candidate's runner, which is stopped while the variants `beside` it have their turn."""
        session = self._enter_task(key)
        options = Settings(**settings)
        seconds: dict[str, float] = {}
        peer = Peer(Channel.from_fd(fds[0]), options.timeout_s)
        phase, start = "load", time.perf_counter()
        try:
            self._load(session, peer, fds[1:], form, files, names, options)
            seconds[phase], start = time.perf_counter() - start, time.perf_counter()
            phase = "check"
            with self._backend.timer_lease(shared=True):
                verdict = self._check(session, peer, options)
            seconds[phase], start = time.perf_counter() - start, time.perf_counter()
            phase = "time"
            effort = EFFORT[self._backend.kind][options.mode]
            if beside and session.timing is not None:
                session.timing.share_with(session.peer)
            frozen = partial(Frozen, keeper, Level(level)) if self._backend.kind == "cpu" else None
            found = measure(session, peer, "candidate", effort, options, beside, frozen)
            seconds[phase] = time.perf_counter() - start
        except RunnerFailed as error:
            return {"failed": {"kind": error.kind, "message": error.message, "where": error.where, "phase": phase}}
        except NotStill as error:
            message = f"the candidate was to stand still while others had their turn, but {error}"
            return {"failed": {"kind": "not-still", "message": message, "where": None, "phase": phase}}
        finally:
            peer.channel.close()
            if beside:
                session.peer.ask("detach", stage="timing")
        verdict["candidate"], verdict["candidate_whole"] = found.time.model_dump(), found.whole.model_dump()
        verdict["errors"]["checked"] += found.checked.elements
        verdict["beside"] = {
            variant: {"time": other.time.model_dump(), "speedup": other.speedup.model_dump()}
            for variant, other in found.beside.items()
        }
        return {**verdict, "seconds": seconds}

    def _load(
        self, session: TaskSession, peer: Peer, objects: Sequence[int], form: str, files: dict[str, str],
        names: list[str], options: Settings,
    ) -> None:  # fmt: skip
        """Import the candidate and give it the task's weights. Builds that it asks for go to the orchestrator."""
        request = {"do": "load_candidate", "form": form, "files": files, "names": names}
        late = f"loading took longer than {options.timeout_s:g} s"
        try:
            with told_as_failures(late, "the process ended while the candidate was loaded"):
                self._answer_builds(peer, request, objects, options)
        finally:
            for fd in objects:
                os.close(fd)
        seed = session.construction_seed
        peer.ask("build_candidate", init=session.init, seed=seed, names=session.names)
        arena = session.state_arena()
        fd = arena.export_fd()
        try:
            peer.ask(
                "load_state", fds=[fd], nbytes=arena.nbytes, names=session.names, region=session.state_region.to_json()
            )
        finally:
            os.close(fd)
            arena.close()

    def _answer_builds(self, peer: Peer, request: Message, objects: Sequence[int], options: Settings) -> None:
        """Send a request, and pass on the builds that it asks for until it is answered."""
        peer.channel.send(request, objects)
        deadline = time.monotonic() + options.timeout_s
        while True:
            message, received = peer.channel.recv(max(0.1, deadline - time.monotonic()))
            for fd in received:
                os.close(fd)
            if "build" not in message:
                break
            self._channel.send({"build": message["build"]})
            began = time.monotonic()
            answer, built = self._channel.recv()
            deadline += time.monotonic() - began
            peer.channel.send(answer, built)
            for fd in built:
                os.close(fd)
        peer.answer(message)

    def _check(self, session: TaskSession, peer: Peer, options: Settings) -> Message:
        """Fresh random inputs against the oracle."""
        effort = EFFORT[self._backend.kind][options.mode]
        timing = session.timing_slots(effort, session.rough_seconds / 3)  # room for a candidate three times as fast
        # The oracle of a large task needs the memory that more slots would take.
        slots = timing if session.layout.slot_bytes < _LARGE else 1
        stage = session.stage_for(slots)
        stage.share_with(peer)
        found = self._trials(session, stage, peer, options)
        if timing != slots:
            peer.ask("detach", stage="timing")
            session.peer.ask("rest")
            session.stage_for(timing).share_with(peer)
        agreement = found.agreement
        return {
            "errors": {
                "worst": agreement.worst,
                "max_abs": agreement.max_abs,
                "eager_worst": session.eager_worst,
                "checked": agreement.elements,
            },
            "oracle": session.oracle,
            "precision": "full" if found.own_error <= found.floor else "reduced",
        }

    def _trials(self, session: TaskSession, stage: Stage, peer: Peer, options: Settings) -> Trials:
        agreement, own_error, floor_error = NOTHING, 0.0, 0.0
        order = list(range(min(stage.slots, options.trials)))
        done = 0
        while done < options.trials:
            batch = order[: options.trials - done]
            session.fill(batch)
            stage.poison(batch)
            stage.show(batch)
            self._backend.synchronize()
            peer.ask("check_outputs", stage="timing", variant="candidate", order=batch)
            stage.take(batch)
            self._backend.synchronize()
            if stage.mutated(batch):
                raise RunnerFailed("mutated-input", "forward changed its input; Model leaves it as it is")
            for slot in batch:
                oracle, eager, allowances = session.oracle_answer(slot, options)
                for got, want, torchs, allowance in zip(
                    stage.private_outputs[slot], oracle, eager, allowances, strict=True
                ):
                    found = compare(got, want, allowance, torchs)
                    if found.worst > 1:
                        raise RunnerFailed("incorrect", f"wrong output {found.detail}")
                    agreement = agreement.merged(found)
                    own_error = max(own_error, found.max_abs)
                    floor_error = max(floor_error, allowance.floor, 16 * _ulp(want))
            done += len(batch)
        return Trials(agreement, own_error, floor_error)

    def do_ceilings(self) -> Message:
        return asdict(self._backend.ceilings())


def _ulp(reference: Any) -> float:
    if not reference.is_floating_point() or reference.numel() == 0:
        return 0.0
    import torch

    return float(reference.nan_to_num(0.0, 0.0, 0.0).abs().max()) * torch.finfo(reference.dtype).eps / 2


def main(channel_fd: int, kind: str) -> None:
    referee = Referee(Channel.from_fd(channel_fd), get_backend(kind))  # type: ignore[arg-type]
    try:
        referee.serve()
    except ChannelClosed:
        os._exit(0)
