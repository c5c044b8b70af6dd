"""Workers that leave a job or are lost to it, before and in training. Pure but for the parts that it changes."""

from __future__ import annotations

from heterotrain_core import run_effects as out
from heterotrain_core.members import Member
from heterotrain_core.membership import again
from heterotrain_core.run_finish import stop
from heterotrain_core.run_parts import RunParts
from heterotrain_core.run_values import RunReason, WorkerPhase

Effects = list[out.Effect]


def lost(parts: RunParts, member: Member, detail: str, now: float) -> Effects:
    """A worker is gone without a goodbye; the others go on, and it may come back."""
    if member.leaving:
        return goodbye(parts, member, now)
    parts.membership.count_loss(member, detail)
    parts.log.add(RunReason.WORKER_LOST, f"worker {member.name} is lost: {detail}", now, warning=True)
    effects: Effects = [again(member)]
    if parts.rounds is None:
        effects += _lost_before_training(parts, member)
    else:
        effects += parts.membership.out(member, parts.rounds, ending=parts.ending, now=now)
        effects.append(parts.membership.bar())
    return [*effects, *parts.evaluations.lost(member.name, parts.rounds, parts.plan, now)]


def leaving(parts: RunParts, member: Member, now: float) -> Effects:
    """A worker's process was told to end."""
    member.leaving = True
    if parts.rounds is None or member.ordinal not in parts.rounds.policy.live:
        return []
    return parts.plans.leaves(member, parts.rounds, now)


def goodbye(parts: RunParts, member: Member, now: float) -> Effects:
    """A worker's script is over, or its process was told to end and does."""
    if not member.leaving:
        parts.evaluations.left(member.name)
    rounds = parts.rounds
    effects: Effects = []
    member.returns = member.leaving and parts.members.groups.wants(member.spec)
    member.phase = WorkerPhase.FINISHED
    parts.log.add(RunReason.WORKER_FINISHED, f"worker {member.name} has finished", now)
    if rounds is None and member.leaving:
        member.phase = WorkerPhase.ABSENT
        effects += _lost_before_training(parts, member)
    elif rounds is None:
        parts.setup.left(member)
        parts.plans.left_before_training(member)
    else:
        effects += parts.membership.out(member, rounds, ending=parts.ending, now=now)
        awaited = any(m.awaited for m in parts.members)
        if not rounds.policy.live and rounds.policy.end_reason is None and not awaited:
            effects += stop(parts, RunReason.SCRIPTS_ENDED, "all scripts ended before their last epoch", now)
    return [*effects, *parts.evaluations.lost(member.name, rounds, parts.plan, now)]


def _lost_before_training(parts: RunParts, member: Member) -> Effects:
    """It may have pushed initial values to some shards: another worker's must be the ones on all of them."""
    parts.setup.lost(member)
    return [parts.membership.bar()] if parts.setup.manifest is not None else []
