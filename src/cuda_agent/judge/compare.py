"""Is an output right? Elementwise, on the device, in chunks, with the allowance of each element spelled out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_CHUNK = 1 << 25  # elements; bounds temporaries to a few hundred MB


@dataclass(frozen=True)
class Allowance:
    """|error| ≤ rtol·|ref| + atol·min(1, rms(ref)), never tighter than `floor` nor than 16 ulp of the output's dtype."""

    atol: float
    rtol: float
    floor: float = 0.0  # absolute: 8 times eager's own largest error


@dataclass(frozen=True)
class Agreement:
    """worst: largest error as a multiple of what was allowed (≤ 1 passes). max_abs: largest absolute error."""

    worst: float
    max_abs: float
    elements: int
    detail: str = ""  # where and what, if worst > 1

    def merged(self, other: Agreement) -> Agreement:
        return Agreement(
            max(self.worst, other.worst),
            max(self.max_abs, other.max_abs),
            self.elements + other.elements,
            self.detail or other.detail,
        )


NOTHING = Agreement(0.0, 0.0, 0)


def compare(out: torch.Tensor, ref: torch.Tensor, allowance: Allowance, eager: torch.Tensor | None = None) -> Agreement:
    """Compare `out` with `ref` of the same shape.

    Where `ref` is not finite, `out` must be the same, or the same as `eager`. Integers and booleans must be equal wherever eager
    agrees with the oracle (`eager` given), else everywhere.
    """
    elements = out.numel()
    if elements == 0:
        return NOTHING
    exact = not (out.is_floating_point() or out.is_complex())
    if out.is_complex():
        out, ref = torch.view_as_real(out), torch.view_as_real(ref)
        eager = None if eager is None else torch.view_as_real(eager)
    scale = 0.0 if exact else allowance.atol * min(1.0, _rms(ref))
    rtol = max(allowance.rtol, 8 * torch.finfo(out.dtype).eps) if not exact else 0.0
    flat_out, flat_ref = out.reshape(-1), ref.reshape(-1)
    flat_eager = None if eager is None else eager.reshape(-1)
    worst, max_abs, detail = 0.0, 0.0, ""
    for start in range(0, flat_out.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        o, r = flat_out[part], flat_ref[part]
        e = None if flat_eager is None else flat_eager[part]
        if exact:
            wrong = o != r
            if e is not None:
                wrong &= e == r
            ratio = wrong.to(torch.float32) * math.inf
            ratio = torch.where(wrong, ratio, torch.zeros_like(ratio))
            error = (o.to(torch.float64) - r.to(torch.float64)).abs().to(torch.float32)
            error = torch.where(wrong, error, torch.zeros_like(error))
        else:
            wide = torch.float64 if o.dtype == torch.float64 else torch.float32
            o, r = o.to(wide), r.to(wide)
            allowed = r.abs().mul_(rtol).add_(scale).clamp_min_(allowance.floor)
            error = (o - r).abs_()
            ratio = error / allowed
            ratio.masked_fill_(error == 0, 0.0)
            finite = r.isfinite()
            same = (o == r) | (o.isnan() & r.isnan())
            if e is not None:
                e = e.to(wide)
                same |= (o == e) | (o.isnan() & e.isnan())
                finite &= e.isfinite()
            ratio = torch.where(finite, ratio, torch.where(same, 0.0, math.inf))
            ratio.nan_to_num_(nan=math.inf, posinf=math.inf)
            error = torch.where(finite, error, torch.zeros_like(error)).nan_to_num_(nan=math.inf, posinf=math.inf)
        top, where = ratio.max(dim=0)
        peak = float(error.max())
        max_abs = max(max_abs, peak)
        if float(top) > worst:
            worst = float(top)
            if worst > 1:
                index = start + int(where)
                detail = _explain(flat_out, flat_ref, index, tuple(out.shape))
    return Agreement(worst, max_abs, elements, detail)


def largest_error(out: torch.Tensor, ref: torch.Tensor) -> float:
    """max |out − ref| over elements where both are finite; 0 for integers."""
    if out.numel() == 0 or not out.is_floating_point():
        return 0.0
    peak = 0.0
    flat_out, flat_ref = out.reshape(-1), ref.reshape(-1)
    for start in range(0, flat_out.numel(), _CHUNK):
        error = (flat_out[start : start + _CHUNK].double() - flat_ref[start : start + _CHUNK].double()).abs_()
        peak = max(peak, float(error.nan_to_num_(nan=0.0, posinf=0.0).max()))
    return peak


def _rms(ref: torch.Tensor) -> float:
    total, count = 0.0, 0
    flat = ref.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK]
        finite = part.isfinite()
        total += float(torch.where(finite, part, torch.zeros_like(part)).to(torch.float64).square().sum())
        count += int(finite.sum())
    return math.sqrt(total / count) if count else 0.0


def _explain(out: torch.Tensor, ref: torch.Tensor, index: int, shape: tuple[int, ...]) -> str:
    position = []
    rest = index
    for size in reversed(shape):
        position.append(rest % size)
        rest //= size
    got, want = out[index].item(), ref[index].item()
    return f"at {list(reversed(position))}: got {got:.6g}, expected {want:.6g}"
