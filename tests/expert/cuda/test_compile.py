"""Every kind of kernel compiles for Hopper, and the default schedules keep everything in registers."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from cuda_agent.expert.cuda import CudaEmitter
from cuda_agent.expert.ir import OPS
from tests.expert.cuda import samples
from tests.expert.cuda.building import Built, build, build_all

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

SHAPES = {
    "pointwise": samples.pointwise(4096, 4096),
    "pointwise_bfloat16": samples.pointwise(4096, 4096, "bfloat16"),
    "pointwise_any_size": samples.pointwise(37, 1003),
    "pointwise_large": samples.chain(4096 * 393216),
    "softmax_in_warps": samples.softmax(4096, 1001),
    "softmax_in_blocks": samples.softmax(4096, 4096),
    "softmax_in_clusters": samples.softmax(4096, 393216),
    "layer_norm": samples.layer_norm(4096, 4096),
    "group_norm_in_a_grid": samples.group_norm(112, 64, 8, 512 * 512),
    "rows_at_any_alignment": samples.l2_norm(32768, 65535),
    "frobenius_norm": samples.l2_norm(1, 112 * 64 * 512 * 512),
    "columns_held": samples.rms_columns(112, 64, 512 * 512),
    "columns": samples.reduce("max", 128, 4096, 4095),
    "columns_argmax": samples.reduce("argmax", 128, 4096, 4096),
    "loss": samples.mse(32768 * 32768),
    "cross_entropy": samples.cross_entropy(32768, 4096),
    "mask": samples.causal_mask(512, 1024),
}

FLOAT_ONLY = tuple(fn for fn in OPS if fn not in ("and", "or", "xor", "not", "shl", "shr"))
INTEGER = ("add", "sub", "mul", "neg", "abs", "sign", "square", "min", "max", "floordiv", "truncdiv", "mod", "fmod",
           "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not", "shl", "shr", "where", "cast")  # fmt: skip
NUMBERS = ("sum", "prod", "max", "min", "argmax", "argmin")
OTHERS = {
    "float32": samples.operators("float32", FLOAT_ONLY),
    "float64": samples.operators("float64", FLOAT_ONLY),
    "int64": samples.operators("int64", INTEGER),
    "uint8": samples.operators("uint8", INTEGER),
    "bool": samples.operators("bool", ("lt", "eq", "ne", "and", "or", "xor", "not", "where", "cast", "min", "max")),
    "float32_rows": samples.reductions("float32", NUMBERS),
    "float64_columns": samples.reductions("float64", NUMBERS, columns=True),
    "int64_rows": samples.reductions("int64", NUMBERS),
    "bool_columns": samples.reductions("bool", ("any", "all", "max", "min"), columns=True),
    **{case: samples.degenerate(case) for case in ("scalar", "nothing_to_reduce", "row_store_only", "strided")},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Built | AssertionError]:
    return build_all(tmp_path_factory.mktemp("sm_90"), ((name, s.plan, {}) for name, s in {**SHAPES, **OTHERS}.items()))


@pytest.mark.parametrize("name", SHAPES)
def test_compiles_without_spills(name: str, built: Mapping[str, Built | AssertionError]) -> None:
    result = built[name]
    if isinstance(result, AssertionError):
        raise result
    assert result.report.count("Used") >= 1
    assert result.spills == []


@pytest.mark.parametrize("name", OTHERS)
def test_every_operator_dtype_and_nest_compiles(name: str, built: Mapping[str, Built | AssertionError]) -> None:
    result = built[name]
    if isinstance(result, AssertionError):
        raise result


def test_values_outside_the_limits_are_clamped(tmp_path: Path) -> None:
    """The search may combine any values: too many blocks, too large a team or too much shared memory still compile."""
    extreme = {"THREADS": 1024, "BLOCKS_PER_SM": 8, "TEAM": 64, "SHARED_ITEMS": 4096, "REG_ITEMS": 16}
    build(tmp_path, samples.softmax(64, 393216).plan, extreme)


def test_source_does_not_depend_on_the_schedule() -> None:
    plan = samples.softmax(4096, 4096).plan
    default = CudaEmitter().emit(plan, {})
    changed = CudaEmitter().emit(plan, {"softmax_rows": {"UNROLL": 1}})
    assert {p for p in default if default[p] != changed[p]} == {"kernels/schedule.json"}


@pytest.mark.parametrize("name", SHAPES)
def test_defaults_are_among_the_choices(name: str) -> None:
    for space in CudaEmitter().space(SHAPES[name].plan).values():
        for macro, values in space.choices.items():
            assert space.default[macro] in values, macro
            assert len(values) == len(set(values)) > 1
