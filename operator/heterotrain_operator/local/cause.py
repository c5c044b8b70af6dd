"""Which failure of a job is the one to name. Pure.

When one process fails, others fail because of it: the coordinator loses a worker, workers lose the coordinator. The
user must read the first cause, with its exit code or signal and the last words in its log.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from heterotrain_api.conditions import Reason
from heterotrain_api.contract import ExitCode
from heterotrain_operator.job.last_words import remedy
from heterotrain_operator.local.quantity import format_bytes

LAUNCH_FAILED: Final = 127
"""Exit code of the launcher when the command cannot be started; the shell's code for the same."""


class Kind(StrEnum):
    """What a process of a local job is, as it is called in messages."""

    PS = "parameter server"
    COORDINATOR = "coordinator"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExcess:
    """A process tree that held more than its limit, and was killed for it."""

    held_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """A process that has ended."""

    name: str
    kind: Kind
    code: int
    """Exit code; negative: ended by that signal."""
    seconds: float
    """When it was seen, on the runner's clock."""
    last_line: str = ""
    """Its last words (`last_words`)."""
    excess: MemoryExcess | None = None
    """Why the runner killed it, if it did so for its memory."""
    told: bool = False
    """The runner had told it to end before it did: no cause of anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a job ended as it did: a CamelCase reason, a sentence, and the process to look at (empty: none in
    particular).
    """

    reason: str
    message: str
    process: str = ""


_REASONS: Final = {
    Kind.PS: Reason.SHARD_FAILED,
    Kind.COORDINATOR: Reason.COORDINATOR_FAILED,
    Kind.WORKER: Reason.WORKER_FAILED,
}


def describe_exit(ended: Exit) -> Cause:
    """Say in one sentence how a process failed."""
    who = f"{ended.kind} {ended.name}" if ended.kind is not Kind.COORDINATOR else "the coordinator"
    if ended.excess is not None:
        held, limit = format_bytes(ended.excess.held_bytes), format_bytes(ended.excess.limit_bytes)
        message = f"{who} ran out of memory (OOMKilled): it held {held}, its limit (resources.limits.memory) is {limit}"
        return Cause(reason=Reason.OUT_OF_MEMORY, message=message, process=ended.name)
    reason = _REASONS[ended.kind]
    words = f": {ended.last_line}" if ended.last_line else ""
    if ended.code == LAUNCH_FAILED:
        return Cause(reason=reason, message=f"{who} could not be started{words}", process=ended.name)
    if ended.code < 0:
        hint = (
            "; not by this runner: if nobody did it by hand, the machine may be out of memory"
            if -ended.code == signal.SIGKILL
            else words
        )
        return Cause(reason=reason, message=f"{who} was killed by {signal_name(-ended.code)}{hint}", process=ended.name)
    advice = remedy(ended.last_line)
    words += f"; {advice}" if advice else ""
    return Cause(reason=reason, message=f"{who} exited with code {ended.code}{words}", process=ended.name)


def root_cause(exits: Sequence[Exit], reported: Cause | None) -> Cause | None:
    """Choose the failure to name: a process's own failure before what others said of it, the earliest before later
    ones.

    `reported` is the coordinator's own account (from its outcome). It counts for more than an exit of a process that
    says by its code that a peer is to blame (`ExitCode.PEER_LOST`), and for less than a process that failed by itself.
    None: nothing failed.
    """
    failed = [ended for ended in exits if not ended.told and ended.code != ExitCode.SUCCEEDED]
    own = [ended for ended in failed if _is_own_failure(ended, reported)]
    if own:
        return describe_exit(min(own, key=_precedence))
    if reported is not None:
        return reported
    return describe_exit(min(failed, key=_precedence)) if failed else None


def _is_own_failure(ended: Exit, reported: Cause | None) -> bool:
    if ended.code == ExitCode.PEER_LOST:
        return False
    # A coordinator that leaves an account of the failure has not failed itself.
    return ended.kind is not Kind.COORDINATOR or reported is None


def _precedence(ended: Exit) -> tuple[int, float]:
    if ended.excess is not None:
        rank = 0
    elif ended.code < 0 or ended.code == LAUNCH_FAILED:
        rank = 1
    elif ended.code != ExitCode.PEER_LOST:
        rank = 2
    else:
        rank = 3
    return rank, ended.seconds


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
