"""Learning-rate schedules that follow the samples used, or the epochs, whatever the number of steps of this worker."""

from __future__ import annotations

from typing import Any, Literal

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from heterotrain.errors import UsageError
from heterotrain.rounds import Rounds

Per = Literal["samples", "epoch"]


class Schedule:
    """Wraps a scheduler of `torch.optim.lr_scheduler`: `step` moves it to where the version held stands."""

    def __init__(self, scheduler: LRScheduler, rounds: Rounds, per: Per) -> None:
        if per not in ("samples", "epoch"):
            raise UsageError(f"per must be 'samples' or 'epoch', not {per!r}")
        if isinstance(scheduler, ReduceLROnPlateau) and per != "epoch":
            raise UsageError(
                "ReduceLROnPlateau follows a value measured per epoch; use session.schedule(…, per='epoch')"
            )
        self._scheduler = scheduler
        self._rounds = rounds
        self._per = per
        self._steps = 0
        if not isinstance(scheduler, ReduceLROnPlateau):
            rounds.at_start(self.step)

    @property
    def wrapped(self) -> LRScheduler:
        """The scheduler given to `Session.schedule`."""
        return self._scheduler

    def step(self, metrics: float | None = None) -> None:
        """Move the scheduler on, by as many of its own steps as are due: none, one, or several.

        By samples they are counted as epoch x ceil(n/B) + floor(samples committed in the epoch / B), by epoch as epochs
        that are over. `metrics` is for `ReduceLROnPlateau` alone; give a value of `Session.evaluate`, which is the same
        on all workers.
        """
        if isinstance(self._scheduler, ReduceLROnPlateau):
            if metrics is None:
                raise UsageError("ReduceLROnPlateau needs the measured value: scheduler.step(value)")
            self._scheduler.step(metrics)
            return
        if metrics is not None:
            raise UsageError(f"{type(self._scheduler).__name__} takes no value; call scheduler.step()")
        due = self._rounds.schedule_step if self._per == "samples" else self._rounds.epochs_over
        # One by one, as in a plain loop: chained schedulers are defined by their steps, and round in the same way.
        while self._steps < due:
            self._scheduler.step()
            self._steps += 1

    def get_last_lr(self) -> list[float]:
        """Rates of the parameter groups now."""
        rates: list[Any] = list(self._scheduler.get_last_lr())
        return [float(rate) for rate in rates]
