"""How a rule is doing: what its status and its metrics are made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from heterotrain_api.info_collection import COLLECTION_KIND
from heterotrain_api.info_rules import PROCESSING_KIND
from heterotrain_api.rule_conditions import RuleReason

SPEED_SECONDS: Final = 10.0
"""Shortest time that samples a second are counted over."""


class RuleKind(StrEnum):
    """The two kinds of rules."""

    COLLECT = "collect"
    PROCESS = "process"


KINDS: Final[Mapping[RuleKind, str]] = {RuleKind.COLLECT: COLLECTION_KIND, RuleKind.PROCESS: PROCESSING_KIND}
"""As manifests name them."""


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
    accepted: bool = True
    """The rule is obeyed."""
    reason: RuleReason = RuleReason.NOT_YET_KNOWN
    """Why it is ready or not, or not accepted."""
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
    _counted_from: tuple[float, int] | None = None
    """Time and `samples` from which the speed is counted."""

    def age(self, now: float) -> float | None:
        """Seconds since the newest sample; `None` before the first."""
        return None if self.last_sample is None else max(0.0, now - self.last_sample)

    def ran(self, now: float, duration: float, stored: int, newest: float | None) -> None:
        """Count a run."""
        self.runs += 1
        self.last_run, self.duration = now, duration
        self.samples += stored
        if self._counted_from is None:  # this run's samples are of the time before
            self._counted_from = (now, self.samples)
        since, samples = self._counted_from
        if now - since >= SPEED_SECONDS:
            self.samples_per_second = (self.samples - samples) / (now - since)
            self._counted_from = (now, self.samples)
        if newest is not None:
            self.last_sample = newest if self.last_sample is None else max(newest, self.last_sample)
