"""Model files that are being written: checkpoints on command, and the final model."""

from __future__ import annotations

from pathlib import PurePosixPath

from heterotrain_core.event_log import EventLog
from heterotrain_core.rounds import Rounds
from heterotrain_core.run_effects import AnswerCommand, Effect, Export
from heterotrain_core.run_events import Exported, ExportFailed
from heterotrain_core.run_values import RunFault, RunReason


class Saving:
    """Which exports run, and who asked. Raises `RunFault` if the final model cannot be written."""

    def __init__(self, model_file: str, log: EventLog) -> None:
        self._model_file = model_file
        self._log = log
        self._checkpoints: dict[str, tuple[int, list[int]]] = {}
        """Version and requests, by file."""
        self._final_begun = False
        self.model = ""
        """Path of the final model, once written."""

    @property
    def idle(self) -> bool:
        """No checkpoint is being written."""
        return not self._checkpoints

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions of checkpoints that are being written."""
        return tuple(version for version, _ in self._checkpoints.values())

    def checkpoint(self, request: int, rounds: Rounds | None) -> list[Effect]:
        """Write the newest decided version beside the final model."""
        version = rounds.policy.version if rounds is not None else 0
        name = PurePosixPath(self._model_file)
        file = f"{name.stem}-{version}{name.suffix}"
        if file in self._checkpoints:
            self._checkpoints[file][1].append(request)
            return []
        self._checkpoints[file] = (version, [request])
        if rounds is not None:
            rounds.pin(version)
        return [Export(version, file)]

    def final(self, version: int) -> list[Effect]:
        """Training is over: write the final model, once."""
        if self._final_begun:
            return []
        self._final_begun = True
        return [Export(version, self._model_file)]

    def exported(self, event: Exported, rounds: Rounds | None, now: float) -> list[Effect]:
        """A file is written."""
        if event.file == self._model_file:
            self.model = event.path
            self._log.add(RunReason.MODEL_SAVED, f"the model is saved: {event.path}", now)
            return []
        self._log.add(RunReason.CHECKPOINT_SAVED, f"a checkpoint is saved: {event.path}", now)
        return [AnswerCommand(r, True, path=event.path) for r in self._end(event.file, rounds)]

    def failed(self, event: ExportFailed, rounds: Rounds | None, now: float) -> list[Effect]:
        """A file could not be written; training goes on without a checkpoint, but not without the model."""
        if event.file == self._model_file:
            raise RunFault(RunReason.SAVE_FAILED, f"the model could not be saved: {event.reason}")
        self._log.add(RunReason.SAVE_FAILED, f"{event.file} could not be saved: {event.reason}", now, warning=True)
        return [AnswerCommand(r, False, event.reason) for r in self._end(event.file, rounds)]

    def cancel(self, why: str) -> list[Effect]:
        """The job ends: nobody writes on."""
        requests = [r for _, rs in self._checkpoints.values() for r in rs]
        self._checkpoints.clear()
        return [AnswerCommand(r, False, why) for r in requests]

    def _end(self, file: str, rounds: Rounds | None) -> list[int]:
        version, requests = self._checkpoints.pop(file)
        if rounds is not None:
            rounds.unpin(version)
        return requests
