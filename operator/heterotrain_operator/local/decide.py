"""What the runner does next, from what it has observed. Pure: one ladder, read from the top, first rung that holds.

The runner (`heterotrain_operator.local.runner`) observes, calls `decide`, and carries the verdict out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from heterotrain_api.conditions import Reason
from heterotrain_api.contract import ExitCode
from heterotrain_operator.job.outcome import Outcome, State
from heterotrain_operator.local.cause import Cause, Exit, Kind, describe_exit, root_cause


class Progress(StrEnum):
    """How far the job has come, as far as decisions need it."""

    STARTING = "starting"
    """Not all workers have joined and agreed on the model."""
    TRAINING = "training"
    """Training, or over it: the start-up deadline no longer counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Deadlines, in seconds."""

    startup_seconds: float = 120.0
    """From the start of the workers until training begins."""
    collect_seconds: float = 2.0
    """From the first failure until the job is called failed: the others' exits may hold the real cause."""
    leave_seconds: float = 6.0
    """The same for a worker that has told the coordinator its error: it is on its way out, and its exit code comes
    with it."""
    linger_seconds: float = 15.0
    """From the coordinator's outcome until processes that have not ended are told to."""
    stop_seconds: float = 15.0
    """From the user's wish to stop until processes are told to end: the round is finished and the model saved
    meanwhile."""
    silence_seconds: float = 60.0
    """Without an answer from a living coordinator."""
    restarts: int = 0
    """How often parameter servers and coordinator are started again: their job goes on from a checkpoint."""
    rejoins: int = 0
    """How often each worker is started again: its job goes on without it meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything a decision rests on, at one moment. Times are seconds on one monotonic clock."""

    now: float
    job_started: float
    starting: str = ""
    """The process that is awaited before the workers are started."""
    workers_started: float | None = None
    exits: Sequence[Exit] = ()
    running: Sequence[str] = ()
    outcome: Outcome | None = None
    outcome_seen: float = 0.0
    progress: Progress = Progress.STARTING
    absent: frozenset[str] = frozenset()
    """Workers that have not joined, by the newest state of the coordinator."""
    lost: frozenset[str] = frozenset()
    """Workers that the coordinator has lost, by that state."""
    standing: str = ""
    """What the job waits for, in the words of that state."""
    state_seen: float | None = None
    """When that state came."""
    silent_since: float | None = None
    """Since when the coordinator does not answer; `None`: it does."""
    restarts: int = 0
    """How often a parameter server or the coordinator has been started again."""
    rejoins: Mapping[str, int] = field(default_factory=dict)
    """How often each worker has been."""
    unwanted: frozenset[str] = frozenset()
    """Workers that their group was scaled down over: however they end, it is no failure."""
    interrupts: int = 0
    """How often the user asked to stop."""
    interrupted: float = 0.0
    """When first."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Stop what still runs; the job is over."""

    state: State
    cause: Cause
    at_once: bool = False
    """Without a grace for the processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start a lost process again, where it was."""

    name: str
    why: str
    """How it ended, in words."""


Verdict: TypeAlias = Wait | End | Restart


def decide(seen: Observed, limits: Limits) -> Verdict:
    """Return what to do now."""
    seen = replace(seen, exits=[ended for ended in seen.exits if ended.name not in seen.unwanted])
    if seen.interrupts:
        return _while_stopping(seen, limits)
    if (lost := _to_restart(seen, limits)) is not None:
        return Restart(name=lost.name, why=describe_exit(lost).message)
    if seen.outcome is not None and seen.outcome.state is not State.FAILED:
        return _after_outcome(seen, seen.outcome, limits)
    failed = [ended.seconds for ended in seen.exits if not ended.told and ended.code != ExitCode.SUCCEEDED]
    if seen.outcome is not None:
        failed.append(seen.outcome_seen)
    if failed:
        if seen.running and seen.now - min(failed) < _collect_seconds(seen, limits):
            return Wait()
        cause = root_cause(seen.exits, _reported(seen.outcome, seen.lost))
        return End(state=State.FAILED, cause=cause or Cause(reason=Reason.COORDINATOR_FAILED, message="the job failed"))
    cause = _ended_early(seen, limits) or _too_late(seen, limits)
    return Wait() if cause is None else End(state=State.FAILED, cause=cause)


def _to_restart(seen: Observed, limits: Limits) -> Exit | None:
    """A process that is lost, while its job can go on: without a worker, or from a checkpoint.

    Not before the workers are started (then something is wrong with the start itself), not once the coordinator has
    said how the job ended, and not a process that asks for more memory than it may have: it would again.
    """
    if seen.outcome is not None or seen.workers_started is None:
        return None
    return next((e for e in seen.exits if not e.told and e.excess is None and _is_made_good(e, seen, limits)), None)


def _is_made_good(ended: Exit, seen: Observed, limits: Limits) -> bool:
    if ended.kind is not Kind.WORKER:
        return ended.code != ExitCode.INVALID and seen.restarts < limits.restarts
    # An exit code is the script's own word, and a failure; but for one that only says that others were lost to it.
    cut_off = ended.code == ExitCode.PEER_LOST and seen.progress is Progress.TRAINING
    return (ended.code < 0 or cut_off) and seen.rejoins.get(ended.name, 0) < limits.rejoins


def _collect_seconds(seen: Observed, limits: Limits) -> float:
    reported = seen.outcome is not None and seen.outcome.reason == Reason.WORKER_FAILED
    leaving = reported and not seen.lost.isdisjoint(seen.running)
    return limits.leave_seconds if leaving else limits.collect_seconds


def _while_stopping(seen: Observed, limits: Limits) -> Verdict:
    if seen.interrupts > 1:
        cause = Cause(reason=Reason.STOPPED, message="stopped at once by the user; the model was not saved")
        return End(state=State.STOPPED, cause=cause, at_once=True)
    saved = seen.outcome is not None and seen.now - seen.outcome_seen > limits.collect_seconds
    over = seen.outcome is not None and (saved or not seen.running)
    if over and seen.outcome is not None and seen.outcome.state is not State.FAILED:
        # A job that came to its end just then has succeeded; the coordinator knows.
        message = seen.outcome.message or "stopped by the user"
        return End(state=seen.outcome.state, cause=Cause(reason=seen.outcome.reason or Reason.STOPPED, message=message))
    waited = seen.now - seen.interrupted > limits.stop_seconds and seen.outcome is None
    if over or waited or seen.progress is Progress.STARTING or not seen.running:
        return End(
            state=State.STOPPED,
            cause=Cause(reason=Reason.STOPPED, message="stopped by the user before a model was saved"),
        )
    return Wait()


def _after_outcome(seen: Observed, outcome: Outcome, limits: Limits) -> Verdict:
    if seen.running and seen.now - seen.outcome_seen < limits.linger_seconds:
        return Wait()
    return End(state=outcome.state, cause=Cause(reason=outcome.reason, message=outcome.message))


def _ended_early(seen: Observed, limits: Limits) -> Cause | None:
    """Look for a process that ended without an error, but before its work was done."""
    for ended in seen.exits:
        if ended.told or seen.now - ended.seconds < limits.collect_seconds:
            continue
        match ended.kind:
            case Kind.COORDINATOR:
                return Cause(
                    reason=Reason.COORDINATOR_FAILED,
                    message="the coordinator ended without leaving an outcome",
                    process=ended.name,
                )
            case Kind.PS:
                if seen.now - ended.seconds >= limits.linger_seconds:
                    return Cause(
                        reason=Reason.SHARD_FAILED,
                        message=f"parameter server {ended.name} ended before the job did",
                        process=ended.name,
                    )
            case Kind.WORKER:
                known = seen.state_seen is not None and seen.state_seen > ended.seconds
                if ended.name in seen.absent and (known or seen.now - ended.seconds >= limits.linger_seconds):
                    message = (
                        f"worker {ended.name} ended without joining the job; does its script call heterotrain.join()?"
                    )
                    return Cause(reason=Reason.WORKER_FAILED, message=message, process=ended.name)
    return None


def _too_late(seen: Observed, limits: Limits) -> Cause | None:
    limit = f"{limits.startup_seconds:g} s"
    if seen.workers_started is None and seen.now - seen.job_started > limits.startup_seconds:
        message = f"{seen.starting} was not ready within {limit} (--startup-seconds)"
        return Cause(reason=Reason.WAITING_FOR_WORKERS, message=message, process=seen.starting)
    waiting = seen.workers_started is not None and seen.progress is Progress.STARTING
    if waiting and seen.now - (seen.workers_started or 0.0) > limits.startup_seconds:
        joined = f"all have joined, but have not agreed on the model: {seen.standing or 'nothing more is known'}"
        who = f"not joined: {', '.join(sorted(seen.absent))}" if seen.absent else joined
        message = f"the workers were not ready within {limit} ({who}); --startup-seconds gives them longer"
        return Cause(reason=Reason.WAITING_FOR_WORKERS, message=message, process=min(seen.absent, default=""))
    if seen.silent_since is not None and seen.now - seen.silent_since > limits.silence_seconds:
        return Cause(
            reason=Reason.COORDINATOR_UNREACHABLE,
            message=f"the coordinator has not answered for {limits.silence_seconds:g} s",
            process="coordinator",
        )
    return None


def _reported(outcome: Outcome | None, lost: frozenset[str]) -> Cause | None:
    if outcome is None:
        return None
    return Cause(
        reason=outcome.reason or Reason.COORDINATOR_FAILED,
        message=outcome.message or "the coordinator reported a failure",
        # A worker that is lost and has not ended (it hangs, or a thread of it died) tells more in its log.
        process=min(lost) if len(lost) == 1 else "coordinator",
    )
