"""Values that cross a process boundary: structure as JSON, tensor bytes in an arena. Never pickle.

Value = Tensor | int | float | bool | str | None | torch.dtype | list | tuple | dict
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

ALIGNMENT = 512  # bytes; covers every vector load and the caching allocator's own alignment

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64, torch.complex128,
        torch.float8_e4m3fn, torch.float8_e5m2,
    )
}  # fmt: skip


class UnsupportedValue(Exception):
    """A value of a kind that cannot cross."""


def dtype_of(name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise UnsupportedValue(f"unknown dtype {name!r}")
    return _DTYPES[name]


@dataclass(frozen=True)
class TensorSpec:
    """dtype, shape and strides (in elements) of a tensor without holes or overlap."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> TensorSpec:
        name = str(dtype or tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        stride = tuple(tensor.stride()) if _is_dense(tensor) else _contiguous_stride(shape)
        return cls(name, shape, stride)

    @classmethod
    def from_json(cls, data: Any) -> TensorSpec:
        try:
            spec = cls(str(data["dtype"]), tuple(map(int, data["shape"])), tuple(map(int, data["stride"])))
        except (TypeError, KeyError, ValueError) as error:
            raise UnsupportedValue(f"malformed tensor description {data!r}") from error
        dtype_of(spec.dtype)
        if len(spec.shape) != len(spec.stride) or min((*spec.shape, *spec.stride, 0)) < 0:
            raise UnsupportedValue(f"malformed tensor description {data!r}")
        extent = 1 + sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True)) if spec.numel else 0
        if extent != spec.numel:
            raise UnsupportedValue(f"a tensor of shape {spec.shape} with strides {spec.stride} has holes or overlaps")
        return spec

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": list(self.shape), "stride": list(self.stride)}

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        return self.numel * dtype_of(self.dtype).itemsize

    def view(self, buffer: torch.Tensor, offset: int) -> torch.Tensor:
        """This tensor over `buffer` (uint8, 1-D), which must be aligned."""
        flat = buffer[offset : offset + self.nbytes].view(dtype_of(self.dtype))
        return flat.as_strided(self.shape, self.stride)


@dataclass(frozen=True)
class Region:
    """Where the leaves of one value lie, relative to the region's start."""

    specs: tuple[TensorSpec, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        offsets, at = [], 0
        for spec in self.specs:
            offsets.append(at)
            at += align(spec.nbytes)
        return tuple(offsets)

    @cached_property
    def nbytes(self) -> int:
        return sum(align(spec.nbytes) for spec in self.specs)

    @cached_property
    def payload(self) -> int:
        return sum(spec.nbytes for spec in self.specs)

    def views(self, buffer: torch.Tensor, start: int) -> list[torch.Tensor]:
        return [s.view(buffer, start + o) for s, o in zip(self.specs, self.offsets, strict=True)]

    def to_json(self) -> list[dict[str, Any]]:
        return [spec.to_json() for spec in self.specs]

    @classmethod
    def from_json(cls, data: Any) -> Region:
        if not isinstance(data, list):
            raise UnsupportedValue(f"expected a list of tensors, got {type(data).__name__}")
        return cls(tuple(TensorSpec.from_json(item) for item in data))


def align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def flatten(value: Any, leaves: list[torch.Tensor]) -> Any:
    """The structure of `value` as JSON; its tensors are appended to `leaves`. Raises UnsupportedValue."""
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return {"tensor": len(leaves) - 1}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, tuple):
        return {"tuple": [flatten(item, leaves) for item in value]}
    if isinstance(value, list):
        return {"list": [flatten(item, leaves) for item in value]}
    if isinstance(value, dict):
        if not all(isinstance(key, (str, int)) for key in value):
            raise UnsupportedValue("a dict with keys that are neither strings nor integers")
        return {"dict": [[key, flatten(item, leaves)] for key, item in value.items()]}
    raise UnsupportedValue(
        f"a value of type {type(value).__name__}; tensors, numbers, strings, lists and dicts can be used"
    )


def unflatten(tree: Any, leaves: Sequence[Any]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, body),) = tree.items()
    match kind:
        case "tensor":
            return leaves[body]
        case "dtype":
            return dtype_of(body)
        case "tuple":
            return tuple(unflatten(item, leaves) for item in body)
        case "list":
            return [unflatten(item, leaves) for item in body]
        case "dict":
            return {key: unflatten(item, leaves) for key, item in body}
    raise UnsupportedValue(f"unknown structure {kind!r}")


def same_structure(left: Any, right: Any) -> bool:
    """Whether two trees agree in shape; lists and tuples count as the same, numbers must be equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        ((lk, lb),) = left.items()
        ((rk, rb),) = right.items()
        if {lk, rk} <= {"list", "tuple"}:
            return len(lb) == len(rb) and all(map(same_structure, lb, rb))
        if lk != rk:
            return False
        if lk == "dict":
            return [k for k, _ in lb] == [k for k, _ in rb] and all(
                same_structure(a, b) for (_, a), (_, b) in zip(lb, rb, strict=True)
            )
        return bool(lb == rb)
    return type(left) is type(right) and (left == right or (left != left and right != right))


def _is_dense(tensor: torch.Tensor) -> bool:
    dims = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1)
    expected = 1
    for stride, size in dims:
        if stride != expected:
            return False
        expected *= size
    return tensor.layout is torch.strided and tensor.numel() > 0


def _contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, at = [], 1
    for size in reversed(shape):
        stride.append(at)
        at *= max(size, 1)
    return tuple(reversed(stride))
