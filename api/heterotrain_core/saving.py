"""What is being written: checkpoints, when they are due or commanded, and the final model."""

from __future__ import annotations

import math

from heterotrain_core.event_log import EventLog
from heterotrain_core.progress import Progress
from heterotrain_core.run_effects import AnswerCommand, Effect, Export, SaveCheckpoint
from heterotrain_core.run_events import CheckpointFailed, CheckpointSaved, Exported
from heterotrain_core.run_values import CheckpointPolicy, RunReason


class Saving:
    """Which files are under way, and who asked. `restored`: version of the checkpoint that the training begins from."""

    def __init__(
        self, model_file: str, log: EventLog, policy: CheckpointPolicy | None, restored: int | None = None
    ) -> None:
        self._model_file = model_file
        self._log = log
        self._policy = policy
        self._under_way: dict[int, list[int]] = {}
        """Requests that wait for a checkpoint, by its version."""
        self._last_version = restored or 0
        self._last_seconds: float | None = None
        """When the last checkpoint was begun, or the training; `None`: it has not begun."""
        self._final_begun = False
        self.model = ""
        """Path of the final model, once written."""
        self.checkpoint_version = restored
        """Of the newest checkpoint that is whole; `None`: none was made yet."""

    @property
    def idle(self) -> bool:
        """No checkpoint is being written."""
        return not self._under_way

    @property
    def next_timer(self) -> float:
        """When a checkpoint is due by time; infinity: never."""
        every = self._policy.seconds if self._policy is not None else None
        if every is None or self._last_seconds is None or self._under_way:
            return math.inf
        return self._last_seconds + every

    def begin(self, now: float) -> None:
        """The first grant goes out."""
        self._last_seconds = now

    def is_due(self, version: int, now: float) -> bool:
        """Whether a checkpoint of the newest decided version must be begun; never two at once, none twice."""
        if self._policy is None or self._under_way or version == self._last_version:
            return False
        every = self._policy.rounds
        by_rounds = every is not None and version // every > self._last_version // every
        return by_rounds or now >= self.next_timer

    def wants_last(self, version: int) -> bool:
        """Whether the end of the training, at `version`, is to be kept as a checkpoint too."""
        return self._policy is not None and version != self._last_version

    def checkpoint(self, progress: Progress, now: float, request: int | None = None) -> list[Effect]:
        """Make a checkpoint of the newest decided version."""
        requests = self._under_way.get(progress.version)
        begun = requests is not None
        requests = self._under_way.setdefault(progress.version, [])
        if request is not None:
            requests.append(request)
        if begun:
            return []
        self._last_version, self._last_seconds = progress.version, now
        return [SaveCheckpoint(progress)]

    def final(self, version: int) -> list[Effect]:
        """Training is over: write the final model, once."""
        if self._final_begun:
            return []
        self._final_begun = True
        return [Export(version, self._model_file)]

    def exported(self, event: Exported, now: float) -> None:
        """The model is written."""
        self.model = event.path
        self._log.add(RunReason.MODEL_SAVED, f"the model is saved: {event.path}", now)

    def saved(self, event: CheckpointSaved, now: float) -> list[Effect]:
        """A checkpoint is whole."""
        self.checkpoint_version = event.version
        self._log.add(RunReason.CHECKPOINT_SAVED, f"a checkpoint is saved: {event.path}", now)
        return [AnswerCommand(r, True, path=event.path) for r in self._under_way.pop(event.version, ())]

    def failed(self, event: CheckpointFailed, now: float) -> list[Effect]:
        """A checkpoint could not be written; training goes on without it."""
        message = f"the checkpoint of version {event.version} could not be saved: {event.reason}"
        self._log.add(RunReason.CHECKPOINT_FAILED, message, now, warning=True)
        return [AnswerCommand(r, False, event.reason) for r in self._under_way.pop(event.version, ())]

    def cancel(self, why: str) -> list[Effect]:
        """The job ends: nobody writes on."""
        requests = [r for rs in self._under_way.values() for r in rs]
        self._under_way.clear()
        return [AnswerCommand(r, False, why) for r in requests]
