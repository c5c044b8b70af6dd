"""The coordinator's last word: one JSON object in its termination message, and an exit code. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from heterotrain_api.conditions import Reason
from heterotrain_api.contract import MODEL_FILE, ExitCode, MountPath
from heterotrain_operator.job.last_words import last_words
from heterotrain_operator.job.observed import ContainerEnd
from heterotrain_rpc import control_pb2

OOM_KILLED = "OOMKilled"


class State(StrEnum):
    """How a job ended."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    STOPPED = "Stopped"

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of whoever says so."""
        return {State.SUCCEEDED: ExitCode.SUCCEEDED, State.FAILED: ExitCode.FAILED, State.STOPPED: ExitCode.STOPPED}[
            self
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The coordinator's account of how the job ended."""

    state: State
    reason: str = ""
    message: str = ""
    rounds: int = 0
    samples: int = 0
    reported: Mapping[str, float] = field(default_factory=dict)
    model: str = ""

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """Read the account; raises `ValueError` if it is not one."""
        try:
            data = json.loads(text)
            return cls(
                state=State(data["state"]),
                reason=str(data.get("reason") or ""),
                message=str(data.get("message") or ""),
                rounds=int(data.get("rounds") or 0),
                samples=int(data.get("samples") or 0),
                reported={str(name): float(value) for name, value in (data.get("reported") or {}).items()},
                model=str(data.get("model") or ""),
            )
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not an outcome: {error}") from error


def read_outcome(end: ContainerEnd) -> Outcome:
    """What the end of the coordinator's container says. The exit code holds; the message explains it.

    Without an account: code 0 with some other text is a success whose account was cut, anything else a failure of the
    coordinator itself.
    """
    try:
        account = Outcome.from_json(end.message)
    except ValueError:
        account = None
    if account is not None and account.state.exit_code == end.exit_code:
        return account
    if account is None and end.exit_code == ExitCode.SUCCEEDED and end.message.strip():
        return Outcome(state=State.SUCCEEDED, model=f"{MountPath.OUTPUT}/{MODEL_FILE}")
    return Outcome(state=State.FAILED, reason=_own_reason(end), message=_own_words(end, account))


def left_account(end: ContainerEnd) -> bool:
    """Whether the coordinator has said how the job ended; else its container merely ended."""
    try:
        return Outcome.from_json(end.message).state.exit_code == end.exit_code
    except ValueError:
        return False


def _own_reason(end: ContainerEnd) -> str:
    return Reason.OUT_OF_MEMORY if end.reason == OOM_KILLED else Reason.COORDINATOR_FAILED


def _own_words(end: ContainerEnd, account: Outcome | None) -> str:
    if account is not None:
        return f"the coordinator exited with code {end.exit_code} after it had said {account.state}: {account.message}"
    if end.exit_code == ExitCode.SUCCEEDED:
        return "the coordinator ended without leaving an outcome"
    killed = " (OOMKilled: its memory limit is too low)" if end.reason == OOM_KILLED else ""
    words = last_words(end.message)
    return f"the coordinator exited with code {end.exit_code}{killed}" + (f": {words}" if words else "")


_STATES = {
    control_pb2.PHASE_SUCCEEDED: State.SUCCEEDED,
    control_pb2.PHASE_STOPPED: State.STOPPED,
    control_pb2.PHASE_FAILED: State.FAILED,
}


def outcome_of_state(state: control_pb2.JobState) -> Outcome | None:
    """The account that a coordinator gave over its channel before its pod went; `None`: the job was not over."""
    if state.phase not in _STATES:
        return None
    return Outcome(
        state=_STATES[state.phase],
        reason=state.reason,
        message=state.message,
        rounds=state.version,
        samples=state.samples,
        reported=dict(state.reported),
        model=state.model_path,
    )
