"""What is computed on a shard's arenas: weighted sums, norms, the finiteness check. Pure, deterministic, on flat views.

The result depends on the order in which gradients are given, never on when or in which parts they arrived.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from heterotrain.tensors import region_view
from heterotrain_core.layout import Region, TensorKind

_AVERAGED = (TensorKind.PARAMETER, TensorKind.FLOAT_BUFFER)
_HALF = (torch.float16, torch.bfloat16)
_CHUNK = 1 << 20
"""Elements that are converted to a wider type at once: bounds the extra memory to a few MiB."""


def aggregate(
    out: torch.Tensor, regions: Sequence[Region], gradients: Sequence[torch.Tensor], weights: Sequence[float]
) -> None:
    """Combine whole gradients (arenas) into the arena `out`, region by region, in the order given.

    Parameters and float buffers: sum of weight x value; 16-bit types are summed in float32 and rounded once. Integer
    and boolean buffers: the largest value. There must be at least one gradient.
    """
    for region in regions:
        target = region_view(out, region)
        parts = [region_view(g, region) for g in gradients]
        if region.kind is TensorKind.INTEGER_BUFFER:
            target.copy_(parts[0])
            for part in parts[1:]:
                torch.maximum(target, part, out=target)
        elif region.kind in _AVERAGED:
            if target.dtype in _HALF:
                _weighted_sum_of_halves(target, parts, weights)
            else:
                torch.mul(parts[0], weights[0], out=target)
                for part, weight in zip(parts[1:], weights[1:], strict=True):
                    target.add_(part, alpha=weight)


def _weighted_sum_of_halves(target: torch.Tensor, parts: Sequence[torch.Tensor], weights: Sequence[float]) -> None:
    for start, chunk in _chunks(target):
        window = slice(start, start + chunk.numel())
        total = parts[0][window].float().mul_(weights[0])
        for part, weight in zip(parts[1:], weights[1:], strict=True):
            total.add_(part[window].float(), alpha=weight)
        chunk.copy_(total)


def compensate(
    out: torch.Tensor,
    regions: Sequence[Region],
    gradient: torch.Tensor,
    *,
    now: torch.Tensor,
    base: torch.Tensor,
    strength: float,
) -> None:
    """Add ``strength x g x g x (now - base)`` to the parameter regions of the aggregate `out` (DC-ASGD, E).

    `base` holds the values that `gradient` was computed on, `now` the present ones; ``g x g`` stands for the diagonal
    of the Hessian (Zheng et al., arXiv 1609.08326). `strength` is multiplied by the gradient's weight already. 16-bit
    types are computed in float32.
    """
    for region in regions:
        if region.kind is TensorKind.PARAMETER:
            target, g = region_view(out, region), region_view(gradient, region)
            newer, older = region_view(now, region), region_view(base, region)
            wide = torch.float32 if target.dtype in _HALF else target.dtype
            for start, chunk in _chunks(target):
                window = slice(start, start + chunk.numel())
                moved = newer[window].to(wide) - older[window].to(wide)
                chunk.copy_(chunk.to(wide) + moved.mul_(g[window].to(wide).square()).mul_(strength))


def scale_parameters(arena: torch.Tensor, regions: Sequence[Region], coefficient: float) -> None:
    """Multiply the parameter regions of an aggregate in place (norm clipping)."""
    for region in regions:
        if region.kind is TensorKind.PARAMETER:
            region_view(arena, region).mul_(coefficient)


def update_buffers(
    values: torch.Tensor, total: torch.Tensor, regions: Sequence[Region], scale: float, *, stale: bool = False
) -> None:
    """Bring an aggregate's buffers into the present values.

    Float buffers: ``value += scale x sum(weight x difference)``, so that each sample moves them alike, whatever share
    of the round it came in and whether all of the round's samples counted. Integer and boolean buffers: the largest
    value that a contribution pushed replaces the present one, even if it is smaller: contributions of one round start
    from the same version, so a counter advances, and a pointer wraps, exactly as in one process. With `stale`
    contributions among them a smaller value changes nothing: a counter never goes back.
    """
    for region in regions:
        if region.kind is TensorKind.FLOAT_BUFFER:
            region_view(values, region).add_(region_view(total, region), alpha=scale)
        elif region.kind is TensorKind.INTEGER_BUFFER:
            present, pushed = region_view(values, region), region_view(total, region)
            present.copy_(torch.maximum(present, pushed) if stale else pushed)


def norm_part(views: Sequence[torch.Tensor], norm_type: float) -> float:
    """Sum of ``|x| ** norm_type`` over all views, in float64; the largest ``|x|`` for an infinite `norm_type`.

    Parts of several shards are added (or the largest taken); the norm is the sum's root.
    """
    chunks = (chunk for view in views for _, chunk in _chunks(view))
    if math.isinf(norm_type):
        return max((chunk.abs().max().item() for chunk in chunks), default=0.0)
    return math.fsum(chunk.abs().double().pow_(norm_type).sum().item() for chunk in chunks)


def not_finite(arena: torch.Tensor, regions: Sequence[Region]) -> int | None:
    """Byte offset of the first NaN or Inf in a gradient's parameters and float buffers; `None` if all are finite."""
    for region in regions:
        if region.kind not in _AVERAGED:
            continue
        for start, chunk in _chunks(region_view(arena, region)):
            # A sum with an addend that is not finite is not finite. The converse does not hold (finite numbers may sum
            # to more than the type holds), so only then each element is looked at.
            if math.isfinite(chunk.sum(dtype=torch.promote_types(chunk.dtype, torch.float32)).item()):
                continue
            found = torch.isfinite(chunk).logical_not_().nonzero()
            if len(found):
                return region.offset + (start + int(found[0].item())) * chunk.element_size()
    return None


def _chunks(view: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Parts of a flat view with their first element's index; none of an empty one."""
    for start in range(0, view.numel(), _CHUNK):
        yield start, view[start : start + _CHUNK]
