"""Which outputs count as right."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.judge.compare import Allowance, compare

PAPER = Allowance(1e-2, 1e-2)


def test_an_equal_output_is_right_and_every_element_is_counted() -> None:
    x = torch.randn(1000, 77)
    found = compare(x.clone(), x, PAPER)
    assert (found.worst, found.max_abs, found.elements) == (0.0, 0.0, 77_000)


def test_zeros_do_not_pass_for_a_wide_softmax() -> None:
    """atol alone would let them: every value is below it."""
    ref = torch.softmax(torch.randn(4, 16384), dim=-1)
    assert float(ref.max()) < 1e-2
    assert compare(torch.zeros_like(ref), ref, PAPER).worst > 1


def test_one_wrong_element_among_millions_is_found_and_named() -> None:
    ref = torch.randn(1 << 21)
    out = ref.clone()
    out[1_234_567] += 1.0
    found = compare(out, ref, PAPER)
    assert found.worst > 1 and "[1234567]" in found.detail
    assert found.max_abs == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_wrong_where_the_reference_is(bad: float) -> None:
    ref = torch.randn(100)
    out = ref.clone()
    out[7] = bad
    assert compare(out, ref, PAPER).worst == math.inf


def test_where_the_reference_is_not_finite_the_same_or_what_eager_says_is_right() -> None:
    ref = torch.tensor([math.inf, math.nan, -math.inf, 1.0])
    assert compare(ref.clone(), ref, PAPER).worst == 0
    assert compare(torch.tensor([math.inf, 0.0, -math.inf, 1.0]), ref, PAPER).worst == math.inf
    eager = torch.tensor([3e38, math.nan, -math.inf, 1.0])
    assert compare(eager.clone(), ref, PAPER, eager).worst == 0


def test_integers_are_exact_except_where_eager_itself_differs() -> None:
    ref, eager = torch.tensor([3, 5, 9]), torch.tensor([3, 6, 9])
    assert compare(torch.tensor([3, 7, 9]), ref, PAPER, eager).worst == 0
    assert compare(torch.tensor([4, 5, 9]), ref, PAPER, eager).worst == math.inf
    assert compare(torch.tensor([3, 6, 9]), ref, PAPER).worst == math.inf


def test_never_tighter_than_the_floor_or_sixteen_ulp() -> None:
    ref = torch.tensor([0.0, 0.0])
    assert compare(torch.tensor([1e-9, 0.0]), ref, PAPER).worst == math.inf
    assert compare(torch.tensor([1e-9, 0.0]), ref, Allowance(1e-2, 1e-2, floor=1e-8)).worst <= 1
    half = torch.full((8,), 1.0, dtype=torch.bfloat16)
    assert compare(half * 1.0625, half, Allowance(0.0, 1e-4)).worst <= 1


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50), st.floats(0, 0.009))
def test_errors_within_rtol_pass_and_twice_the_allowance_fails(values: list[float], share: float) -> None:
    ref = torch.tensor(values, dtype=torch.float64)
    assert compare(ref * (1 + share), ref, PAPER).worst <= 1
    rms = float(ref.square().mean().sqrt())
    allowed = 1e-2 * ref.abs() + 1e-2 * min(1.0, rms)
    if rms > 1e-9:
        assert compare(ref + 2 * allowed, ref, PAPER).worst > 1
