"""The set-ups of the lab: how unequal the workers are, and what happens to them. Source: algorithms.md, section 4.3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

TOTAL_SPEED: Final = 1000.0
"""Samples/s of all workers together at level 2: the real computing of the lab's small network is then a few percent of
the paced time."""
QUOTA_CORES: Final = 1.5
"""Cores of all workers together at level 3; what is left of two cores is for shards, coordinator and kernel."""


@dataclass(frozen=True, slots=True)
class StepChange:
    """One worker computes `factor` times as long from its step `first` (from 0) up to `last`, which is fast again."""

    worker: int
    factor: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Bursts:
    """Each step of each worker computes `factor` times as long with this probability."""

    probability: float
    factor: int

    @property
    def mean_factor(self) -> float:
        """Of many steps."""
        return 1.0 + self.probability * (self.factor - 1)


@dataclass(frozen=True, slots=True)
class Churn:
    """A worker is killed at the beginning of its step `killed_at` (from 0); once it runs again, it joins when worker 0
    has done `joins_at` steps.
    """

    worker: int
    killed_at: int
    joins_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """Workers and what happens to them. Steps are counted by worker."""

    name: str
    summary: str
    ratios: tuple[float, ...]
    """Relative speeds, a worker each."""
    level_3_quotas: tuple[float, ...] = ()
    """Cores, a worker each; empty: `QUOTA_CORES` in the ratio of the speeds."""
    link_seconds: tuple[float, ...] = ()
    """What pull and push take in every step, a worker each, whatever its share; empty: what they really take."""
    step_change: StepChange | None = None
    bursts: Bursts | None = None
    noise: float = 0.0
    """Standard deviation of single steps, relative; the mean is the set-up's. Level 2 only."""
    churn: Churn | None = None

    @property
    def speeds(self) -> tuple[float, ...]:
        """Level 2: samples/s."""
        return tuple(TOTAL_SPEED * ratio / sum(self.ratios) for ratio in self.ratios)

    @property
    def quotas(self) -> tuple[float, ...]:
        """Level 3: cores."""
        return self.level_3_quotas or tuple(QUOTA_CORES * ratio / sum(self.ratios) for ratio in self.ratios)

    @property
    def undisturbed(self) -> SetUp:
        """The same workers with nothing that happens to them, and without links."""
        return replace(self, link_seconds=(), step_change=None, bursts=None, noise=0.0, churn=None)

    def link(self, worker: int) -> float:
        """Seconds that the worker's emulated link adds to a step."""
        return self.link_seconds[worker] if self.link_seconds else 0.0


def _by_name(*setups: SetUp) -> Mapping[str, SetUp]:
    return MappingProxyType({setup.name: setup for setup in setups})


SETUPS: Final = _by_name(
    SetUp(name="equal", summary="four equal workers: every mode should come to the same", ratios=(1, 1, 1, 1)),
    SetUp(name="het-2", summary="fastest to slowest 2 : 1 (12:12:8:16)", ratios=(12, 12, 8, 16)),
    SetUp(name="het-4", summary="fastest to slowest 4 : 1 (9:9:6:24)", ratios=(9, 9, 6, 24)),
    SetUp(name="het-8", summary="fastest to slowest 8 : 1 (6:6:4:32)", ratios=(6, 6, 4, 32)),
    SetUp(name="straggler-4", summary="one of four workers at a quarter of the speed", ratios=(1, 1, 1, 0.25)),
    SetUp(
        name="ladder",
        summary="4:3:2:1 paced; 0.8, 0.4, 0.2 and 0.1 of a core by quota",
        ratios=(4, 3, 2, 1),
        level_3_quotas=(0.8, 0.4, 0.2, 0.1),
    ),
    SetUp(
        name="transient",
        summary="equal workers; each step four times as long with a probability of 5 %",
        ratios=(1, 1, 1, 1),
        bursts=Bursts(0.05, 4),
    ),
    SetUp(
        name="noise",
        summary="4:3:2:1 and constant, single steps vary by 5 %",
        ratios=(4, 3, 2, 1),
        noise=0.05,
    ),
    SetUp(
        name="step-change",
        summary="equal workers; the first at half speed from its step 50 up to its step 150",
        ratios=(1, 1, 1, 1),
        step_change=StepChange(0, 2, 50, 150),
    ),
    SetUp(
        name="slow-link",
        summary="equal workers; pull and push take 20 ms a step, the last one's eight times as long",
        ratios=(1, 1, 1, 1),
        link_seconds=(0.02, 0.02, 0.02, 0.16),
    ),
    SetUp(
        name="churn",
        summary="equal workers; the last one is killed at its step 30 and joins again at step 60",
        ratios=(1, 1, 1, 1),
        churn=Churn(3, 30, 60),
    ),
)
