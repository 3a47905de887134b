"""Which function lowers which ATen operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from cuda_agent.expert.ir import Dtype
from cuda_agent.expert.lower.builder import Builder
from cuda_agent.expert.tensors import Shape, Tensor


class Context(Builder):
    """A builder that also knows what PyTorch says of the node being lowered.

    dtypes and shapes: per output, from the trace. limits: see `Limits` of the planner.
    """

    op_name: str
    dtypes: tuple[Dtype, ...]
    shapes: tuple[Shape, ...]
    long_row: int

    def __init__(
        self, line: int | None, op_name: str, dtypes: tuple[Dtype, ...], shapes: tuple[Shape, ...], long_row: int
    ) -> None:
        super().__init__(line)
        for key, value in (("op_name", op_name), ("dtypes", dtypes), ("shapes", shapes), ("long_row", long_row)):
            object.__setattr__(self, key, value)

    @property
    def dtype(self) -> Dtype:
        return self.dtypes[0]

    @property
    def shape(self) -> Shape:
        return self.shapes[0]


Lowered = Tensor | tuple[Tensor | None, ...]
Rule = Callable[..., Lowered]
RULES: dict[str, Rule] = {}
_Kept = TypeVar("_Kept", bound=Rule)


def lowering(*names: str) -> Callable[[_Kept], _Kept]:
    """Register a rule for ATen overloads, `add.Tensor` for short. The rule gets a Context, then the node's arguments:
    tensors as `Tensor`, dtypes as strings, the rest as plain Python values."""

    def register(rule: _Kept) -> _Kept:
        for name in names:
            assert name not in RULES, name
            RULES[name] = rule
        return rule

    return register


def rule_for(name: str) -> Rule | None:
    return RULES.get(name)


Argument = Any
