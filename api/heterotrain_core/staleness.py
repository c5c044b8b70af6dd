"""What is done about stale gradients: weights, rates, compensation, and the bound of stability. Pure (algorithms.md E).

Staleness tau counts versions: the version a gradient is applied to less the version it was computed on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from heterotrain_core.cursor import merge_ranges
from heterotrain_core.synchronization import NO_DISCOUNT, Discount, Normalization
from heterotrain_core.types import Commit, Contribution, Grant


def make_commit(
    version: int,
    arrived: Iterable[Grant],
    refused: Collection[int],
    *,
    batch: int,
    discount: Discount = NO_DISCOUNT,
    normalization: Normalization = Normalization.TARGET,
    compensation: float = 0.0,
) -> Commit:
    """The commit of `version` out of the gradients of `arrived`, in worker order (D7.3, C3).

    With ``omega = discount(tau) x samples / batch`` a contribution's weight is its part of the sum of omegas, and the
    scale is that sum (`TARGET`) or 1 (`ARRIVED`). Gradients of `refused` workers are left out, their samples used up.
    `batch`, in samples, is at least 1.
    """
    grants = sorted(arrived, key=_worker)
    factors: dict[int, float] = {}
    counted: list[tuple[Grant, float]] = []
    for grant in grants:
        if grant.worker not in refused:
            tau = version - grant.version
            factor = factors.get(tau)
            if factor is None:
                factor = factors[tau] = discount.factor(tau)
            counted.append((grant, factor * grant.samples))
    total = sum(weight for _, weight in counted)
    denominator = batch if normalization is Normalization.TARGET else total
    return Commit(
        version=version,
        contributions=tuple([Contribution(g.worker, g.iteration, weight / total) for g, weight in counted]),
        scale=total / denominator if counted else 0.0,
        ranges=merge_ranges(r for g in grants for r in g.ranges),
        compensation=compensation,
    )


def staleness_aware_rate(rate: float, tau: int) -> float:
    """``rate / tau`` from tau 1 on, `rate` at 0 (Zhang et al. 2016, arXiv 1511.05950)."""
    return rate / max(1, tau)


def compensate(gradient: float, now: float, base: float, strength: float) -> float:
    """Delay-compensated gradient of one parameter, ``g + strength x g x g x (now - base)`` (DC-ASGD, arXiv 1609.08326).

    `now` is the parameter's present value, `base` the one that the gradient was computed on: a server keeps a copy of
    the parameters for every worker. ``g x g`` stands for the diagonal of the Hessian.
    """
    return gradient + strength * gradient * gradient * (now - base)


def compensate_all(
    gradient: Sequence[float], now: Sequence[float], base: Sequence[float], strength: float
) -> list[float]:
    """`compensate` elementwise; raises `ValueError` if the lengths differ."""
    return [compensate(g, w, b, strength) for g, w, b in zip(gradient, now, base, strict=True)]


def adaptive_strength(strength: float, mean_square: float, epsilon: float = 1e-7) -> float:
    """The strength of DC-ASGD's adaptive form: ``strength / sqrt(mean square of the gradient + epsilon)``."""
    return strength / math.sqrt(mean_square + epsilon)


def largest_stable_step(tau: int, momentum: float = 0.0) -> float:
    """Largest ``rate x curvature`` with which descent on a quadratic, `tau` versions stale, does not grow.

    The recurrence is ``w' = w + momentum x (w - w_previous) - rate x curvature x w[tau ago]``. Without momentum the
    answer is ``2 sin(pi / (2 (2 tau + 1)))``. In general a root of the characteristic polynomial leaves the unit circle
    at the angle t where ``(tau - 1/2) t + arg(exp(it) - momentum) = pi / 2``, which is found by bisection. It is the
    worst direction of a noiseless quadratic; training with noise bears more.
    """
    if tau < 0:
        raise ValueError(f"tau must be at least 0, not {tau}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be at least 0 and below 1, not {momentum}")
    low, high = 0.0, math.pi
    while low < (middle := (low + high) / 2) < high:
        turn = (tau - 0.5) * middle + math.atan2(math.sin(middle), math.cos(middle) - momentum)
        low, high = (middle, high) if turn < math.pi / 2 else (low, middle)
    distance = math.sqrt(1 - 2 * momentum * math.cos(high) + momentum**2)
    return 2 * math.sin(high / 2) * distance


def momentum_advice(tau: int, momentum: float) -> str | None:
    """A warning in words if momentum meets staleness; `None` if there is no reason for one."""
    if tau < 1 or momentum <= 0:
        return None
    fresh, stale = largest_stable_step(0, momentum), largest_stable_step(tau, momentum)
    plain = largest_stable_step(tau)
    return (
        f"gradients are up to {tau} versions stale and momentum is {momentum:g}: in the worst direction the largest "
        f"stable learning rate x curvature falls from {fresh:.4g} to {stale:.4g} ({fresh / stale:.0f} times less; "
        f"{plain:.4g} without momentum): lower the momentum, the learning rate or the staleness bound"
    )


def expected_round_seconds(workers: int, needed: int, mean_seconds: float = 1.0) -> float:
    """Expected time until `needed` of `workers` have finished, for independent exponential step times (D6)."""
    if not 1 <= needed <= workers:
        raise ValueError(f"needed must be between 1 and {workers} workers, not {needed}")
    return mean_seconds * sum(1 / k for k in range(workers - needed + 1, workers + 1))


def _worker(grant: Grant) -> int:
    return grant.worker
