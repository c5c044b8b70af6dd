"""How far a source's clock is from ours. Freshness counts on the receiver's clock. No clock of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TOLERATED_SECONDS: Final = 2.0
"""Clocks that differ by less count as the same: sources tell whole seconds only."""


@dataclass(slots=True)
class Skew:
    """One target's. The estimate stays while it holds, so that a time seen twice is corrected to the same twice."""

    seconds: float = 0.0
    """To be added to the source's times."""

    def observe(self, received: float, source_time: float | None) -> None:
        """`source_time`: the source's clock, in whole seconds, when it answered."""
        if source_time is None:
            return
        seen = received - (source_time + 0.5)
        if abs(seen) <= TOLERATED_SECONDS:
            self.seconds = 0.0
        elif abs(seen - self.seconds) > TOLERATED_SECONDS:
            self.seconds = seen
