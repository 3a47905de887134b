"""Where inputs and outputs lie: an arena shared with one runner, and the referee's private copies.

A slot holds one call: its inputs, then its outputs. The runner sees the arena; the private copies it never sees.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from cuda_agent.backends import Arena, Backend
from cuda_agent.judge.peer import Peer
from cuda_agent.judge.values import Region

POISON = 0xFB  # as float32 -2.6e36, as float64 -1e288, as integer far out of range: never an answer


@dataclass(frozen=True)
class Layout:
    """Structure and tensors of one call."""

    in_tree: Any
    inputs: Region
    out_tree: Any
    outputs: Region

    @cached_property
    def slot_bytes(self) -> int:
        return self.inputs.nbytes + self.outputs.nbytes


class Window(NamedTuple):
    """Seconds. whole: all that the runner could possibly have worked in, copies included; copies: what those take
    alone. inner: from the word until it says that it has computed."""

    whole: float
    copies: float
    inner: float


class Stage:
    def __init__(
        self, name: str, backend: Backend, layout: Layout, slots: int, *, private: torch.Tensor | None = None
    ) -> None:
        """private: the inputs' private copies (slots × inputs.nbytes, uint8); None for a stage without a clock."""
        self.name = name
        self._backend = backend
        self.layout = layout
        self.slots = slots
        self.arena: Arena = backend.allocate(max(512, slots * layout.slot_bytes))
        memory = self.arena.bytes
        ins, outs = layout.inputs, layout.outputs
        starts = [slot * layout.slot_bytes for slot in range(slots)]
        self.inputs = [ins.views(memory, start) for start in starts]
        self.outputs = [outs.views(memory, start + ins.nbytes) for start in starts]
        self._out_bytes = [memory[s + ins.nbytes : s + layout.slot_bytes] for s in starts]
        self.private_inputs: list[list[torch.Tensor]] = []
        self.private_outputs: list[list[torch.Tensor]] = []
        if private is not None:
            try:
                kept = torch.empty(slots * outs.nbytes, dtype=torch.uint8, device=memory.device)
                kept.fill_(0)  # populate, so that the first window does not pay for it
            except BaseException:
                self.close()
                raise
            self.private_inputs = [ins.views(private, slot * ins.nbytes) for slot in range(slots)]
            self.private_outputs = [outs.views(kept, slot * outs.nbytes) for slot in range(slots)]

    def share_with(self, peer: Peer) -> None:
        fd = self.arena.export_fd()
        try:
            peer.ask("attach", fds=[fd], stage=self.name, nbytes=self.arena.nbytes)
        finally:
            os.close(fd)
        layout = self.layout
        peer.ask(
            "plan",
            stage=self.name,
            slots=[slot * layout.slot_bytes for slot in range(self.slots)],
            skip=layout.inputs.nbytes,
            tree=layout.in_tree,
            inputs=layout.inputs.to_json(),
            out_tree=layout.out_tree,
            outputs=layout.outputs.to_json(),
        )

    def poison(self, order: Sequence[int]) -> None:
        for slot in order:
            self._out_bytes[slot].fill_(POISON)

    def show(self, order: Sequence[int]) -> None:
        for slot in order:
            for shared, private in zip(self.inputs[slot], self.private_inputs[slot], strict=True):
                shared.copy_(private)

    def take(self, order: Sequence[int]) -> None:
        for slot in order:
            for shared, private in zip(self.outputs[slot], self.private_outputs[slot], strict=True):
                private.copy_(shared)

    def mutated(self, order: Sequence[int]) -> bool:
        """Whether the runner changed its inputs (compared bit for bit, so NaNs are no excuse)."""
        for slot in order:
            for shared, private in zip(self.inputs[slot], self.private_inputs[slot], strict=True):
                if not torch.equal(_bits(shared), _bits(private)):
                    return True
        return False

    def window(self, peer: Peer, variant: str, order: Sequence[int]) -> Window:
        """Run a batch. It starts before the first input byte is visible and ends when the last output byte is ours."""
        copies = self._copies(order)
        self.poison(order)
        back = random.SystemRandom().sample(order, len(order))
        self._backend.synchronize()
        start = time.perf_counter()
        self.show(order)
        self._backend.synchronize()
        shown = time.perf_counter()
        computed, _ = peer.run(stage=self.name, variant=variant, order=list(order))
        self.take(back)
        self._backend.synchronize()
        return Window(time.perf_counter() - start, copies, computed - shown)

    def frozen_window(
        self,
        peer: Peer,
        variant: str,
        order: Sequence[int],
        frozen: Callable[[], AbstractContextManager[Any]],
        meanwhile: Callable[[], None],
    ) -> Window:
        """Run a batch on the CPU: the runner is stopped while inputs become visible and while outputs are taken, so
        that only its own copies are left to subtract.

        meanwhile: what to do while it is stopped, before the inputs are visible.
        """
        with frozen():
            meanwhile()
            copies = self._deliveries(order)
            self.poison(order)
            self.show(order)
            start = time.perf_counter()
        told = time.perf_counter()
        computed, delivered = peer.run(stage=self.name, variant=variant, order=list(order))
        with frozen():
            self.take(order)
        return Window(delivered - start, copies, computed - told)

    def _copies(self, order: Sequence[int]) -> float:
        """Seconds of the copies of such a batch alone: ours in and out, and the runner's to its slots."""
        back = random.SystemRandom().sample(order, len(order))
        self._backend.synchronize()
        start = time.perf_counter()
        self.show(order)
        self._backend.synchronize()
        self._deliveries(order)
        self.take(back)
        self._backend.synchronize()
        return time.perf_counter() - start

    def _deliveries(self, order: Sequence[int]) -> float:
        start = time.perf_counter()
        for slot in order:
            for shared, private in zip(self.outputs[slot], self.private_outputs[slot], strict=True):
                shared.copy_(private)
        self._backend.synchronize()
        return time.perf_counter() - start

    def close(self) -> None:
        self.inputs, self.outputs, self._out_bytes = [], [], []
        self.private_inputs, self.private_outputs = [], []
        self.arena.close()


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(integer)
