"""DSSP: SSP whose bound moves inside a range (Zhao et al., arXiv 1908.11848; algorithms.md D5). Pure.

When the fastest worker exceeds the lower bound, it gets the number of extra iterations after which it is predicted to
wait least for the slowest. Everybody else, and the fastest when these are used up, obeys the lower bound; no start goes
beyond lower + range.
"""

from __future__ import annotations

import math

from heterotrain_core.sync.pushing import PushMode
from heterotrain_core.sync.state import TrainingState
from heterotrain_core.synchronization import Dssp, Synchronization
from heterotrain_core.types import Grant

_ROUNDING = 1e-9
"""Relative; times that should meet and differ by less do meet."""


def choose_extra(fast_now: float, fast_seconds: float, slow_last: float, slow_seconds: float, most: int) -> int:
    """Extra iterations, 0 to `most`, after which the fastest worker waits least for the slowest; ties: the fewest.

    Both are taken to push at constant intervals: the fastest at `fast_now` and every `fast_seconds` from then on, the
    slowest at `slow_last` and every `slow_seconds`. Raises `ValueError` unless both intervals are above 0.
    """
    if fast_seconds <= 0 or slow_seconds <= 0:
        raise ValueError(f"intervals must be above 0, not {fast_seconds} and {slow_seconds}")
    waits = [predicted_wait(fast_now + r * fast_seconds, slow_last, slow_seconds) for r in range(most + 1)]
    # A wait within rounding of the least is the least: ties go to the fewest.
    within = min(waits) + _ROUNDING * slow_seconds
    return next(r for r, wait in enumerate(waits) if wait <= within)


def predicted_wait(time: float, slow_last: float, slow_seconds: float) -> float:
    """Seconds from `time` until the next push of the slowest at or after it."""
    intervals = math.ceil((time - slow_last) / slow_seconds - _ROUNDING)
    return max(0.0, slow_last + max(1, intervals) * slow_seconds - time)


class DsspMode(PushMode):
    """Keeps each worker's last iteration time, without waiting; before one is known nobody gets extra iterations."""

    def __init__(self, state: TrainingState, settings: Dssp) -> None:
        super().__init__(state, settings)
        self._range = settings
        self._started: dict[int, float] = {}
        self._seconds: dict[int, float] = {}
        self._allowed: dict[int, int] = {}
        """Clock below which a worker may start beyond the lower bound."""
        self._favoured: set[int] = set()
        """Idle workers that may start beyond the lower bound."""

    def configure(self, settings: Synchronization) -> None:
        """Extra iterations given before still count, as far as the new range reaches."""
        super().configure(settings)
        if isinstance(settings, Dssp):
            self._range = settings

    def done(self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool) -> None:
        """The fastest may get extra iterations."""
        super().done(worker, iteration, base_version, samples, now, refused=refused)
        seconds = now - self._started.pop(worker, now)
        if seconds > 0:
            self._seconds[worker] = seconds
        if worker in self._idle and self._clocks[worker] - self._clocks.lowest > self._range.lower:
            self._favour(worker, now)

    def left(self, worker: int) -> None:
        """Forget its times."""
        super().left(worker)
        self._started.pop(worker, None)
        self._seconds.pop(worker, None)
        self._allowed.pop(worker, None)

    def open(self, now: float) -> list[Grant]:
        """Note the starts."""
        grants = super().open(now)
        for grant in grants:
            self._started[grant.worker] = now
        return grants

    def epoch_over(self) -> None:
        """Nobody is ahead any more."""
        super().epoch_over()
        self._allowed.clear()
        self._favoured.clear()

    @property
    def _most_ahead(self) -> int | None:
        return self._range.lower

    def _startable(self) -> set[int]:
        startable = super()._startable()
        if self._favoured:
            farthest = self._clocks.lowest + self._range.lower + self._range.range
            startable |= {w for w in self._favoured if w in self._idle and self._clocks[w] <= farthest}
            self._favoured.clear()
        return startable

    def _favour(self, worker: int, now: float) -> None:
        clock = self._clocks[worker]
        if clock >= self._allowed.get(worker, 0) and clock == self._clocks.highest:
            self._allowed[worker] = clock + self._extra(worker, clock, now)
        if clock < self._allowed.get(worker, 0):
            self._favoured.add(worker)

    def _extra(self, worker: int, clock: int, now: float) -> int:
        clocks, settings = self._clocks, self._range
        most = min(settings.range, clocks.lowest + settings.lower + settings.range + 1 - clock)
        slowest = clocks.slowest
        fast_seconds = self._seconds.get(worker)
        if slowest is None or fast_seconds is None or most < 1:
            return 0
        slow_seconds, slow_last = self._seconds.get(slowest), self._started.get(slowest)
        if slow_seconds is None or slow_last is None:
            return 0
        return choose_extra(now, fast_seconds, slow_last, slow_seconds, most)
