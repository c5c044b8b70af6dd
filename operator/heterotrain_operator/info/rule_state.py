"""How a rule is doing: what its status and its metrics are made from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

SPEED_WEIGHT: Final = 0.2
"""Of the newest run in the moving average of samples a second."""


class RuleKind(StrEnum):
    """The two kinds of rules."""

    COLLECT = "collect"
    PROCESS = "process"


@dataclass(slots=True)
class RuleState:
    """One rule's counts since it was set; seconds on the wall clock, durations in seconds."""

    kind: RuleKind
    name: str
    generation: int
    ready: bool = False
    """The last run gave what it was to give."""
    error: str = ""
    """Why not, with the first cause by name; empty if ready."""
    last_run: float | None = None
    last_sample: float | None = None
    """Time of the newest sample: its age is the age of the rule's data."""
    duration: float = 0.0
    """Of the last run."""
    runs: int = 0
    failures: int = 0
    samples: int = 0
    """Stored, since the rule was set."""
    series: int = 0
    """That the last run gave, or that a processing rule holds."""
    samples_per_second: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    """What became of samples and runs, by the word: ``stored``, ``not_finite``, ``unmapped``, ``http_status`` …"""

    def age(self, now: float) -> float | None:
        """Seconds since the newest sample; `None` before the first."""
        return None if self.last_sample is None else max(0.0, now - self.last_sample)

    def ran(self, now: float, duration: float, stored: int, newest: float | None) -> None:
        """Count a run."""
        if self.last_run is not None and now > self.last_run:
            speed = stored / (now - self.last_run)
            self.samples_per_second += SPEED_WEIGHT * (speed - self.samples_per_second) if self.runs > 1 else speed
        self.runs += 1
        self.last_run, self.duration = now, duration
        self.samples += stored
        if newest is not None:
            self.last_sample = newest if self.last_sample is None else max(newest, self.last_sample)
