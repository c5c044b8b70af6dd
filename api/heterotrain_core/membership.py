"""Workers that are lost, come back, leave and are added once training has begun (docs/decisions/0020). Pure."""

from __future__ import annotations

import math

from heterotrain_core.event_log import EventLog
from heterotrain_core.members import Member, Members
from heterotrain_core.plan_desk import PlanDesk
from heterotrain_core.rounds import Rounds
from heterotrain_core.run_effects import (
    AnswerCommand,
    Dismiss,
    Effect,
    GroupsChanged,
    ManifestAccepted,
    SeatWorkers,
    Send,
)
from heterotrain_core.run_events import ScaleCommanded
from heterotrain_core.run_values import RunConfig, RunFault, RunReason, WorkerPhase


class Membership:
    """Who takes part. Raises `RunFault` when the job cannot go on without whom it has lost."""

    def __init__(self, config: RunConfig, members: Members, plans: PlanDesk, log: EventLog) -> None:
        self._config = config
        self._members = members
        self._plans = plans
        self._log = log
        self._seating = 0
        """Number of the newest `SeatWorkers`."""
        self._seated = 0
        self._alone_since: float | None = None
        """Since when nobody takes part, and more is to be done."""

    @property
    def deadline(self) -> float:
        """When somebody must have come back; infinity: somebody is there."""
        return math.inf if self._alone_since is None else self._alone_since + self._config.recovery_seconds

    @property
    def alone(self) -> bool:
        """Nobody takes part, and more is to be done."""
        return self._alone_since is not None

    def note(self, rounds: Rounds, now: float) -> None:
        """Look whether anybody takes part; call it after each event."""
        over = rounds.policy.end_reason is not None
        if over or rounds.policy.live or any(m.phase is WorkerPhase.TRAINING for m in self._members):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now

    def timer(self, now: float) -> None:
        """Nobody has come back in time."""
        if now >= self.deadline:
            names = ", ".join(m.name for m in self._members if m.awaited)
            seconds = f"{self._config.recovery_seconds:g} s"
            message = f"no worker is left, and none has come back within {seconds}; lost are {names}"
            raise RunFault(RunReason.WORKER_LOST, message)

    # --- going ----------------------------------------------------------------------------------------------------

    def count_loss(self, member: Member, detail: str) -> None:
        """A worker is gone without a goodbye. Raises `RunFault` if that was once too often."""
        member.phase, member.error = WorkerPhase.LOST, detail
        member.losses += 1
        limit = self._config.rejoin_limit
        if member.losses > limit:
            often = f" ({member.losses} losses, spec.runPolicy.backoffLimit is {limit})" if limit else ""
            raise RunFault(RunReason.WORKER_LOST, f"worker {member.name} is lost: {detail}{often}")

    def out(self, member: Member, rounds: Rounds, *, ending: bool, now: float) -> list[Effect]:
        """A worker is out of everything: its samples are free, its share is the others'."""
        effects: list[Effect] = []
        if member.ordinal in rounds.policy.live:
            effects += self._plans.left(member, rounds, ending=ending, now=now)
        return [*effects, *rounds.left(member.ordinal, now)]

    def bar(self) -> SeatWorkers:
        """From now on the shards refuse what lost workers push."""
        return self._seat()

    # --- coming ---------------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> list[Effect]:
        """A worker has joined while others are training: its incarnation may push, older ones may not."""
        seat = self._seat()
        member.seat = seat.number
        return [seat]

    def late(self, member: Member, rounds: Rounds) -> list[Effect]:
        """Training has begun without a worker that has joined and was not ready."""
        effects = self.joined(member)
        if member.manifest is not None:
            member.admitted = True  # it was told which version to pull: the one that the others begin with
            rounds.admit(member.ordinal, member.incarnation)
        return effects

    def described(self, member: Member, rounds: Rounds) -> list[Effect]:
        """A late worker has given its model."""
        return self._admit([member], rounds)

    def seated(self, number: int, rounds: Rounds | None) -> list[Effect]:
        """The shards know."""
        self._seated = max(self._seated, number)
        return self._admit(self._members.present(), rounds) if rounds is not None else []

    def started(self, member: Member, rounds: Rounds, *, ending: bool, now: float) -> list[Effect]:
        """A late worker is ready for work."""
        member.phase = WorkerPhase.TRAINING
        effects: list[Effect] = []
        wanted = self._members.groups.wants(member.spec)
        if wanted and not ending:
            speeds = {m.name: m.telemetry.own_speed() for m in self._members}
            groups = {m.name: m.spec.group for m in self._members}
            effects += self._plans.joined(member, rounds, speeds, groups, now)
        effects += rounds.join(member.ordinal, now)
        if not wanted and rounds.policy.end_reason is None:
            effects += self._plans.leaves(member, rounds, now)
        return effects

    def _admit(self, members: list[Member], rounds: Rounds) -> list[Effect]:
        ready = [m for m in members if m.seat and m.manifest is not None and not m.admitted and m.seat <= self._seated]
        effects: list[Effect] = []
        for member in ready:
            member.admitted = True
            version = rounds.admit(member.ordinal, member.incarnation)
            effects.append(Send(member.name, ManifestAccepted(False, version)))
        return effects

    def _seat(self) -> SeatWorkers:
        self._seating += 1
        return SeatWorkers(self._seating, tuple((m.name, m.least_incarnation) for m in self._members))

    # --- scaling --------------------------------------------------------------------------------------------------

    def scale(self, event: ScaleCommanded, rounds: Rounds | None, *, ending: bool, now: float) -> list[Effect]:
        """Let a group have another number of workers."""
        groups = self._members.groups
        why = groups.fault(event.group, event.replicas, self._config.global_batch_size)
        if why is None and (rounds is None or ending):
            why = "training has not begun" if rounds is None else "training is ending"
        if why is not None or rounds is None:
            return [AnswerCommand(event.request, False, why or "")]
        before = groups.replicas[event.group]
        beyond = [m for m in self._members if m.spec.group == event.group and m.name not in
                  groups.names(event.group, event.replicas)]  # fmt: skip
        live = set(rounds.policy.live)
        if live and live <= {m.ordinal for m in beyond}:
            why = "nobody would be left who trains: wait until the others have joined, or stop the job"
            return [AnswerCommand(event.request, False, why)]
        groups.scale(event.group, event.replicas)
        self._expect(event.group, before, event.replicas, rounds)
        effects: list[Effect] = []
        for member in reversed(beyond):
            effects += self._scaled_away(member, rounds, now)
        if before != event.replicas:
            awaited = [m.name for m in self._members if m.spec.group == event.group and m.awaited]
            waiting = f"; waiting for {', '.join(awaited)} to join" if awaited else ""
            message = f"group {event.group} has {event.replicas} workers instead of {before}{waiting}"
            self._log.add(RunReason.WAITING_FOR_WORKERS if awaited else RunReason.WORKER_DRAINED, message, now)
            effects.append(GroupsChanged(groups.replicas))
        return [*effects, AnswerCommand(event.request, True)]

    def _expect(self, group: str, before: int, replicas: int, rounds: Rounds) -> None:
        """Take in the workers that the group did not have."""
        for name in self._members.groups.names(group, replicas)[before:]:
            member = self._members.get(name)
            if member is None:
                member = self._members.add(self._members.groups.spec(group, name))
                self._plans.add(member.spec)
                rounds.add(name)
            elif member.phase is WorkerPhase.FINISHED:
                member.returns = True

    def _scaled_away(self, member: Member, rounds: Rounds, now: float) -> list[Effect]:
        if member.ordinal in rounds.policy.live:
            return self._plans.leaves(member, rounds, now)
        if member.present:
            return []  # it finishes what it was granted, or is told the end as soon as it is ready
        member.phase, member.returns = WorkerPhase.FINISHED, False
        return []


def again(member: Member) -> Dismiss:
    """End the session of a worker that is lost to the job; if it lives, it begins anew."""
    return Dismiss(member.name, f"lost to the job: {member.error}", fault=False, again=True)
