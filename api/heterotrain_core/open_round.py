"""One round between its opening and its commit: who holds what, who is missing. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from heterotrain_core.staleness import make_commit
from heterotrain_core.types import Commit, Grant, SampleRange


@dataclass(slots=True)
class OpenRound:
    """State of one round; belongs to the policy that opened it, which alone changes it."""

    number: int
    """The version that it computes on."""
    samples_before: int
    """Samples of the epoch that were committed or held when it was opened."""
    grants: dict[int, Grant]
    """By worker; lost workers are taken out."""
    missing: set[int]
    """Workers whose gradient is not in."""
    refused: set[int] = field(default_factory=set)
    """Workers whose gradient was not finite; lost ones may stay."""

    def drop(self, worker: int) -> tuple[SampleRange, ...]:
        """Take a lost worker out, whether its gradient is in or not; returns the samples that it held."""
        grant = self.grants.pop(worker, None)
        self.missing.discard(worker)
        return grant.ranges if grant else ()

    def commit(self) -> Commit:
        """Weighted mean of what arrived (algorithms.md C3), in worker order.

        The denominator of the scale is what was granted less what lost workers had: what was refused stays in.
        """
        granted = sum(g.samples for g in self.grants.values())
        return make_commit(self.number, self.grants.values(), self.refused, batch=granted)
