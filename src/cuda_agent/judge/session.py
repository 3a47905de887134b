"""One task in the referee: its runner, what goes in and out, and what is right."""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

import torch

from cuda_agent.backends import Backend
from cuda_agent.judge.clock import MAX_SLOTS, Effort
from cuda_agent.judge.compare import Allowance, compare
from cuda_agent.judge.peer import Peer, RunnerFailed
from cuda_agent.judge.stage import Layout, Stage
from cuda_agent.judge.values import Region, UnsupportedValue

_STAGE_BYTES = {"cpu": 5 << 27, "cuda": 12 << 30}  # aim for a timing arena; two slots are always granted


class Unusable(Exception):
    """The task cannot be judged; the message is for its author."""


class TaskSession:
    """Owned by the referee; `peer` is the task's runner.

    After `open`: `layout`, `names` and `state` (the perturbed weights, private), `init` (constructor arguments).
    ready: the variants of the model that can run: `eager`, and what `prepare` made.
    """

    def __init__(self, backend: Backend, peer: Peer, source: str, filename: str) -> None:
        self.backend = backend
        self.peer = peer
        self._file = filename
        self.seeds = secrets.SystemRandom()
        self._private: torch.Tensor | None = None
        self._stage: Stage | None = None  # the reference's, without private copies
        self.timing: Stage | None = None  # the one that is timed, with them
        self._resting = False
        self.ready = {"eager"}
        self.oracle = "float64"
        self.eager_error = 0.0
        self.eager_worst = 0.0
        self._source = source

    def open(self) -> None:
        """Load the task, build its model, and find out whether it can be judged. Raises Unusable."""
        self.init = self._ask("load_task", source=self._source, filename=self._file)["init"]
        self.construction_seed = self._seed()
        built = self._ask("build_model", seed=self.construction_seed)
        self.names: list[str] = list(built["names"])
        self.state_region = Region.from_json(built["region"])
        self.state = self._receive_state()
        self.layout = self._discover()
        self._check_usable()
        self.rough_seconds = self._time_roughly()

    # Setting up

    def _ask(self, do: str, **arguments: Any) -> Any:
        """Ask the task's runner for something that must work, or the task is unusable."""
        try:
            return self.peer.ask(do, **arguments)
        except RunnerFailed as error:
            where = error.where or self._file
            raise Unusable(f"{where}: {error.message}") from error
        except UnsupportedValue as error:
            raise Unusable(f"{self._file}: {error}") from error

    def _seed(self) -> int:
        return self.seeds.randrange(1 << 31)

    def _receive_state(self) -> torch.Tensor:
        nbytes = max(512, self.state_region.nbytes)
        arena = self.backend.allocate(nbytes)
        fd = arena.export_fd()
        try:
            self._ask("store_state", fds=[fd], nbytes=nbytes)
        finally:
            os.close(fd)
        state = arena.bytes.clone()
        self.backend.synchronize()
        arena.close()
        return state

    def _discover(self) -> Layout:
        """Run get_inputs and eager once to learn the structure of a call."""
        made = self._ask("make_inputs", seed=self._seed())
        inputs = Region.from_json(made["region"])
        draft = Layout(made["tree"], inputs, None, Region(()))
        stage = Stage("draft", self.backend, draft, 1)
        try:
            stage.share_with(self.peer)
            self._ask("store", stage="draft")
            probed = self._ask("probe_outputs", stage="draft")
            outputs = Region.from_json(probed["region"])
            self._ask("detach", stage="draft")
        finally:
            stage.close()
        if not outputs.specs:
            raise Unusable(f"{self._file}: forward returns no tensor")
        return Layout(made["tree"], inputs, probed["tree"], outputs)

    def _check_usable(self) -> None:
        """Neither random nor constant."""
        stage = self.reference()
        self.fill([0])
        self._run("eager")
        first = [o.clone() for o in stage.outputs[0]]
        self._restore(0)
        self._run("eager")
        again = stage.outputs[0]
        allowance = Allowance(1e-3, 1e-3)
        if any(compare(a, f, allowance).worst > 1 for a, f in zip(again, first, strict=True)):
            raise Unusable(
                f"{self._file}: Model.forward gives different outputs for the same input, so nothing can be checked "
                "against it; remove the randomness (dropout in eval mode is fine)"
            )
        self.fill([0])
        self._run("eager")
        if self.layout.inputs.payload and all(torch.equal(o, f) for o, f in zip(stage.outputs[0], first, strict=True)):
            raise Unusable(
                f"{self._file}: Model.forward gives the same output for different inputs, so a constant would pass; "
                "make get_inputs random and let the output depend on it"
            )

    def _time_roughly(self) -> float:
        """Seconds of an eager call, at best of three; only to choose batch sizes by."""
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            self._run("eager")
            best = min(best, time.perf_counter() - start)
        return best

    def _run(self, variant: str, slot: int = 0, strict: bool = False) -> None:
        self._have_run(stage="reference", variant=variant, order=[slot], strict=strict)

    def run_timed(self, variant: str, order: Sequence[int]) -> tuple[float, float]:
        """As `Peer.run`, in the timing stage. A failure is the task's, whatever candidate is being judged."""
        return self._have_run(stage="timing", variant=variant, order=list(order))

    def _have_run(self, **arguments: Any) -> tuple[float, float]:
        try:
            return self.peer.run(**arguments)
        except RunnerFailed as error:
            raise Unusable(f"{error.where or self._file}: {error.message}") from error

    def _restore(self, slot: int) -> None:
        """Undo what an in-place model did to its inputs."""
        assert self._private is not None
        views = self.layout.inputs.views(self._private, 0)
        for shared, private in zip(self.reference().inputs[slot], views, strict=True):
            shared.copy_(private)
        self.backend.synchronize()

    # Memory

    def reference(self) -> Stage:
        """The task runner's own slot."""
        self._resting = False
        if self._stage is None:
            self._stage = Stage("reference", self.backend, self.layout, 1)
            self._stage.share_with(self.peer)
        return self._stage

    def rest(self) -> None:
        """Give back all memory but the weights, until it has its turn again."""
        if self._resting:
            return
        self._resting = True
        if self._stage is not None:
            self._ask("detach", stage="reference")
            self._stage.close()
            self._stage = None
        self.close_timing()
        self._ask("rest")

    def timing_slots(self, effort: Effort, seconds: float) -> int:
        """How many slots to measure a call of about `seconds` with."""
        wanted = int(effort.window_s * 1.2 / max(seconds, 1e-6)) + 1
        affordable = _STAGE_BYTES[self.backend.kind] // (self.layout.slot_bytes + 1)
        slots = max(5, min(wanted, affordable, MAX_SLOTS[self.backend.kind]))
        each = 3 * self.layout.inputs.nbytes + 4 * self.layout.outputs.nbytes
        while slots > 2 and slots * each > 0.7 * self.backend.memory_free():
            slots -= 1
        return slots

    def stage_for(self, slots: int) -> Stage:
        """A timing stage with `slots` slots; kept while the same size is asked for."""
        if self.timing is None or self.timing.slots != slots:
            self.close_timing()
            self._private = None
            self.backend.empty_cache()
            size = max(512, slots * self.layout.inputs.nbytes)
            self._private = torch.zeros(size, dtype=torch.uint8, device=self.backend.torch_device)
            self.timing = Stage("timing", self.backend, self.layout, slots, private=self._private)
        return self.timing

    def close_timing(self) -> None:
        if self.timing is not None:
            self.timing.close()
        self.timing = self._private = None
        self.backend.empty_cache()

    def state_arena(self) -> Any:
        arena = self.backend.allocate(max(512, self.state_region.nbytes))
        arena.bytes[: self.state.numel()].copy_(self.state[: arena.nbytes])
        self.backend.synchronize()
        return arena

    # Inputs and answers

    def fill(self, slots: Sequence[int]) -> None:
        """Fresh inputs from secret seeds into the private copies of these slots."""
        if self._private is None:
            size = max(512, self.layout.inputs.nbytes)
            self._private = torch.zeros(size, dtype=torch.uint8, device=self.backend.torch_device)
        stage = self.reference()
        for slot in slots:
            made = self._ask("make_inputs", seed=self._seed())
            if Region.from_json(made["region"]) != self.layout.inputs:
                raise Unusable(f"{self._file}: get_inputs gives other shapes or dtypes from call to call")
            self._ask("store", stage="reference")
            views = self.layout.inputs.views(self._private, slot * self.layout.inputs.nbytes)
            for private, shared in zip(views, stage.inputs[0], strict=True):
                private.copy_(shared)
        self.backend.synchronize()

    def spread(self, slots: Sequence[int]) -> None:
        """The inputs of the first of these slots into the private copies of all."""
        assert self._private is not None
        size = self.layout.inputs.nbytes
        for slot in slots[1:]:
            self._private[slot * size : (slot + 1) * size].copy_(self._private[slots[0] * size :][:size])
        self.backend.synchronize()

    def answer(self, slot: int, variant: str, strict: bool = False) -> list[torch.Tensor]:
        """What the reference says to the private inputs of `slot`; valid until the next call."""
        assert self._private is not None
        stage = self.reference()
        views = self.layout.inputs.views(self._private, slot * self.layout.inputs.nbytes)
        for shared, private in zip(stage.inputs[0], views, strict=True):
            shared.copy_(private)
        self.backend.synchronize()
        self._run(variant, strict=strict)
        return stage.outputs[0]

    def oracle_answer(self, slot: int, settings: Any) -> tuple[list[torch.Tensor], list[torch.Tensor], list[Allowance]]:
        """(oracle, eager with TF32 off, allowance) per output of this slot's inputs; all private."""
        if self.oracle == "float64":
            try:
                self.peer.ask("prepare", variant="oracle", stage="reference")
                oracle = [o.clone() for o in self._oracle_outputs(slot)]
            except RunnerFailed as error:
                if error.kind in ("crashed", "timed_out", "protocol"):
                    raise Unusable(f"{self._file}: Model in float64: {error.message}") from error
                self.oracle = "float32"
        if self.oracle == "float32":
            oracle = [o.clone() for o in self.answer(slot, "eager", strict=True)]
        eager = self.answer(slot, "eager", strict=True)
        allowances = []
        for o, e in zip(oracle, eager, strict=True):
            found = compare(e, o, Allowance(settings.atol, settings.rtol))
            error_of_eager = _finite(found.max_abs)
            self.eager_error = max(self.eager_error, error_of_eager)
            self.eager_worst = max(self.eager_worst, _finite(found.worst))
            allowances.append(Allowance(settings.atol, settings.rtol, 8 * error_of_eager))
        return oracle, eager, allowances

    def _oracle_outputs(self, slot: int) -> list[torch.Tensor]:
        assert self._private is not None
        stage = self.reference()
        views = self.layout.inputs.views(self._private, slot * self.layout.inputs.nbytes)
        for shared, private in zip(stage.inputs[0], views, strict=True):
            shared.copy_(private)
        self.backend.synchronize()
        # Rounded to the output's dtype as it is stored.
        self.peer.run(stage="reference", variant="oracle", order=[0])
        return stage.outputs[0]

    def close(self) -> None:
        """Hang up on the runner and free everything."""
        self.close_timing()
        if self._stage is not None:
            self._stage.close()
        self.peer.channel.close()


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def minimum_traffic(session: TaskSession) -> int:
    """Bytes that must move at least: inputs and parameters read once, outputs written once."""
    layout = session.layout
    return layout.inputs.payload + session.state_region.payload + layout.outputs.payload
