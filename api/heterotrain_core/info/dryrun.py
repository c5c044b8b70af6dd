"""Processing rules applied to a list of samples, without a store or a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterotrain_core.info.rules import ProcessingRule
from heterotrain_core.info.values import Entity, Event, Sample


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the rules make of the samples, in order of time."""

    samples: tuple[Sample, ...]
    events: tuple[Event, ...]
    absent: tuple[tuple[Entity, str], ...]
    """Entity and metric of the outputs that have no value at the end."""


def dryrun(rules: Sequence[ProcessingRule], samples: Sequence[Sample], now: float | None = None) -> DryRun:
    """Replay `samples`, each at its own time, and see what is there at `now` (`None`: at the newest sample's time).

    An output whose newest value is stale at `now` is absent: none of its samples is given. Raises `ValueError` for rules
    that cannot be obeyed (a cycle, a wrong parameter), naming the rule.
    """
    raise NotImplementedError
