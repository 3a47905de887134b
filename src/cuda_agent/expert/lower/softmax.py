"""The softmax family: a maximum, a sum of exponentials about it, then the stores."""

from __future__ import annotations

from cuda_agent.expert.ir import Dtype
from cuda_agent.expert.lower.registry import Context, lowering
from cuda_agent.expert.tensors import Tensor


@lowering("_softmax.default", "_safe_softmax.default")
def softmax(c: Context, x: Tensor, dim: int, half_to_float: bool = False, dtype: Dtype | None = None) -> Tensor:
    wide = c.wide(c.cast(x, c.dtype))
    top = c.reduce("max", wide, dim, True)
    powers = c.op("exp", c.op("sub", wide, top))
    # the sum is at least 1, so that its reciprocal is safe
    scale = c.op("reciprocal", c.reduce("sum", powers, dim, True))
    out = c.op("mul", powers, scale)
    if c.op_name == "_safe_softmax.default":
        out = c.where(c.compare("eq", top, float("-inf")), 0.0, out)
    return c.cast(out, c.dtype)


@lowering("_log_softmax.default")
def log_softmax(c: Context, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    wide = c.wide(c.cast(x, c.dtype))
    shifted = c.op("sub", wide, c.reduce("max", wide, dim, True))
    total = c.reduce("sum", c.op("exp", shifted), dim, True)
    return c.cast(c.op("sub", shifted, c.op("log", total)), c.dtype)
