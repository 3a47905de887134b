"""The process that runs foreign code: a task's or a candidate's. Confined, and trusted with nothing.

It answers the referee's requests in a loop. Whatever it says is data; what counts is the bytes it leaves in the arena.
"""

from __future__ import annotations

import base64
import importlib
import os
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cuda_agent.backends import Arena, Backend, get_backend
from cuda_agent.candidate.loading import import_model, install_build_shims, materialize
from cuda_agent.errors import CandidateError
from cuda_agent.judge import reference
from cuda_agent.judge.inductor import install as install_inductor_files
from cuda_agent.judge.values import Region, TensorSpec, UnsupportedValue, flatten, same_structure, unflatten
from cuda_agent.judge.wire import Channel, ChannelClosed, Message

# Words of plain RuntimeErrors; torch says the second of a CUDA allocation that failed where it cannot use NVML.
_ALLOCATION_FAILED = ("DefaultCPUAllocator: can't allocate", "NVML_SUCCESS == DriverAPI")

_copy = torch.Tensor.copy_  # bound before foreign code can replace it


class Refused(Exception):
    """A fault of the foreign code that we found ourselves; kind and message go to the referee as they are."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass
class _Stage:
    """An attached arena. slots: per call its arguments and the views its outputs go to."""

    arena: Arena
    tree: Any = None  # structure that outputs must have
    slots: list[tuple[Any, list[torch.Tensor]]] = field(default_factory=list)


class Runner:
    def __init__(self, channel: Channel, backend: Backend) -> None:
        self._channel = channel
        self._backend = backend
        self._device = torch.device(backend.torch_device)
        self._work = Path(tempfile.mkdtemp(prefix="run-"))
        self._module: types.ModuleType | None = None
        self._init: Any = None
        self._models: dict[str, Callable[..., Any]] = {}
        self._model: nn.Module | None = None
        self._pending: list[torch.Tensor] = []  # leaves the referee has asked about and may ask to store
        self._stages: dict[str, _Stage] = {}

    def serve(self) -> None:
        while True:
            request, fds = self._channel.recv()
            try:
                command = getattr(self, "do_" + request.pop("do"))
                answer = command(*fds, **request) if fds else command(**request)
                self._channel.send({"ok": answer})
            except ChannelClosed:
                raise
            except BaseException as error:
                self._channel.send({"error": self._describe(error)})
            if (
                self._device.type == "cuda" and "timing" not in self._stages
            ):  # else it would be allocated anew each time
                self._return_memory()

    # The task's side

    def do_load_task(self, source: str, filename: str) -> Message:
        path = self._work / "task" / filename
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        module = types.ModuleType("task")
        module.__file__ = str(path)
        sys.modules["task"] = module
        self._module = module
        exec(compile(source, str(path), "exec"), module.__dict__)
        self._init = module.get_init_inputs()
        return {"init": flatten(self._init, [])}

    def do_build_model(self, seed: int) -> Message:
        reference.seed_everything(seed)
        arguments, keywords = _init_arguments(self._init)
        assert self._module is not None
        with self._device:
            model = self._module.Model(*arguments, **keywords)
        model = model.to(self._device).eval()
        reference.perturb_constants(model, seed + 1)
        self._model = model
        self._models = {"eager": model}
        state = model.state_dict()
        self._pending = [tensor.detach() for tensor in state.values()]
        return {"names": list(state), "region": _describe(self._pending)}

    def do_make_inputs(self, seed: int) -> Message:
        reference.seed_everything(seed)
        assert self._module is not None
        with self._device:
            inputs = self._module.get_inputs()
        leaves: list[torch.Tensor] = []
        tree = flatten(list(inputs), leaves)
        self._pending = [leaf.detach().to(self._device) for leaf in leaves]
        return {"tree": tree, "region": _describe(self._pending)}

    def do_prepare(self, variant: str, stage: str) -> None:
        """Make a way of running the model: `compile`, `compile_tf32`, `oracle`."""
        assert self._model is not None
        if variant == "oracle":
            self._models[variant] = reference.oracle(self._model)
        elif variant.startswith("compile"):
            torch._dynamo.reset()
            allowed = True if variant == "compile_tf32" else None
            with reference.tf32(allowed), torch.no_grad():
                compiled = torch.compile(self._model)
                compiled(*self._stages[stage].slots[0][0])  # type: ignore[operator]
            self._models[variant] = compiled  # type: ignore[assignment]

    def do_install_inductor_files(self, *fds: int, names: list[str]) -> None:
        contents = []
        for fd in fds:
            with os.fdopen(fd, "rb") as stream:
                contents.append(stream.read())
        install_inductor_files(dict(zip(names, contents, strict=True)))

    def do_probe_outputs(self, stage: str) -> Message:
        """Run eager once on a slot and describe what comes out."""
        with torch.no_grad(), reference.tf32(None):
            value = self._models["eager"](*self._stages[stage].slots[0][0])
        leaves: list[torch.Tensor] = []
        tree = flatten(value, leaves)
        self._pending = leaves
        return {"tree": tree, "region": _describe(leaves)}

    # The candidate's side

    def do_load_candidate(self, *objects: int, form: str, files: dict[str, str], names: list[str]) -> None:
        into = self._work / "candidate"
        built: dict[str, bytes] = {}
        for name, fd in zip(names, objects, strict=True):
            with os.fdopen(fd, "rb") as stream:
                built[name] = stream.read()
        content = {path: base64.b64decode(body) for path, body in files.items()}
        install_build_shims(self._request_build)
        materialize(content, built, into, self._backend.kind, form)  # type: ignore[arg-type]
        os.chdir(into)
        self._module = types.SimpleNamespace(Model=import_model(into, form))  # type: ignore[assignment,arg-type]

    def do_build_candidate(self, init: Any, seed: int, names: list[str]) -> None:
        reference.seed_everything(seed)
        arguments, keywords = _init_arguments(unflatten(init, []))
        assert self._module is not None
        try:
            with self._device:
                model = self._module.Model(*arguments, **keywords)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise Refused("signature", f"ModelNew cannot be constructed like Model: {error}") from error
            raise
        if not isinstance(model, nn.Module):
            raise Refused("signature", f"ModelNew is a {type(model).__name__}, not a torch.nn.Module")
        self._model = model.to(self._device).eval()
        self._models = {"candidate": self._model}
        own = set(self._model.state_dict())
        missing, extra = [n for n in names if n not in own], sorted(own - set(names))
        if missing or extra:
            parts = [f"{what} {', '.join(some[:5])}" for what, some in (("lacks", missing), ("adds", extra)) if some]
            raise Refused("state_dict", f"ModelNew's state_dict differs from Model's: it {' and '.join(parts)}")

    def do_load_state(self, fd: int, nbytes: int, names: list[str], region: Any) -> None:
        assert self._model is not None
        arena = self._attach(fd, nbytes)
        views = Region.from_json(region).views(arena.bytes, 0)
        state = {name: view.clone() for name, view in zip(names, views, strict=True)}
        try:
            self._model.load_state_dict(state, strict=True)
        except RuntimeError as error:
            raise Refused("state_dict", f"Model's state_dict does not load into ModelNew: {_shorten(error)}") from error
        finally:
            del views, state
            self._backend.synchronize()
            arena.close()

    # Both sides

    def do_attach(self, fd: int, stage: str, nbytes: int) -> None:
        self.do_detach(stage)
        self._stages[stage] = _Stage(self._attach(fd, nbytes))

    def _attach(self, fd: int, nbytes: int) -> Arena:
        """Takes over `fd`: while it is open, the memory is not given back."""
        try:
            return self._backend.attach(fd, nbytes)
        finally:
            os.close(fd)

    def do_detach(self, stage: str) -> None:
        old = self._stages.pop(stage, None)
        if old is not None:
            old.slots.clear()
            old.arena.close()

    def do_plan(
        self, stage: str, slots: list[int], skip: int, tree: Any, inputs: Any, out_tree: Any, outputs: Any
    ) -> None:
        """Slots start at the given offsets: inputs first, outputs `skip` bytes after the start."""
        region, out_region = Region.from_json(inputs), Region.from_json(outputs)
        on = self._stages[stage]
        memory = on.arena.bytes
        on.tree = out_tree
        on.slots = [
            (unflatten(tree, region.views(memory, start)), out_region.views(memory, start + skip)) for start in slots
        ]

    def do_store(self, stage: str, offset: int = 0) -> None:
        """Copy the leaves last described into the arena."""
        self._write_pending(self._stages[stage].arena, offset)

    def do_store_state(self, fd: int, nbytes: int) -> None:
        arena = self._attach(fd, nbytes)
        self._write_pending(arena, 0)
        arena.close()

    def _write_pending(self, arena: Arena, offset: int) -> None:
        region = Region(tuple(TensorSpec.of(leaf) for leaf in self._pending))
        for view, leaf in zip(region.views(arena.bytes, offset), self._pending, strict=True):
            _copy(view, leaf)
        self._pending = []
        self._backend.synchronize()

    def do_run(self, stage: str, variant: str, order: list[int], strict: bool = False) -> None:
        """Run the model once on each slot, in order; all outputs stay alive until the last is computed.

        Says when it has computed, before it copies the outputs to their slots.
        """
        model = self._models[variant]
        slots = self._stages[stage].slots
        allowed = False if strict else (True if variant == "compile_tf32" else None)
        results = []
        with torch.no_grad(), reference.tf32(allowed), _among_its_threads():
            for slot in order:
                results.append(model(*slots[slot][0]))
            self._backend.synchronize()
        self._channel.send({"computed": len(order)})
        for slot, value in zip(order, results, strict=True):
            self._deliver(value, slots[slot][1])
        self._backend.synchronize()

    def do_check_outputs(self, stage: str, variant: str, order: list[int]) -> None:
        """As `do_run`, and explain what is wrong with the outputs' form (for the author: the bytes decide)."""
        model, on = self._models[variant], self._stages[stage]
        results = []
        with torch.no_grad(), reference.tf32(None):
            for slot in order:
                results.append(model(*on.slots[slot][0]))
        seen: dict[int, int] = {}
        for index, (slot, value) in enumerate(zip(order, results, strict=True)):
            leaves: list[torch.Tensor] = []
            _check_types(value)
            tree = flatten(value, leaves)
            if not same_structure(tree, on.tree):
                raise Refused("structure", f"forward returned {_outline(value)}; Model returns another structure")
            for position, (leaf, view) in enumerate(zip(leaves, on.slots[slot][1], strict=True)):
                name = "the output" if len(leaves) == 1 else f"output {position}"
                for what, ours, theirs in (
                    ("shape", tuple(leaf.shape), tuple(view.shape)),
                    ("dtype", leaf.dtype, view.dtype),
                    ("device", leaf.device.type, view.device.type),
                ):
                    if ours != theirs:
                        raise Refused(what, f"{name} has {what} {ours}; Model's has {theirs}")
                pointer = leaf.untyped_storage().data_ptr()
                if leaf.numel() and seen.setdefault(pointer, index) != index:
                    inputs: list[torch.Tensor] = []
                    flatten(on.slots[slot][0], inputs)
                    if all(pointer != i.untyped_storage().data_ptr() for i in inputs):
                        raise Refused(
                            "static-output",
                            f"{name} of one call lies in the memory of an earlier call's, which its caller still "
                            "holds; return a fresh tensor (a CUDA graph's output must be cloned)",
                        )
            self._deliver(value, on.slots[slot][1])
        self._backend.synchronize()

    def do_call(self, entry: str, arguments: dict[str, Any]) -> Any:
        """Run one of this package's own functions that handles foreign code; JSON in, JSON out."""
        module, _, function = entry.partition(":")
        if not module.startswith("cuda_agent."):
            raise Refused("call", f"{entry} is not part of cuda_agent")
        return getattr(importlib.import_module(module), function)(**arguments)

    def do_rest(self) -> None:
        """Give back what is cached; another task has its turn."""
        self._pending = []
        self._models.pop("oracle", None)
        self._backend.empty_cache()

    def do_ping(self) -> None:
        """Make the device ready."""
        torch.zeros(1, device=self._device)
        self._backend.synchronize()

    def _deliver(self, value: Any, views: list[torch.Tensor]) -> None:
        if type(value) is torch.Tensor and len(views) == 1:
            leaves = [value]
        else:
            leaves = []
            flatten(value, leaves)
        if len(leaves) != len(views):
            raise Refused("structure", f"forward returned {len(leaves)} tensors; Model returns {len(views)}")
        for view, leaf in zip(views, leaves, strict=True):
            if leaf.shape != view.shape:
                raise Refused("shape", f"an output has shape {tuple(leaf.shape)}; Model's has {tuple(view.shape)}")
            _copy(view, leaf)

    def _request_build(self, unit: Message) -> Path:
        self._channel.send({"build": unit})
        answer, fds = self._channel.recv()
        if "error" in answer or len(fds) != 1:
            raise RuntimeError(answer.get("error", "the build gave no object"))
        path = self._work / answer["filename"]
        with os.fdopen(fds[0], "rb") as stream:
            path.write_bytes(stream.read())
        return path

    def _return_memory(self) -> None:
        """Cached blocks of this process are memory that the referee and other runners cannot map."""
        if torch.cuda.is_initialized():
            idle = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            if idle > 4 << 30 and self._module is not None and "candidate" not in self._models:
                torch.cuda.empty_cache()

    def _describe(self, error: BaseException) -> Message:
        kind = "exception"
        if isinstance(error, Refused):
            kind = error.kind
        elif isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            kind = "out_of_memory"
        elif isinstance(error, CandidateError):
            kind = "load"
        elif isinstance(error, UnsupportedValue):
            kind = "value"
        elif isinstance(error, RuntimeError) and any(sign in str(error) for sign in _ALLOCATION_FAILED):
            kind = "out_of_memory"
        elif isinstance(error, RuntimeError) and (
            "CUDA error" in str(error) or type(error).__name__ == "AcceleratorError"
        ):
            kind = "device_error"
        told = "torch gives no numbers here" if "NVML" in str(error) else _shorten(error)
        return {
            "kind": kind,
            "type": type(error).__name__,
            "message": f"out of memory: {told}" if kind == "out_of_memory" else _shorten(error),
            "where": _where(error, self._work),
            "class": f"{type(error).__module__}:{type(error).__qualname__}",
            "args": [a for a in error.args if a is None or isinstance(a, (str, int))],
        }


_PLACES: list[set[int]] = [set(), set()]  # cores of the main thread: among its OpenMP threads, and in general


def set_places(first: set[int], general: set[int]) -> None:
    _PLACES[:] = [first, general]


@contextmanager
def _among_its_threads() -> Iterator[None]:
    """The main thread on the core that OpenMP's other threads leave free."""
    first, general = _PLACES
    if first == general:
        yield
        return
    os.sched_setaffinity(0, first)
    try:
        yield
    finally:
        os.sched_setaffinity(0, general)


def _init_arguments(init: Any) -> tuple[list[Any], dict[str, Any]]:
    """KernelBench's get_init_inputs gives a list of arguments, or [args, kwargs] in a few tasks."""
    if isinstance(init, dict):
        return [], init
    if len(init) == 2 and isinstance(init[0], (list, tuple)) and isinstance(init[1], dict):
        return list(init[0]), init[1]
    return list(init), {}


def _describe(leaves: list[torch.Tensor]) -> list[dict[str, Any]]:
    return Region(tuple(TensorSpec.of(leaf) for leaf in leaves)).to_json()


def _check_types(value: Any) -> None:
    """Exact types: a tensor subclass could compute when it is looked at."""
    if isinstance(value, torch.Tensor):
        if type(value) is not torch.Tensor and type(value) is not nn.Parameter:
            raise Refused("structure", f"forward returned a {type(value).__name__}, a subclass of torch.Tensor")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_types(item)
    elif isinstance(value, dict):
        for item in value.values():
            _check_types(item)


def _outline(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _shorten(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 1500 else text[:900] + " … " + text[-500:]


def _where(error: BaseException, work: Path) -> str | None:
    """file:line of the innermost frame in the foreign code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(work):
            return f"{path.relative_to(work).as_posix().partition('/')[2]}:{frame.lineno}"
    return None


def main(channel_fd: int, kind: str) -> None:
    """Serve until the referee hangs up."""
    home = tempfile.mkdtemp(prefix="home-")
    os.environ.update(HOME=home, TORCHINDUCTOR_CACHE_DIR=home, TRITON_CACHE_DIR=home, XDG_CACHE_HOME=home)
    sys.dont_write_bytecode = True
    runner = Runner(Channel.from_fd(channel_fd), get_backend(kind))  # type: ignore[arg-type]
    try:
        runner.serve()
    except ChannelClosed:
        os._exit(0)
