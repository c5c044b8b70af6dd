"""A `TrainingRun` as whoever watches it sees it. Pure."""

from __future__ import annotations

from heterotrain_core.run_parts import RunParts
from heterotrain_core.run_state import RunView, view_before, view_worker
from heterotrain_core.run_values import RunReason


def view_run(parts: RunParts, now: float) -> RunView:
    """The state for whoever watches. Takes medians: not for every message."""
    reason, message = _standing(parts)
    rounds, totals = parts.rounds, parts.totals
    plan = parts.plan
    return RunView(
        phase=parts.phase,
        reason=reason,
        message=message,
        epoch=rounds.epoch if rounds is not None else 0,
        epochs=next((m.epochs for m in parts.members if m.epochs is not None), 0),
        version=rounds.committed if rounds is not None else parts.first_version,
        samples=totals.samples,
        dataset_size=parts.setup.manifest.dataset_size if parts.setup.manifest is not None else 0,
        rounds_planned=rounds.planned if rounds is not None else 0,
        training_seconds=totals.training_seconds(now),
        evaluation_seconds=totals.evaluation_seconds,
        samples_per_second=totals.recent_speed(),
        mean_samples_per_second=totals.mean_speed(now),
        ideal_samples_per_second=sum(m.telemetry.own_speed() for m in parts.members.present()),
        round_seconds=totals.round_seconds(),
        bytes_per_sample=totals.bytes_per_sample(),
        workers=tuple(
            view_worker(m, plan.shares.get(m.name), rounds.last_grant(m.ordinal) if rounds is not None else None)
            for m in parts.members
        ),
        plan=plan,
        plan_round=rounds.policy.plan_round if rounds is not None else 0,
        synchronization=view_before(parts.config.synchronization) if rounds is None else rounds.synchronization(),
        reported=parts.reports.values,
        groups=parts.members.groups.replicas,
        events=parts.log.latest(),
        model=parts.saving.model,
        checkpoint_version=parts.saving.checkpoint_version,
    )


def _standing(parts: RunParts) -> tuple[RunReason, str]:
    if parts.outcome is not None:
        return parts.outcome.reason, parts.outcome.message
    if parts.rounds is None:
        waits_for_shards = bool(parts.setup.shards_waited)
        reason = RunReason.WAITING_FOR_SHARDS if waits_for_shards else RunReason.WAITING_FOR_WORKERS
        return reason, parts.setup.waiting_for()
    if parts.membership.alone:
        names = ", ".join(m.name for m in parts.members if m.awaited)
        return RunReason.WAITING_FOR_WORKERS, f"waiting for a worker to come back: {names}"
    if parts.rounds.policy.end_reason is None:
        where = f"epoch {parts.rounds.epoch + 1} of {parts.rounds.epochs}"
        of = f" of {parts.rounds.planned}" if parts.rounds.planned else ""
        return RunReason.TRAINING, f"{where}, round {parts.rounds.committed}{of}"
    if not parts.saving.model:
        return RunReason.FINISHING, "the model is being saved"
    names = ", ".join(m.name for m in parts.members.present())
    return RunReason.FINISHING, f"waiting for the scripts of {names} to end"
