"""``heterotrain simulate --replay``: a job's recording, told to the policy again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from heterotrain_api.contract import ExitCode
from heterotrain_core.recording import Recording, plan_of, read_recording
from heterotrain_core.replay import replay, simulated_workers
from heterotrain_core.simulate_values import SimulatedWorker, SimulationResult
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.synchronization import SynchronizationOptions
from heterotrain_operator.local.job_folder import RECORDING_FILE
from heterotrain_operator.text_file import TextError, read_text

MAX_RECORDING_BYTES: Final = 2**30
_NOT_TOLD: Final = (ValueError, ArithmeticError, KeyError, IndexError, TypeError, AttributeError)


def read_terms(path: Path) -> tuple[Recording, ...]:
    """The terms of a recording, or of the one in a report folder; raises `CommandError`."""
    file = path / RECORDING_FILE if path.is_dir() else path
    try:
        return read_recording(read_text(file, MAX_RECORDING_BYTES).splitlines(keepends=True))
    except OSError as error:
        remedy = "; record a job with `heterotrain run --record`" if isinstance(error, FileNotFoundError) else ""
        raise CommandError(f"--replay {file}: cannot be read: {error.strerror}{remedy}", ExitCode.INVALID) from None
    except (TextError, ValueError) as error:
        raise CommandError(f"--replay {file}: {error}", ExitCode.INVALID) from None


def modes_of(recording: Recording) -> str:
    """The modes that the term went through, in order, each once."""
    plans = [plan_of(told.values).synchronization for told in recording.told if told.what == "plan"]
    changes = [recording.beginning.plan.synchronization or recording.beginning.synchronization, *plans]
    return ", ".join(dict.fromkeys(wanted.mode.value for wanted in changes if wanted is not None))


def replayed(recording: Recording) -> SimulationResult:
    """See `heterotrain_core.replay.replay`; raises `CommandError` for what the policy of this version refuses."""
    try:
        return replay(recording)
    except _NOT_TOLD as error:
        raise CommandError(f"--replay: this version cannot tell it again: {error}", ExitCode.INVALID) from None


def recorded_workers(recording: Recording) -> tuple[SimulatedWorker, ...]:
    """See `heterotrain_core.replay.simulated_workers`; raises `CommandError` likewise."""
    try:
        return simulated_workers(recording)
    except _NOT_TOLD as error:
        raise CommandError(f"--replay: has no step times to simulate with: {error}", ExitCode.INVALID) from None


def refuse_others(options: SynchronizationOptions, **others: Any) -> None:
    """Raise `CommandError` for options that a replay as it was does not take."""
    given = {**{name: getattr(options, name) for name in _OF_A_MODE}, **others}
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None and value != []]
    if names:
        raise CommandError(
            f"--replay tells the policy what it was told: leave {', '.join(names)} out, or give --mode too, to "
            "simulate another training with the recorded step times",
            ExitCode.INVALID,
        )


_OF_A_MODE: Final = ("staleness_bound", "delay_window", "dssp", "discount", "normalization", "backup")
