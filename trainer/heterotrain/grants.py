"""What a worker computes next: the coordinator's items, and the micro-batches of a grant. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain_core.cursor import split_ranges
from heterotrain_core.types import EpochEnd, Grant, SampleRange, TrainingEnd


@dataclass(frozen=True, slots=True)
class Item:
    """A grant or an end, with where schedules by samples stand at its version."""

    decision: Grant | EpochEnd | TrainingEnd
    schedule_step: int
    dropped: bool = False
    """The gradient handed in before came too late: it is in no version, its samples are given out again."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The part of a grant that is computed at once."""

    iteration: int
    index: int
    """Place in the grant, from 0."""
    ranges: tuple[SampleRange, ...]
    weight: float
    """Its samples over those of the grant."""
    last: bool

    @property
    def samples(self) -> int:
        """Samples computed at once."""
        return sum(len(r) for r in self.ranges)


def grant_epoch(grant: Grant) -> int:
    """The epoch that a grant's samples are of (a grant never spans two)."""
    return grant.ranges[0].epoch


def micro_batches(grant: Grant, least: int = 1) -> tuple[MicroBatch, ...]:
    """Cut a grant into the fewest micro-batches of at most `Grant.micro_batch` samples, even to within one sample.

    None has fewer samples than `least`, which the model needs at once (BatchNorm: 2), if the grant has as many: rather
    they are larger than asked for.
    """
    total = grant.samples
    count = 1 if grant.micro_batch is None else -(-total // grant.micro_batch)
    count = max(1, min(count, total // least))
    sizes = [total * (i + 1) // count - total * i // count for i in range(count)]
    return tuple(
        MicroBatch(grant.iteration, index=i, ranges=ranges, weight=size / total, last=i == count - 1)
        for i, (size, ranges) in enumerate(zip(sizes, split_ranges(grant.ranges, sizes), strict=True))
    )
