"""Plans written by hand, of any size, each with the torch function it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cuda_agent.expert.ir import (
    OPS,
    Buffer,
    Const,
    Coordinate,
    Dtype,
    Index,
    Kernel,
    Let,
    Load,
    Op,
    Pass,
    Plan,
    Reduction,
    Store,
)


@dataclass(frozen=True)
class Sample:
    """oracle: torch function of the inputs (cast to float64 where floating) that gives the outputs."""

    plan: Plan
    oracle: Callable[..., Any]

    @property
    def kernel(self) -> Kernel:
        return self.plan.kernels[0]


def let(name: str, fn: str, *args: str, dtype: Dtype = "float32") -> Let:
    return Let(name, dtype, Op(fn, args))


def const(name: str, value: float, dtype: Dtype = "float32") -> Let:
    return Let(name, dtype, Const(value))


def load(name: str, buffer: str, strides: tuple[int, ...], dtype: Dtype = "float32", offset: int = 0) -> Let:
    return Let(name, dtype, Load(buffer, Index(offset, strides)))


def plan(kernel: Kernel, *buffers: Buffer) -> Plan:
    return Plan(buffers, (kernel,), kernel.writes, "cuda")


def pointwise(rows: int, columns: int, dtype: Dtype = "float32") -> Sample:
    """x * sigmoid(x) + bias over [rows, columns]."""
    wide: list[Let] = []
    if dtype != "float32":
        wide = [let("xf", "cast", "x0"), let("bf", "cast", "b0")]
    x, b = ("xf", "bf") if wide else ("x0", "b0")
    ends = [let("out", "cast", "sum", dtype=dtype)] if wide else []
    body = (load("x0", "x", (columns, 1), dtype), load("b0", "bias", (0, 1), dtype), *wide, let("gate", "sigmoid", x),
            let("swish", "mul", x, "gate"), let("sum", "add", "swish", b), *ends)  # fmt: skip
    store = Store("y", Index(0, (columns, 1)), "out" if wide else "sum")
    kernel = Kernel("swish_bias", (rows, columns), (), (Pass((), body, (), (store,)),))
    buffers = [Buffer("x", dtype, (rows, columns), "input"), Buffer("bias", dtype, (columns,), "input")]
    return Sample(plan(kernel, *buffers, Buffer("y", dtype, (rows, columns), "output")),
                  lambda x, b: x * x.sigmoid() + b)  # fmt: skip


def chain(count: int) -> Sample:
    """gelu(x) over [count], exact."""
    body = (load("a", "x", (1,)), const("c", 0.7071067811865476), const("half", 0.5), const("one", 1.0),
            let("s", "mul", "a", "c"), let("f", "erf", "s"), let("g", "add", "f", "one"), let("h", "mul", "a", "half"),
            let("r", "mul", "h", "g"))  # fmt: skip
    kernel = Kernel("gelu", (count,), (), (Pass((), body, (), (Store("y", Index(0, (1,)), "r"),)),))
    return Sample(plan(kernel, Buffer("x", "float32", (count,), "input"), Buffer("y", "float32", (count,), "output")),
                  lambda x: 0.5 * x * (1 + (x * 0.7071067811865476).erf()))  # fmt: skip


def softmax(rows: int, columns: int) -> Sample:
    x = load("a", "x", (columns, 1))
    shifted = (x, let("d", "sub", "a", "m"), let("e0", "exp", "d"))
    kernel = Kernel(
        "softmax_rows", (rows,), (columns,),
        (Pass((), (x,), (Reduction("m", "max", "float32", "a"),)),
         Pass((), shifted, (Reduction("s", "sum", "float32", "e0"),)),
         Pass((), (*shifted, let("r", "div", "e0", "s")), (), (Store("y", Index(0, (columns, 1)), "r"),))),
    )  # fmt: skip
    shape = (rows, columns)
    return Sample(plan(kernel, Buffer("x", "float32", shape, "input"), Buffer("y", "float32", shape, "output")),
                  lambda x: x.softmax(-1))  # fmt: skip


def group_norm(batch: int, channels: int, groups: int, space: int) -> Sample:
    """Group norm of [batch, channels, space] with weight and bias; layer norm for one group, instance norm for many."""
    each = channels // groups
    count = each * space
    x = load("a", "x", (channels * space, each * space, space, 1))
    n, eps = const("n", 1.0 / count), const("eps", 1e-5)
    weight, bias = load("w0", "w", (0, each, 1, 0)), load("b0", "b", (0, each, 1, 0))
    deviation = (x, let("d", "sub", "a", "mean"))
    out = (
        *deviation,
        weight,
        bias,
        let("z", "mul", "d", "inv"),
        let("zw", "mul", "z", "w0"),
        let("r", "add", "zw", "b0"),
    )
    index = Index(0, (channels * space, each * space, space, 1))
    kernel = Kernel(
        "group_norm", (batch, groups), (each, space),
        (Pass((), (x,), (Reduction("total", "sum", "float32", "a"),)),
         Pass((n, let("mean", "mul", "total", "n")), (*deviation, let("q", "square", "d")),
              (Reduction("m2", "sum", "float32", "q"),)),
         Pass((n, eps, let("var", "mul", "m2", "n"), let("ve", "add", "var", "eps"), let("inv", "rsqrt", "ve")), out,
              (),
              (Store("y", index, "r"),))),
    )  # fmt: skip
    shape = (batch, channels, space)
    buffers = [Buffer("x", "float32", shape, "input"), Buffer("w", "float32", (channels,), "param"),
               Buffer("b", "float32", (channels,), "param")]  # fmt: skip

    def oracle(x: Any, w: Any, b: Any) -> Any:
        import torch

        return torch.nn.functional.group_norm(x, groups, w, b)

    return Sample(plan(kernel, *buffers, Buffer("y", "float32", shape, "output")), oracle)


def layer_norm(rows: int, columns: int) -> Sample:
    """With an elementwise weight and bias over the row."""
    x, n, eps = load("a", "x", (columns, 1)), const("n", 1.0 / columns), const("eps", 1e-5)
    deviation = (x, let("d", "sub", "a", "mean"))
    out = (*deviation, load("w0", "w", (0, 1)), load("b0", "b", (0, 1)), let("z", "mul", "d", "inv"),
           let("zw", "mul", "z", "w0"), let("r", "add", "zw", "b0"))  # fmt: skip
    kernel = Kernel(
        "layer_norm", (rows,), (columns,),
        (Pass((), (x,), (Reduction("total", "sum", "float32", "a"),)),
         Pass((n, let("mean", "mul", "total", "n")), (*deviation, let("q", "square", "d")),
              (Reduction("m2", "sum", "float32", "q"),)),
         Pass((n, eps, let("var", "mul", "m2", "n"), let("ve", "add", "var", "eps"), let("inv", "rsqrt", "ve")), out,
              (), (Store("y", Index(0, (columns, 1)), "r"),))),
    )  # fmt: skip
    shape = (rows, columns)
    buffers = [Buffer("x", "float32", shape, "input"), Buffer("w", "float32", (columns,), "param"),
               Buffer("b", "float32", (columns,), "param")]  # fmt: skip

    def oracle(x: Any, w: Any, b: Any) -> Any:
        import torch

        return torch.nn.functional.layer_norm(x, (columns,), w, b)

    return Sample(plan(kernel, *buffers, Buffer("y", "float32", shape, "output")), oracle)


def l2_norm(rows: int, columns: int) -> Sample:
    """x / ||x|| along rows; rows = 1 gives the Frobenius norm."""
    dims = ((rows,), (columns, 1)) if rows > 1 else ((), (1,))
    x = load("a", "x", dims[1])
    kernel = Kernel(
        "l2_norm", dims[0], (columns,),
        (Pass((), (x, let("q", "mul", "a", "a")), (Reduction("total", "sum", "float32", "q"),)),
         Pass((let("norm", "sqrt", "total"),), (x, let("r", "div", "a", "norm")), (),
              (Store("y", Index(0, dims[1]), "r"),))),
    )  # fmt: skip
    shape = (rows, columns)
    return Sample(plan(kernel, Buffer("x", "float32", shape, "input"), Buffer("y", "float32", shape, "output")),
                  lambda x: x / (x * x).sum(-1, keepdim=True).sqrt())  # fmt: skip


def rms_columns(batch: int, channels: int, space: int) -> Sample:
    """RMS norm over dim 1 of [batch, channels, space]."""
    strides = (channels * space, 1, space)
    x, n, eps = load("a", "x", strides), const("n", 1.0 / channels), const("eps", 1e-5)
    kernel = Kernel(
        "rms_columns", (batch, space), (channels,),
        (Pass((), (x, let("q", "square", "a")), (Reduction("total", "sum", "float32", "q"),)),
         Pass((n, eps, let("ms", "mul", "total", "n"), let("me", "add", "ms", "eps"), let("rms", "sqrt", "me")),
              (x, let("r", "div", "a", "rms")), (), (Store("y", Index(0, strides), "r"),))),
    )  # fmt: skip
    shape = (batch, channels, space)
    return Sample(plan(kernel, Buffer("x", "float32", shape, "input"), Buffer("y", "float32", shape, "output")),
                  lambda x: x / ((x * x).mean(1, keepdim=True) + 1e-5).sqrt())  # fmt: skip


def reduce(kind: str, batch: int, size: int, space: int, inner: bool = False) -> Sample:
    """kind over dim 1 of [batch, size, space]; inner: over the last dim of [batch, size] (space is 1)."""
    arg = kind.startswith("arg")
    dtype: Dtype = "int64" if arg else "float32"
    outer = (batch,) if inner else (batch, space)
    strides = (size, 1) if inner else (size * space, 1, space)
    kernel = Kernel(
        f"{kind}_over", outer, (size,),
        (Pass((), (load("a", "x", strides),), (Reduction("r", kind, dtype, "a"),)),),  # type: ignore[arg-type]
        (), (Store("y", Index(0, (1, 0) if inner else (space, 1, 0)), "r"),),
    )  # fmt: skip
    shape = (batch, size) if inner else (batch, size, space)

    def oracle(x: Any) -> Any:
        return {"sum": lambda: x.sum(1), "max": lambda: x.amax(1), "min": lambda: x.amin(1), "prod": lambda: x.prod(1),
                "argmax": lambda: x.argmax(1), "argmin": lambda: x.argmin(1)}[kind]()  # fmt: skip

    return Sample(plan(kernel, Buffer("x", "float32", shape, "input"), Buffer("y", dtype, outer, "output")), oracle)


def mse(count: int) -> Sample:
    body = (load("a", "p", (1,)), load("b", "t", (1,)), let("d", "sub", "a", "b"), let("q", "square", "d"))
    kernel = Kernel(
        "mse", (), (count,), (Pass((), body, (Reduction("total", "sum", "float32", "q"),)),),
        (const("n", 1.0 / count), let("r", "mul", "total", "n")), (Store("y", Index(0, (0,)), "r"),),
    )  # fmt: skip
    buffers = [Buffer("p", "float32", (count,), "input"), Buffer("t", "float32", (count,), "input")]
    return Sample(plan(kernel, *buffers, Buffer("y", "float32", (), "output")), lambda p, t: ((p - t) ** 2).mean())


def cross_entropy(rows: int, classes: int) -> Sample:
    """Per-row loss with the target read by its index."""
    x = load("a", "x", (classes, 1))
    target = load("t0", "target", (1, 0), "int64")
    picked = Let("picked", "float32", Load("x", Index(0, (classes, 0), (("t0", 1),))))
    kernel = Kernel(
        "cross_entropy", (rows,), (classes,),
        (Pass((), (x,), (Reduction("m", "max", "float32", "a"),)),
         Pass((), (x, let("d", "sub", "a", "m"), let("e0", "exp", "d")), (Reduction("s", "sum", "float32", "e0"),))),
        (target, picked, let("ls", "log", "s"), let("lse", "add", "ls", "m"), let("r", "sub", "lse", "picked")),
        (Store("y", Index(0, (1, 0)), "r"),),
    )  # fmt: skip
    buffers = [Buffer("x", "float32", (rows, classes), "input"), Buffer("target", "int64", (rows,), "input")]

    def oracle(x: Any, t: Any) -> Any:
        import torch

        return torch.nn.functional.cross_entropy(x, t, reduction="none")

    return Sample(plan(kernel, *buffers, Buffer("y", "float32", (rows,), "output")), oracle)


def causal_mask(rows: int, columns: int) -> Sample:
    """x where column <= row, else -1."""
    body = (Let("c", "int64", Coordinate(0, (-1, 1))), const("zero", 0, "int64"),
            let("keep", "le", "c", "zero", dtype="bool"),
            Let("a", "float32", Load("x", Index(0, (columns, 1)), "keep")), const("fill", -1.0),
            let("r", "where", "keep", "a", "fill"))  # fmt: skip
    kernel = Kernel(
        "causal_mask", (rows, columns), (), (Pass((), body, (), (Store("y", Index(0, (columns, 1)), "r"),)),)
    )
    shape = (rows, columns)

    def oracle(x: Any) -> Any:
        import torch

        keep = torch.ones(rows, columns, dtype=torch.bool, device=x.device).tril()
        return torch.where(keep, x, -torch.ones_like(x))

    return Sample(plan(kernel, Buffer("x", "float32", shape, "input"), Buffer("y", "float32", shape, "output")), oracle)


def operators(dtype: Dtype, fns: tuple[str, ...]) -> Sample:
    """Every one of `fns` of two inputs of `dtype`, each stored by itself. No oracle: made to be compiled."""
    body: list[Let] = [load("p", "x", (1,), dtype), load("q", "y", (1,), dtype), const("zero", 0, dtype)]
    body.append(let("flag", "lt", "p", "q", dtype="bool"))
    stores, buffers = [], [Buffer("x", dtype, (1000,), "input"), Buffer("y", dtype, (1000,), "input")]
    for n, fn in enumerate(fns):
        logical = fn in ("lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf")
        result: Dtype = "bool" if logical else dtype
        arguments = ("flag", "p", "q") if fn == "where" else ("p", "q")[: OPS[fn][0]]
        body.append(let(f"r{n}", fn, *arguments, dtype=result))
        stores.append(Store(f"out{n}", Index(0, (1,)), f"r{n}"))
        buffers.append(Buffer(f"out{n}", result, (1000,), "output"))
    kernel = Kernel("operators", (1000,), (), (Pass((), tuple(body), (), tuple(stores)),))
    return Sample(plan(kernel, *buffers), lambda *inputs: None)


def reductions(dtype: Dtype, kinds: tuple[str, ...], columns: bool = False) -> Sample:
    """Several reductions of one input [64, 512] in one pass; columns: over dim 0. Made to be compiled."""
    strides = (1, 512) if columns else (512, 1)
    outer, inner = (512, 64) if columns else (64, 512)
    found, stores, buffers = [], [], [Buffer("x", dtype, (64, 512), "input")]
    for n, kind in enumerate(kinds):
        result: Dtype = "int64" if kind.startswith("arg") else dtype
        found.append(Reduction(f"r{n}", kind, result, "p"))  # type: ignore[arg-type]
        stores.append(Store(f"out{n}", Index(0, (1, 0)), f"r{n}"))
        buffers.append(Buffer(f"out{n}", result, (outer,), "output"))
    kernel = Kernel(
        "reductions",
        (outer,),
        (inner,),
        (Pass((), (load("p", "x", strides, dtype),), tuple(found)),),
        (),
        tuple(stores),
    )
    return Sample(plan(kernel, *buffers), lambda x: None)


def degenerate(case: str) -> Sample:
    """Nests without dims or with few points. No oracle: made to be compiled."""
    if case == "scalar":  # one point, nothing reduced
        body = (load("p", "x", ()), let("q", "exp", "p"))
        kernel = Kernel("scalar", (), (), (Pass((), body, (), (Store("y", Index(0, ()), "q"),)),))
        return Sample(plan(kernel, Buffer("x", "float32", (), "input"), Buffer("y", "float32", (), "output")), Any)
    if case == "nothing_to_reduce":  # a sum over no dims
        found = (Reduction("r", "sum", "float32", "p"),)
        kernel = Kernel(
            "nothing_to_reduce",
            (64,),
            (),
            (Pass((), (load("p", "x", (1,)),), found),),
            (),
            (Store("y", Index(0, (1,)), "r"),),
        )
        return Sample(
            plan(kernel, Buffer("x", "float32", (64,), "input"), Buffer("y", "float32", (64,), "output")), Any
        )
    if case == "row_store_only":  # no reduction, yet stores of rows and of elements
        body = (load("p", "x", (512, 1)), let("q", "exp", "p"))
        element, row = Store("y", Index(0, (512, 1)), "q"), Store("z", Index(0, (1, 0)), "w")
        kernel = Kernel(
            "row_store_only", (64,), (512,), (Pass((load("w", "v", (1, 0)),), body, (), (element,)),), (), (row,)
        )
        shapes = {"x": (64, 512), "v": (64,), "y": (64, 512), "z": (64,)}
        buffers = [Buffer(n, "float32", s, "input" if n in "xv" else "output") for n, s in shapes.items()]
        return Sample(plan(kernel, *buffers), Any)
    # strided: nothing is contiguous along any dim
    found = (Reduction("r", "max", "float32", "p"),)
    kernel = Kernel(
        "strided",
        (64,),
        (128,),
        (Pass((), (load("p", "x", (512, 2)),), found),),
        (),
        (Store("y", Index(0, (2, 0)), "r"),),
    )
    return Sample(
        plan(kernel, Buffer("x", "float32", (64, 512), "input"), Buffer("y", "float32", (128,), "output")), Any
    )
