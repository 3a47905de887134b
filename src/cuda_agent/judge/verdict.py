"""The judge's one answer: a versioned, JSON-serialisable record."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal[
    "accepted",  # right; `reward` says how fast
    "build_failed",  # a source did not compile, or the compiler never ended
    "load_failed",  # model_new.py did not import, or its signature or state_dict differs
    "runtime_error",  # forward raised
    "incorrect",  # wrong values, shape, dtype, device or structure
    "rule_broken",  # `rule` names it
    "timed_out",  # an endless loop or kernel
    "out_of_memory",
    "crashed",  # segfault, illegal address, exit: the process died
    "judge_error",  # our own fault or the machine's; no blame on the candidate, reward -1 (fail closed)
]

Reward = Literal[-1, 1, 2, 3]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Record):
    """A time per forward call in milliseconds, with a 95 % confidence interval."""

    ms: float
    low: float
    high: float


class Speedup(_Record):
    """A baseline's time over the candidate's, with a 95 % confidence interval."""

    ratio: float
    low: float
    high: float


class Times(_Record):
    """Times under one protocol. `compile_matched` is torch.compile at the candidate's own precision.

    `candidate_whole`: the same as seen from around the copies in and out, less their cost; it confirms `candidate`, or
    stands in its place where the two disagree (judge/clock.py).
    """

    eager: Interval | None = None
    compile: Interval | None = None
    compile_matched: Interval | None = None
    candidate: Interval | None = None
    candidate_whole: Interval | None = None


class Errors(_Record):
    """Largest error over all checked elements, as a multiple of what was allowed (`worst` ≤ 1 passes)."""

    worst: float
    max_abs: float
    eager_worst: float  # the same measure for eager PyTorch itself
    checked: int  # output elements compared, timed iterations included


class Roofline(_Record):
    """Least traffic (inputs and parameters read once, outputs written once) over measured copy bandwidth."""

    bytes: int
    floor_ms: float
    fraction: float | None = None  # floor_ms / candidate time; 1.0 is the ceiling


class Device(_Record):
    kind: Literal["cpu", "cuda"]
    name: str


class Verdict(_Record):
    """What the judge found.

    `reward` is the paper's (arXiv 2602.24286, section 3): -1 not accepted, 1 correct, 2 also more than 5 % faster
    than eager, 3 also more than 5 % faster than `torch.compile`; "faster" means the confidence interval is past it.

    `speedup_*` are the ratios of `times`, or those of `side_by_side` where there are such.
    """

    schema_version: Literal[1] = 1
    task: str
    status: Status
    reward: Reward
    rule: str | None = None
    message: str = ""
    times: Times = Times()
    speedup_eager: float | None = None
    speedup_compile: float | None = None
    speedup_matched: float | None = None
    side_by_side: dict[str, Speedup] = Field(default_factory=dict)  # of baselines that took turns with the candidate
    errors: Errors | None = None
    oracle: Literal["float64", "float32"] | None = None
    precision: Literal["full", "reduced"] | None = None  # against eager's own error with TF32 off
    roofline: Roofline | None = None
    isolation: str = "none"
    device: Device
    versions: dict[str, str] = Field(default_factory=dict)
    flags: list[str] = Field(default_factory=list)
    log: str = ""  # tail of compiler or candidate output, for the author of the candidate
    seconds: dict[str, float] = Field(default_factory=dict)  # wall time per phase

    @property
    def accepted(self) -> bool:
        return self.status == "accepted"
