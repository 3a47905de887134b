"""Is an output right? Elementwise, on the device, in chunks, with the allowance of each element spelled out."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_CHUNK = {"cpu": 1 << 17, "cuda": 1 << 26}  # elements: temporaries stay in the cache, or within a few hundred MB


@dataclass(frozen=True)
class Allowance:
    """|error| ≤ rtol·|ref| + atol·min(1, rms(ref)), never tighter than `floor` nor than 16 ulp of the output."""

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

    Where `ref` is not finite, `out` must be the same, or the same as `eager`. Integers and booleans must be equal
    wherever eager agrees with the oracle (`eager` given), else everywhere.
    """
    elements = out.numel()
    if elements == 0:
        return NOTHING
    exact = not (out.is_floating_point() or out.is_complex())
    if out.is_complex():
        out, ref = torch.view_as_real(out), torch.view_as_real(ref)
        eager = None if eager is None else torch.view_as_real(eager)
    step = _CHUNK[out.device.type]
    flat_out, flat_ref = out.reshape(-1), ref.reshape(-1)
    flat_eager = None if eager is None else eager.reshape(-1)
    scale = 0.0 if exact else allowance.atol * min(1.0, _rms(flat_ref, step))
    rtol = 0.0 if exact else max(allowance.rtol, 8 * torch.finfo(out.dtype).eps)
    worst, max_abs, detail = 0.0, 0.0, ""
    for start in range(0, flat_out.numel(), step):
        part = slice(start, start + step)
        e = None if flat_eager is None else flat_eager[part]
        if exact:
            ratio, error = _exactly(flat_out[part], flat_ref[part], e)
        else:
            ratio, error = _closely(flat_out[part], flat_ref[part], e, rtol, scale, allowance.floor)
        top = float(ratio.max())
        max_abs = max(max_abs, float(error.max()))
        if top > worst:
            worst = top
            if worst > 1:
                detail = _explain(flat_out, flat_ref, start + int(ratio.argmax()), tuple(out.shape))
    return Agreement(worst, max_abs, elements, detail)


Pair = tuple[torch.Tensor, torch.Tensor]  # (error over what is allowed, absolute error), elementwise


def _closely(
    out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor | None, rtol: float, scale: float, floor: float
) -> Pair:
    wide = torch.float64 if out.dtype == torch.float64 else torch.float32
    out, ref = out.to(wide), ref.to(wide)
    allowed = ref.abs().mul_(rtol).add_(scale).clamp_min_(floor)
    error = (out - ref).abs_()
    ratio = error / allowed
    if math.isfinite(float(ratio.max())):  # the usual case; a NaN would have come through
        return ratio, error
    ratio.masked_fill_(error == 0, 0.0)
    finite = ref.isfinite()
    same = (out == ref) | (out.isnan() & ref.isnan())
    if eager is not None:
        eager = eager.to(wide)
        same |= (out == eager) | (out.isnan() & eager.isnan())
        finite &= eager.isfinite()
    ratio = torch.where(finite, ratio, torch.where(same, 0.0, math.inf).to(wide)).nan_to_num_(math.inf, math.inf)
    error = torch.where(finite, error, torch.zeros_like(error)).nan_to_num_(math.inf, math.inf)
    return ratio, error


def _exactly(out: torch.Tensor, ref: torch.Tensor, eager: torch.Tensor | None) -> Pair:
    wrong = out != ref
    if eager is not None:
        wrong &= eager == ref
    error = (out.to(torch.float64) - ref.to(torch.float64)).abs_()
    return torch.zeros_like(error).masked_fill_(wrong, math.inf), error.masked_fill_(~wrong, 0.0)


def _rms(ref: torch.Tensor, step: int) -> float:
    total, count = 0.0, 0
    for start in range(0, ref.numel(), step):
        part = ref[start : start + step]
        norm = float(torch.linalg.vector_norm(part, dtype=torch.float64))
        if not math.isfinite(norm):
            part = part[part.isfinite()]
            norm = float(torch.linalg.vector_norm(part, dtype=torch.float64))
        total, count = total + norm * norm, count + part.numel()
    return math.sqrt(total / count) if count else 0.0


def _explain(out: torch.Tensor, ref: torch.Tensor, index: int, shape: tuple[int, ...]) -> str:
    position = []
    rest = index
    for size in reversed(shape):
        position.append(rest % size)
        rest //= size
    got, want = out[index].item(), ref[index].item()
    return f"at {list(reversed(position))}: got {got:.6g}, expected {want:.6g}"
