"""How many samples a worker can hold at once, from measured peaks of memory (algorithms.md C4). Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

from heterotrain_core.adaptation.estimate import is_near
from heterotrain_core.info.stats import theil_sen

COLD_STEPS: Final = 2
"""First steps of a worker: gradients and caches are allocated in them."""
TRUSTED: Final = 3
"""Steps with a size before its peak counts."""
KEPT: Final = 8
SIZES: Final = 16


class MemoryUse(NamedTuple):
    """What one step took, in bytes."""

    samples: int = 0
    """Computed at once; 0: nothing is known of this step's memory."""
    peak: int = 0
    limit: int = 0
    """What the worker's machine or container holds at most."""


NO_MEMORY_USE: Final = MemoryUse()


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """Peak memory of a worker for a micro-batch, ``m0 + m1 b``, in bytes."""

    fixed: float
    per_sample: float

    def ceiling(self, limit: float, grain: int = 1, part: float = 0.9) -> int:
        """Largest multiple of `grain` that keeps `part` of `limit` (C-10); 0 if nothing fits."""
        samples = math.floor((part * limit - self.fixed) / self.per_sample) if self.per_sample > 0 else 0
        return max(0, samples // grain * grain)


def fit_memory(peaks: Sequence[tuple[int, float]]) -> MemoryModel | None:
    """The model from (micro-batch, peak bytes); `None` unless two sizes differ and more samples take more memory."""
    fitted = theil_sen([(float(size), peak) for size, peak in peaks])
    if fitted is None or fitted.slope <= 0:
        return None
    return MemoryModel(max(0.0, fitted.intercept), fitted.slope)


def are_apart(sizes: Collection[int]) -> bool:
    """Whether there are two among these sizes that are far enough apart to tell a model."""
    return bool(sizes) and not is_near(max(sizes), min(sizes))


@dataclass
class Peaks:
    """One worker's measured peaks, by size; the newest of the newest sizes."""

    steps: int = 0
    by_size: dict[int, deque[int]] = field(default_factory=dict)

    def add(self, use: MemoryUse) -> int | None:
        """Take a step in; returns how many samples it can hold at once, `None` if that is not known or no limit.

        Never fewer than it has held: near its limit a worker may be whatever it computes.
        """
        if use.samples < 1 or use.peak <= 0 or use.limit <= 0:
            return None
        self.steps += 1
        if self.steps <= COLD_STEPS:
            return None
        peaks = self.by_size.pop(use.samples, None) or deque(maxlen=KEPT)
        peaks.append(use.peak)
        self.by_size[use.samples] = peaks
        while len(self.by_size) > SIZES:
            del self.by_size[next(iter(self.by_size))]
        told = {size: median(found) for size, found in self.by_size.items() if len(found) >= TRUSTED}
        if not are_apart(told):
            return None
        model = fit_memory(sorted(told.items()))
        return None if model is None else max(*told, model.ceiling(use.limit))
