"""Values that the synchronisation policies, the coordinator and the simulator exchange. Immutable; no I/O.

Glossary: a *version* is the parameters' state after that many commits; *round* r leads from version r to r + 1; a
*share* is a worker's samples in one iteration; a *plan* holds all shares, with a generation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from heterotrain_core.synchronization import Synchronization


@dataclass(frozen=True, slots=True, order=True)
class SampleRange:
    """Positions ``start <= p < stop`` in the permutation of one epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of a plan, in samples."""

    samples: int
    micro_batch: int | None = None
    """Largest number of samples computed at once; `None`: the whole share."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Shares of all workers; under BSP they sum to the global batch."""

    generation: int
    shares: Mapping[str, Share]
    """By worker name."""
    reason: str = ""
    derived: bool = False
    """Made by the coordinator itself after it lost a worker, not by the operator."""
    synchronization: Synchronization | None = None
    """Mode and bounds from this plan on; `None`: they stay as they are."""

    @property
    def samples(self) -> dict[str, int]:
        """Each worker's share in samples."""
        return {name: share.samples for name, share in self.shares.items()}


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a worker's share in samples, both inclusive."""

    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission and work for an iteration of one worker. May be given before `version` exists: the pull then waits."""

    worker: int
    iteration: int
    """Names the worker's iteration: equal to `version`, so that it rises and never repeats, whatever the mode."""
    version: int
    """The exact version to pull."""
    ranges: tuple[SampleRange, ...]
    micro_batch: int | None
    plan_generation: int

    @property
    def samples(self) -> int:
        """Samples of this grant."""
        total = 0
        for r in self.ranges:
            total += r.stop - r.start
        return total


@dataclass(frozen=True, slots=True)
class Contribution:
    """A gradient in a commit. `weight` is its part of the weighted mean; the weights of a commit sum to 1."""

    worker: int
    iteration: int
    weight: float


@dataclass(frozen=True, slots=True)
class Commit:
    """Make version ``version + 1`` out of `version`: sum `contributions` in worker order, step with rate x `scale`.

    Without contributions the parameters stay as they are and only the version moves.
    """

    version: int
    contributions: tuple[Contribution, ...]
    scale: float
    ranges: tuple[SampleRange, ...] = field(default=())
    """Samples that this commit uses up (those of refused gradients too)."""
    dropped: tuple[tuple[int, int], ...] = ()
    """(worker, iteration) of gradients that came too late since the last commit: in no commit, shards discard them."""
    compensation: float = 0.0
    """Strength of the delay compensation of stale contributions; 0: none."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Every sample of `epoch` is committed; the worker pulls `version`, its loader ends."""

    worker: int
    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class TrainingEnd:
    """No more work: the worker pulls `version`, its loader and its epochs end."""

    worker: int
    version: int
    reason: str


Decision: TypeAlias = Grant | Commit | EpochEnd | TrainingEnd


class SampleSource(Protocol):
    """The data cursor as a policy sees it (`heterotrain_core.cursor.DataCursor`). Pure, in memory."""

    @property
    def epoch(self) -> int:
        """Epoch that `take` serves."""
        ...

    @property
    def remaining(self) -> int:
        """Samples of the epoch that nobody holds and no commit has used."""
        ...

    @property
    def outstanding(self) -> int:
        """Samples of the epoch that were taken and are neither committed nor given back."""
        ...

    @property
    def committed(self) -> int:
        """Samples of the epoch that commits have used."""
        ...

    def take(self, count: int) -> tuple[SampleRange, ...]:
        """Hand out the next `count` samples (given-back ones first); raises `ValueError` if fewer remain."""
        ...

    def give_back(self, ranges: Sequence[SampleRange]) -> None:
        """Return samples of a lost worker, to be handed out again."""
        ...

    def commit(self, ranges: Sequence[SampleRange]) -> None:
        """Mark samples as used; raises `ValueError` if one is not outstanding."""
        ...

    def next_epoch(self) -> bool:
        """Start the next epoch; False if the last one is over."""
        ...


class SyncPolicy(Protocol):
    """Who may start which iteration on which version, and what a commit consists of (design: one pure state machine).

    Every method returns decisions in the order in which they take effect. `now` is in seconds, monotonic.
    """

    @property
    def version(self) -> int:
        """Version after the last commit decided."""
        ...

    @property
    def next_timer(self) -> float | None:
        """When to call `on_timer` if nothing else happens, `None`: not at all. Changes with every event.

        It may lie in the past: then call at once, but after the other events of the same instant.
        """
        ...

    def on_join(self, worker: int, now: float) -> Sequence[Decision]:
        """A worker is ready to compute."""
        ...

    def on_leave(self, worker: int, now: float) -> Sequence[Decision]:
        """A worker is gone: out of every barrier and denominator, its samples handed back."""
        ...

    def on_done(
        self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool = False
    ) -> Sequence[Decision]:
        """A worker's gradient is complete on all shards; `refused`: a shard found it not finite, so all discard it."""
        ...

    def on_timer(self, now: float) -> Sequence[Decision]:
        """The time given by `next_timer` has come."""
        ...

    def on_plan(self, plan: Plan, now: float) -> Sequence[Decision]:
        """An agreed plan; it is in force from the next round that is opened (see `plan_round`)."""
        ...

    def on_synchronization(self, synchronization: Synchronization, now: float) -> Sequence[Decision]:
        """Other bounds or another mode; a plan that carries them has the same effect."""
        ...

    def on_stop(self, reason: str, now: float) -> Sequence[Decision]:
        """Open no further rounds; what was granted is finished, then every worker gets `TrainingEnd`."""
        ...
