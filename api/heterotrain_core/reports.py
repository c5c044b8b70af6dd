"""Values that scripts report for the job's status and its stop condition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from heterotrain_core.event_log import EventLog
from heterotrain_core.run_values import RunReason

MAX_REPORTED = 100
"""Names of reported values that a job keeps."""


class Reports:
    """The newest value of each name."""

    def __init__(self, log: EventLog, values: Mapping[str, float] = MappingProxyType({})) -> None:
        self._log = log
        self._values: dict[str, float] = dict(values)

    @property
    def values(self) -> dict[str, float]:
        """A copy."""
        return dict(self._values)

    def take(self, worker: str, values: Mapping[str, float], now: float) -> Mapping[str, float]:
        """Keep what a worker reports; returns what was kept, the log says what was not and why."""
        kept: dict[str, float] = {}
        for name, value in values.items():
            if not math.isfinite(value):
                why = f"{name} = {value}: only finite numbers are kept"
            elif name not in self._values and len(self._values) + len(kept) >= MAX_REPORTED:
                why = f"`{name}`, but a job keeps {MAX_REPORTED} names at most"
            else:
                kept[name] = value
                continue
            self._log.add(RunReason.REPORT_IGNORED, f"worker {worker} reported {why}", now, warning=True)
        self._values.update(kept)
        return kept
