"""What a simulation is given and what it tells. Immutable values; times in seconds of virtual time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from heterotrain_core.simulate_times import StepTimes
from heterotrain_core.synchronization import Synchronization

ENDLESS = 2**62
"""Samples of a data set that never ends."""


@dataclass(frozen=True, slots=True)
class Link:
    """One worker's link, each way; links do not disturb each other and the server takes no time."""

    delta_seconds: float = 0.0
    """Fixed time of one transmission."""
    bytes_per_second: float = math.inf

    def __post_init__(self) -> None:
        """Raise `ValueError` for numbers out of range."""
        if not 0 <= self.delta_seconds < math.inf or not self.bytes_per_second > 0:
            raise ValueError(
                "link: the fixed time must be at least 0 s and the bandwidth above 0 bytes/s, "
                f"not {self.delta_seconds:g} and {self.bytes_per_second:g}"
            )

    def seconds(self, num_bytes: float) -> float:
        """Time to send `num_bytes`."""
        return self.delta_seconds + num_bytes / self.bytes_per_second


IDEAL_LINK = Link()


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    """One worker."""

    name: str
    steps: StepTimes
    """Compute times of a whole share; a smaller share (at the end of an epoch) takes less in proportion."""
    share: int = 1
    """Samples an iteration."""
    phase_seconds: float = 0.0
    """The first step takes so much longer."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker falls silent; what it was doing is lost. The policy learns of it when the lease is over."""

    seconds: float
    worker: str


@dataclass(frozen=True, slots=True)
class Join:
    """A worker comes, or comes back. One that has not failed before is absent until then."""

    seconds: float
    worker: str


@dataclass(frozen=True, slots=True)
class Change:
    """Other bounds or another mode."""

    seconds: float
    synchronization: Synchronization


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One run. It ends after `until_seconds` (events exactly then still count), or when the work is done."""

    workers: tuple[SimulatedWorker, ...]
    synchronization: Synchronization
    until_seconds: float = math.inf
    rounds: int | None = None
    """Ends after so many versions."""
    dataset_size: int = ENDLESS
    epochs: int = 1
    link: Link = IDEAL_LINK
    model_bytes: float = 0.0
    """Pulled before and pushed after every step."""
    events: tuple[Failure | Join | Change, ...] = ()
    lease_seconds: float = 15.0
    seed: int = 0
    keep_log: bool = False

    def __post_init__(self) -> None:
        """Raise `ValueError` for what cannot be run."""
        names = [w.name for w in self.workers]
        if not names or len(set(names)) != len(names):
            raise ValueError("workers must have different names, and there must be at least one")
        endless = self.dataset_size >= ENDLESS and self.rounds is None
        if not self.until_seconds >= 0 or (math.isinf(self.until_seconds) and endless):
            raise ValueError(
                f"the end must be at least 0 s, and finite without a limit of rounds or epochs: {self.until_seconds:g}"
            )
        for event in self.events:
            if not 0 <= event.seconds < math.inf:
                raise ValueError(f"the time of an event must be at least 0 s and finite, not {event.seconds:g}")
            if not isinstance(event, Change) and event.worker not in names:
                raise ValueError(f"unknown worker {event.worker}; there are {names[0]} to {names[-1]}")
        if not 0 <= self.lease_seconds < math.inf or not 0 <= self.model_bytes < math.inf:
            raise ValueError("the lease and the model's bytes must be at least 0 and finite")


@dataclass(frozen=True, slots=True)
class Start:
    """A worker starts an iteration (its pull)."""

    seconds: float
    worker: str
    clock: int
    """Iterations that the worker had completed before."""
    version: int


@dataclass(frozen=True, slots=True)
class Close:
    """A commit: `version` becomes ``version + 1``."""

    seconds: float
    version: int
    staleness: Mapping[str, int]
    """Of the gradients applied, by worker."""
    scale: float


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """What one worker did."""

    name: str
    iterations: int
    """Completed, whether applied, dropped or still waiting for a round to close."""
    waiting_seconds: float
    """Present, and neither computing nor communicating."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a run came to."""

    seconds: float
    """When it ended."""
    end_reason: str | None
    """Why training was over; `None`: it was cut off by time."""
    rounds: int
    """Versions made."""
    gradients: int
    """Applied."""
    dropped: int
    """Came too late (Backup)."""
    samples: int
    """Used by commits, over all epochs."""
    staleness_histogram: Mapping[int, int]
    workers: tuple[WorkerResult, ...]
    log: tuple[Start | Close, ...] = field(default=())
    """In order of time; at one instant closings first, then starts by worker."""

    @property
    def largest_staleness(self) -> int:
        """In versions; 0 without gradients."""
        return max(self.staleness_histogram, default=0)

    @property
    def arrivals(self) -> int:
        """Iterations of all workers."""
        return sum(w.iterations for w in self.workers)
