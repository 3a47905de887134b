"""Elementwise operators, with PyTorch's own formulas (aten/src/ATen/native/cpu/*Kernel.cpp)."""

from __future__ import annotations

import math

from cuda_agent.expert.ir import Dtype
from cuda_agent.expert.lower.builder import Operand
from cuda_agent.expert.lower.registry import Context, lowering
from cuda_agent.expert.tensors import Fill, Tensor, category, result_type

_FLOAT_UNARY = [
    "sqrt",
    "rsqrt",
    "reciprocal",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "sigmoid",
]
_SAME_UNARY = ["neg", "abs", "sign"]
_COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]


def _register() -> None:
    for name in _FLOAT_UNARY:
        lowering(f"{name}.default")(lambda c, x, fn=name: c.float_op(fn, x))
    for name in _SAME_UNARY:
        lowering(f"{name}.default")(lambda c, x, fn=name: c.op(fn, x))
    for name in ("floor", "ceil", "trunc", "round"):
        lowering(f"{name}.default")(lambda c, x, fn=name: c.op(fn, x) if category(x.dtype) == 2 else x)
    for name in _COMPARISONS:
        lowering(f"{name}.Tensor", f"{name}.Scalar")(lambda c, a, b, fn=name: c.compare(fn, a, b))
    for name in ("isnan", "isinf"):
        lowering(f"{name}.default")(
            lambda c, x, fn=name: c.op(fn, x, out="bool") if category(x.dtype) == 2 else c.fill(False, "bool", x.shape)
        )
    for name in ("and", "or", "xor"):
        lowering(f"logical_{name}.default")(lambda c, a, b, fn=name: c.op(fn, a, b, dtype="bool"))
        lowering(f"bitwise_{name}.Tensor", f"bitwise_{name}.Scalar")(lambda c, a, b, fn=name: c.op(fn, a, b))


_register()


@lowering("mul.Tensor", "mul.Scalar")
def mul(c: Context, a: Operand, b: Operand) -> Tensor:
    return c.op("mul", a, b) if result_type((a, b)) != "bool" else c.op("and", a, b)


@lowering("add.Tensor", "add.Scalar")
def add(c: Context, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    common = result_type((a, b))
    if alpha != 1:
        b = c.op("mul", c.operand(b, common), alpha, dtype=common)
    return c.op("add", a, b, dtype=common) if common != "bool" else c.op("or", a, b)


@lowering("sub.Tensor", "sub.Scalar")
def sub(c: Context, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    common = result_type((a, b))
    if alpha != 1:
        b = c.op("mul", c.operand(b, common), alpha, dtype=common)
    return c.op("sub", a, b, dtype=common)


@lowering("rsub.Tensor", "rsub.Scalar")
def rsub(c: Context, a: Operand, b: Operand, alpha: float = 1) -> Tensor:
    return sub(c, b, a, alpha)


@lowering("div.Tensor", "div.Scalar")
def div(c: Context, a: Operand, b: Operand) -> Tensor:
    if isinstance(b, (int, float)) and b != 0 and math.frexp(b)[0] in (0.5, -0.5):
        return c.float_op("mul", a, 1.0 / b)  # a power of two: exact
    return c.float_op("div", a, b)


@lowering("div.Tensor_mode", "div.Scalar_mode")
def div_mode(c: Context, a: Operand, b: Operand, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return div(c, a, b)
    common = result_type((a, b))
    if rounding_mode == "floor":
        return c.op("floordiv", a, b, dtype=common)
    return c.op("trunc", c.op("div", a, b)) if category(common) == 2 else c.op("truncdiv", a, b)


@lowering("floor_divide.default")
def floor_divide(c: Context, a: Operand, b: Operand) -> Tensor:
    return c.op("floordiv", a, b)


@lowering("remainder.Tensor", "remainder.Scalar")
def remainder(c: Context, a: Operand, b: Operand) -> Tensor:
    return c.op("mod", a, b)


@lowering("fmod.Tensor", "fmod.Scalar")
def fmod(c: Context, a: Operand, b: Operand) -> Tensor:
    return c.op("fmod", a, b)


@lowering("maximum.default")
def maximum(c: Context, a: Operand, b: Operand) -> Tensor:
    return c.op("max", a, b) if result_type((a, b)) != "bool" else c.op("or", a, b)


@lowering("minimum.default")
def minimum(c: Context, a: Operand, b: Operand) -> Tensor:
    return c.op("min", a, b) if result_type((a, b)) != "bool" else c.op("and", a, b)


@lowering("atan2.default")
def atan2(c: Context, a: Operand, b: Operand) -> Tensor:
    return c.float_op("atan2", a, b)


@lowering("logical_not.default")
def logical_not(c: Context, x: Tensor) -> Tensor:
    return c.op("not", x, dtype="bool")


@lowering("bitwise_not.default")
def bitwise_not(c: Context, x: Tensor) -> Tensor:
    return c.op("not", x)


@lowering("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(c: Context, condition: Tensor, a: Operand, b: Operand) -> Tensor:
    return c.where(condition, a, b)


@lowering("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(c: Context, x: Tensor, mask: Tensor, value: Operand) -> Tensor:
    return c.where(mask, value, x, dtype=x.dtype)


@lowering("_to_copy.default")
def to_copy(c: Context, x: Tensor, dtype: Dtype | None = None, **_: object) -> Tensor:
    return c.cast(x, dtype, rounds=True) if dtype is not None else x


@lowering("prims.convert_element_type.default")
def convert(c: Context, x: Tensor, dtype: Dtype) -> Tensor:
    return c.cast(x, dtype, rounds=True)


@lowering("pow.Tensor_Scalar")
def pow_scalar(c: Context, x: Tensor, exponent: float) -> Tensor:
    common = result_type((x, exponent))
    base = c.cast(x, common)
    if exponent == 0:
        return c.fill(1, common, x.shape)
    if exponent in (1, 2, 3, 4):
        square = c.op("square", base)
        return {1: base, 2: square, 3: c.op("mul", square, base), 4: c.op("square", square)}[int(exponent)]
    if category(common) == 2:
        if exponent == 0.5:
            return c.op("sqrt", base)
        if exponent == -0.5:
            return c.op("rsqrt", base)
        if exponent == -1:
            return c.op("reciprocal", base)
        if exponent == -2:
            return c.op("reciprocal", c.op("square", base))
    return c.op("pow", base, exponent, dtype=common)


@lowering("pow.Tensor_Tensor", "pow.Scalar")
def pow_tensor(c: Context, a: Operand, b: Operand) -> Tensor:
    if isinstance(b, Fill) and b.ndim == 0:
        return pow_scalar(c, c.operand(a, result_type((a, b))), b.value)
    return c.op("pow", a, b)


@lowering("clamp.default", "clamp.Tensor", "hardtanh.default")
def clamp(c: Context, x: Tensor, low: Operand | None = None, high: Operand | None = None, **kwargs: Operand) -> Tensor:
    low, high = kwargs.get("min", low), kwargs.get("max", high)
    if c.op_name == "hardtanh.default":
        low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    common = result_type([v for v in (x, low, high) if v is not None])
    out = c.cast(x, common)
    out = c.op("max", out, low, dtype=common) if low is not None else out
    return c.op("min", out, high, dtype=common) if high is not None else out


@lowering("relu.default")
def relu(c: Context, x: Tensor) -> Tensor:
    return c.op("max", x, 0, dtype=x.dtype)


@lowering("leaky_relu.default")
def leaky_relu(c: Context, x: Tensor, slope: float = 0.01) -> Tensor:
    return c.where(c.compare("gt", x, 0), x, c.op("mul", x, slope, dtype=x.dtype), dtype=x.dtype)


@lowering("prelu.default", "_prelu_kernel.default")
def prelu(c: Context, x: Tensor, weight: Tensor) -> Tensor:
    if weight.numel == 1:
        weight = c.reshape(weight, (1,) * x.ndim)
    elif weight.ndim == 1 and x.ndim > 1:
        weight = c.reshape(weight, (1, -1, *(1 for _ in range(x.ndim - 2))))
    return c.where(c.compare("gt", x, 0), x, c.op("mul", x, weight, dtype=x.dtype), dtype=x.dtype)


@lowering("elu.default")
def elu(c: Context, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Tensor:
    positive = c.op("mul", x, scale) if scale != 1 else x
    grown = c.op("expm1", c.op("mul", x, input_scale) if input_scale != 1 else x)
    factor = alpha * scale
    return c.where(c.compare("le", x, 0), c.op("mul", grown, factor) if factor != 1 else grown, positive)


@lowering("gelu.default")
def gelu(c: Context, x: Tensor, approximate: str = "none") -> Tensor:
    half = c.op("mul", x, 0.5)
    if approximate == "tanh":
        cube = c.op("mul", c.op("square", x), x)
        inner = c.op("mul", c.op("add", x, c.op("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        return c.op("mul", half, c.op("add", c.op("tanh", inner), 1.0))
    return c.op("mul", half, c.op("add", c.op("erf", c.op("mul", x, math.sqrt(0.5))), 1.0))


@lowering("silu.default")
def silu(c: Context, x: Tensor) -> Tensor:
    return c.op("mul", x, c.op("sigmoid", x))


@lowering("mish.default")
def mish(c: Context, x: Tensor) -> Tensor:
    return c.op("mul", x, c.op("tanh", softplus(c, x)))


@lowering("softplus.default")
def softplus(c: Context, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = c.op("mul", x, beta) if beta != 1 else x
    soft = c.op("log1p", c.op("exp", scaled))
    soft = c.op("div", soft, beta) if beta != 1 else soft
    return c.where(c.compare("gt", scaled, threshold), x, soft)


@lowering("log_sigmoid_forward.default")
def log_sigmoid(c: Context, x: Tensor) -> tuple[Tensor, None]:
    tail = c.op("log1p", c.op("exp", c.op("neg", c.op("abs", x))))
    return c.op("sub", c.op("min", x, 0.0), tail), None


@lowering("hardsigmoid.default")
def hardsigmoid(c: Context, x: Tensor) -> Tensor:
    return c.op("div", c.op("min", c.op("max", c.op("add", x, 3.0), 0.0), 6.0), 6.0)


@lowering("hardswish.default")
def hardswish(c: Context, x: Tensor) -> Tensor:
    return c.op("div", c.op("mul", x, c.op("min", c.op("max", c.op("add", x, 3.0), 0.0), 6.0)), 6.0)


@lowering("threshold.default")
def threshold(c: Context, x: Tensor, level: float, value: float) -> Tensor:
    return c.where(c.compare("le", x, level), value, x, dtype=x.dtype)


@lowering("addcmul.default")
def addcmul(c: Context, x: Tensor, a: Tensor, b: Tensor, value: float = 1) -> Tensor:
    product = c.op("mul", a, b)
    return c.op("add", x, c.op("mul", product, value) if value != 1 else product)


@lowering("addcdiv.default")
def addcdiv(c: Context, x: Tensor, a: Tensor, b: Tensor, value: float = 1) -> Tensor:
    quotient = c.float_op("div", a, b)
    return c.op("add", x, c.op("mul", quotient, value) if value != 1 else quotient)


@lowering("lerp.Scalar", "lerp.Tensor")
def lerp(c: Context, a: Tensor, b: Tensor, weight: Operand) -> Tensor:
    return c.op("add", a, c.op("mul", weight, c.op("sub", b, a), dtype=a.dtype))


@lowering("logaddexp.default")
def logaddexp(c: Context, a: Tensor, b: Tensor) -> Tensor:
    top = c.op("max", a, b)
    soft = c.op("add", top, c.op("log1p", c.op("exp", c.op("neg", c.op("abs", c.op("sub", a, b))))))
    return c.where(c.op("and", c.op("isinf", top, out="bool"), c.compare("eq", a, b)), top, soft)


@lowering("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self")
def xlogy(c: Context, a: Operand, b: Operand) -> Tensor:
    common = result_type((a, b))
    common = common if category(common) == 2 else "float32"
    x, y = c.operand(a, common), c.operand(b, common)
    product = c.op("mul", x, c.op("log", y))
    return c.where(c.op("isnan", y, out="bool"), math.nan, c.where(c.compare("eq", x, 0), 0.0, product, dtype=common))


@lowering("nan_to_num.default")
def nan_to_num(
    c: Context, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if category(x.dtype) != 2:
        return x
    top = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float64": 1.7976931348623157e308}.get(
        x.dtype, 3.4028234663852886e38
    )
    out = c.where(c.op("isnan", x, out="bool"), nan or 0.0, x, dtype=x.dtype)
    out = c.where(c.compare("eq", x, math.inf), top if posinf is None else posinf, out, dtype=x.dtype)
    return c.where(c.compare("eq", x, -math.inf), -top if neginf is None else neginf, out, dtype=x.dtype)


@lowering("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "dropout.default")
def identity(c: Context, x: Tensor, *_: object, **__: object) -> Tensor:
    return x


@lowering("copy.default")
def copy(c: Context, x: Tensor, source: Tensor, *_: object) -> Tensor:
    return c.expand(c.cast(source, x.dtype, rounds=True), x.shape)
