"""How a job is stopped, how it ends well, and how it fails. Pure but for the parts that it changes."""

from __future__ import annotations

from heterotrain_core import run_effects as out
from heterotrain_core.bsp import EPOCHS_OVER, ROUNDS_OVER
from heterotrain_core.event_log import printable
from heterotrain_core.rounds import Rounds
from heterotrain_core.run_parts import RunParts
from heterotrain_core.run_values import Outcome, Phase, RunReason

Effects = list[out.Effect]


def stop(parts: RunParts, reason: RunReason, message: str, now: float) -> Effects:
    """End the training early; the first reason wins."""
    if parts.rounds is None:
        dismissals = [out.Dismiss(m.name, message, fault=False) for m in parts.members.present()]
        return [*dismissals, *finish(parts, Phase.STOPPED, reason, f"{message}, before training began", now)]
    if parts.stopping is None:
        parts.stopping = (reason, message)
    return parts.rounds.stop(message, now)


def good_end(parts: RunParts, rounds: Rounds) -> tuple[Phase, RunReason, str]:
    """Why a training is over that nothing has failed."""
    if rounds.policy.end_reason == EPOCHS_OVER:
        return Phase.SUCCEEDED, RunReason.EPOCHS_COMPLETED, f"all {rounds.epochs} epochs are trained"
    if rounds.policy.end_reason == ROUNDS_OVER:
        return Phase.SUCCEEDED, RunReason.ROUNDS_REACHED, f"the limit of {rounds.committed} rounds is reached"
    reason, message = parts.stopping or (RunReason.STOPPED, "stopped on request")
    return (Phase.STOPPED if reason is RunReason.STOPPED else Phase.SUCCEEDED), reason, message


def fail(parts: RunParts, reason: RunReason, message: str, now: float) -> Effects:
    """The job cannot go on."""
    dismissals = [out.Dismiss(m.name, message, fault=True) for m in parts.members.present()]
    return [*dismissals, *finish(parts, Phase.FAILED, reason, message, now)]


def finish(parts: RunParts, phase: Phase, reason: RunReason, message: str, now: float) -> Effects:
    """Nothing follows."""
    effects = [*parts.plans.cancel(message, now), *parts.saving.cancel(message)]
    parts.totals.end(now)
    rounds = parts.rounds.committed if parts.rounds is not None else 0
    samples, model = parts.totals.samples, parts.saving.model
    parts.outcome = Outcome(phase, reason, printable(message), rounds, samples, parts.reports.values, model)
    parts.log.add(reason, message, now, warning=phase is Phase.FAILED)
    return [*effects, out.Finish(parts.outcome)]
