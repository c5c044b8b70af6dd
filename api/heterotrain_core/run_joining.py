"""From joining to the first grants. Pure but for the parts that it changes."""

from __future__ import annotations

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.members import Member
from heterotrain_core.rounds import Rounds, least_of
from heterotrain_core.run_parts import RunParts
from heterotrain_core.run_values import Manifest, RunReason, WorkerPhase
from heterotrain_core.setup_stage import Agreed

Effects = list[out.Effect]


def joined(parts: RunParts, event: ev.Joined, now: float) -> Effects:
    """Somebody wants to join."""
    member = parts.members.join(event, now)
    if isinstance(member, out.RefuseJoin):
        if not member.retry:
            parts.log.add(RunReason.JOIN_REFUSED, member.reason, now, warning=True)
        return [member]
    parts.lease_check = min(parts.lease_check, now + parts.config.lease_seconds)
    where = f" from {event.host}" if event.host else ""
    again = " again" if member.losses else ""
    parts.log.add(RunReason.WORKER_JOINED, f"worker {member.name} has joined{again}{where}", now)
    welcome = out.Send(member.name, out.Welcome(member.ordinal, member.incarnation, member.spec.bounds))
    if parts.rounds is None:
        return [welcome]
    parts.evaluations.came(member.name)
    return [welcome, *parts.membership.joined(member)]


def described(parts: RunParts, member: Member, manifest: Manifest) -> Effects:
    """A worker gives its model."""
    if parts.rounds is None:
        return parts.setup.manifest_given(member, manifest)
    parts.setup.check(member, manifest)
    return parts.membership.described(member, parts.rounds)


def begin(parts: RunParts, agreed: Agreed, now: float) -> Effects:
    """The first rounds, once all agree."""
    restored = parts.restored
    ready = set(agreed.names)
    missing = [m for m in parts.members if m.name not in ready and m.phase is not WorkerPhase.FINISHED]
    for member in missing:
        parts.plans.left_before_training(member)
    least = least_of(parts.config, agreed.manifest)
    if least > 1 and parts.plans.raise_minimums(least, now):
        parts.members.raise_minimums(least, parts.config.batch_grain)
    parts.rounds = Rounds(
        parts.config, agreed.manifest, agreed.epochs, parts.plans.start, restored=restored, record=parts.record
    )
    for member in agreed.workers:
        member.phase = WorkerPhase.TRAINING
    parts.totals.begin(now, restored)
    parts.saving.begin(now)
    begins = "begins" if restored is None else f"goes on from version {restored.version}"
    parts.log.add(RunReason.STARTED, f"training {begins} with {len(agreed.workers)} workers", now)
    effects = parts.rounds.begin([m.incarnation if m.name in ready else None for m in parts.members], now)
    for member in missing:
        if member.present:
            parts.evaluations.came(member.name)
            effects += parts.membership.late(member, parts.rounds)
    return effects
