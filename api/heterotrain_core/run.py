"""A job's whole life as one pure state machine: joining, agreement on the model, rounds, plans, evaluations, the end.

`TrainingRun.handle(event, now)` takes one event and returns effects in the order in which they must take effect. It
does no I/O and has no clock: the coordinator's shell turns messages into events and effects into calls, and tests
give both by hand. `now` is in seconds, monotonic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.event_log import EventLog
from heterotrain_core.members import Member
from heterotrain_core.progress import Progress
from heterotrain_core.recording import Record
from heterotrain_core.run_ends import answer_after_end, fault_of
from heterotrain_core.run_finish import fail, finish, good_end, stop
from heterotrain_core.run_joining import begin, described, joined
from heterotrain_core.run_leaving import goodbye, leaving, lost
from heterotrain_core.run_parts import RunParts
from heterotrain_core.run_state import RunView
from heterotrain_core.run_values import Outcome, Phase, RunConfig, RunFault, RunReason, WorkerPhase
from heterotrain_core.run_view import view_run

Effects = list[out.Effect]

_STALL_FRACTION = 0.25
"""A timer later than this part of a lease means that the coordinator itself stood still, not the workers."""


class TrainingRun:
    """One term of a job: from the first join to `Finish`. Raises `ValueError` if the start shares are no valid plan.

    `restored`: the checkpoint that it goes on from. `log`: that of the term before, which it continues.
    `record` takes what the synchronisation policy is told, line by line (`heterotrain_core.recording`).
    """

    def __init__(
        self,
        config: RunConfig,
        now: float,
        *,
        restored: Progress | None = None,
        log: EventLog | None = None,
        record: Record | None = None,
    ) -> None:
        self._parts = RunParts(config, now, restored, log, record)

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended; `None` while it has not."""
        return self._parts.outcome

    @property
    def log(self) -> EventLog:
        """What was worth telling a person."""
        return self._parts.log

    @property
    def training_began(self) -> bool:
        """Whether a first grant was given."""
        return self._parts.rounds is not None

    @property
    def num_workers(self) -> int:
        """Workers that the job knows, present or not."""
        return len(self._parts.members)

    @property
    def next_timer(self) -> float:
        """When `TimerFired` is due next; infinity: never. O(1): leases are looked at only when one may be over."""
        parts = self._parts
        if parts.outcome is not None:
            return math.inf
        limit, began = parts.config.stop.seconds, parts.totals.began
        window = parts.rounds.policy.next_timer if parts.rounds is not None else None
        return min(
            parts.lease_check,
            parts.membership.deadline,
            self._patience_ends,
            parts.saving.next_timer if parts.phase is Phase.TRAINING else math.inf,
            math.inf if parts.plans.deadline is None else parts.plans.deadline,
            math.inf if window is None else window,
            math.inf if limit is None or began is None or parts.stopping is not None else began + limit,
        )

    @property
    def _patience_ends(self) -> float:
        """When a training that goes on from a checkpoint no longer waits for all workers; infinity: it does."""
        parts = self._parts
        if parts.rounds is not None or parts.restored is None or not parts.config.rejoin_limit:
            return math.inf
        return parts.created + parts.config.recovery_seconds

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        return self._parts.phase

    def view(self, now: float) -> RunView:
        """The state for whoever watches. Takes medians: not for every message."""
        return view_run(self._parts, now)

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: ev.RunEvent, now: float) -> Effects:
        """Take an event; the effects in order."""
        parts = self._parts
        if parts.outcome is not None:
            return answer_after_end(event, parts.outcome)
        try:
            return [*self._dispatch(event, now), *self._progress(now)]
        except RunFault as fault:
            return fail(parts, fault.reason, str(fault), now)

    def _dispatch(self, event: ev.RunEvent, now: float) -> Effects:  # noqa: PLR0911, PLR0912  # a case an event
        parts = self._parts
        match event:
            case ev.Committed():
                parts.totals.committed(parts.running().published(event.version, now), now)
                return []
            case ev.Joined():
                return joined(parts, event, now)
            case ev.ShardsWaited() | ev.ShardsConfigured() | ev.InitialPublished() | ev.ShardFailed():
                return self._from_shards(event, now)
            case ev.WorkersSeated():
                return parts.membership.seated(event.number, parts.rounds)
            case ev.PlanRequested():
                return parts.plans.requested(event, parts.rounds, ending=parts.ending, now=now)
            case ev.TimerFired():
                return self._timer(now)
            case ev.StopCommanded():
                return stop(parts, RunReason.STOPPED, event.reason or "stopped on request", now)
            case ev.DrainCommanded():
                return parts.plans.drain(event, parts.members.get(event.worker), parts.rounds, now)
            case ev.ScaleCommanded():
                return parts.membership.scale(event, parts.rounds, ending=parts.ending, now=now)
            case ev.CheckpointCommanded():
                if not parts.setup.published:
                    return [out.AnswerCommand(event.request, False, "there are no parameters yet")]
                return parts.saving.checkpoint(parts.progress(now), now, event.request)
            case ev.CheckpointSaved():
                return parts.saving.saved(event, now)
            case ev.CheckpointFailed():
                return parts.saving.failed(event, now)
            case ev.Exported():
                parts.saving.exported(event, now)
                return []
            case ev.ExportFailed():
                raise RunFault(RunReason.SAVE_FAILED, f"the model could not be saved: {event.reason}")
            case ev.Aborted():
                raise RunFault(event.reason, event.message)
            case _:
                member = parts.members.get(event.worker)
                if member is None or not member.present:
                    return []  # what an ended session still had under way
                member.last_heard = now
                return self._from_worker(member, event, now)

    def _from_worker(self, member: Member, event: ev.WorkerEvent, now: float) -> Effects:  # noqa: PLR0911, PLR0912
        parts = self._parts
        match event:
            case ev.Done():
                return self._done(member, event, now)
            case ev.Heartbeat():
                return self._heartbeat(member, event)
            case ev.ManifestGiven():
                return described(parts, member, event.manifest)
            case ev.InitialValuesPushed():
                return parts.setup.values_pushed(member)
            case ev.Started():
                parts.setup.started(member, event.epochs)
                if parts.rounds is None:
                    return []
                return parts.membership.started(member, parts.rounds, ending=parts.ending, now=now)
            case ev.PlanAnswered():
                return parts.plans.answered(event, parts.rounds, now)
            case ev.EvaluationCalled():
                return parts.evaluations.called(event, parts.rounds, parts.plan, now)
            case ev.EvaluationPart():
                return parts.evaluations.part(event, now)
            case ev.Reported():
                return self._report(member, event.values, now)
            case ev.WorkerFailed():
                if event.lost_shard and parts.config.rejoin_limit:
                    # Whether the shard is lost to all is seen from the coordinator.
                    return lost(parts, member, f"it lost parameter server {event.lost_shard}", now)
                if event.too_many > 1 and parts.config.rejoin_limit and parts.rounds is not None:
                    most = parts.plans.lower(member.name, event.too_many)
                    what = f"out of memory with {event.too_many} samples at once, from now on at most {most}"
                    return lost(parts, member, what, now)
                member.phase, member.error = WorkerPhase.LOST, event.error
                raise fault_of(event)
            case ev.SessionBroken():
                return lost(parts, member, event.detail, now)
            case ev.Leaving():
                return leaving(parts, member, now)
            case ev.SaidGoodbye():
                return goodbye(parts, member, now)

    def _from_shards(
        self, event: ev.ShardsWaited | ev.ShardsConfigured | ev.InitialPublished | ev.ShardFailed, now: float
    ) -> Effects:
        parts = self._parts
        match event:
            case ev.ShardsWaited():
                parts.setup.shards_waited = event.shards
                if event.shards:
                    parts.log.add(RunReason.WAITING_FOR_SHARDS, f"waiting for {', '.join(event.shards)} to answer", now)
                return []
            case ev.ShardsConfigured():
                return parts.setup.configured()
            case ev.InitialPublished():
                parts.setup.published = True
                return []
            case ev.ShardFailed():
                reason = RunReason.OPTIMIZER_NOT_SUPPORTED if event.refused else RunReason.SHARD_FAILED
                raise RunFault(reason, f"parameter server {event.shard}: {event.detail}")

    def _progress(self, now: float) -> Effects:
        """What follows from the state, whatever the event was: begin, save, finish."""
        parts = self._parts
        rounds = parts.rounds
        if rounds is None:
            agreed = parts.setup.agreed(patient=now < self._patience_ends) if parts.outcome is None else None
            return begin(parts, agreed, now) if agreed is not None else []
        parts.membership.note(rounds, now)
        effects: Effects = []
        if (advice := rounds.advice()) is not None:
            parts.log.add(RunReason.MOMENTUM_WITH_STALENESS, advice, now, warning=True)
        if rounds.policy.end_reason is not None:
            effects += parts.plans.cancel("training is over", now)
        if parts.saving.is_due(rounds.policy.version, now) and rounds.policy.end_reason is None:
            effects += parts.saving.checkpoint(parts.progress(now), now)
        if rounds.over:
            parts.totals.end(now)
            if parts.saving.wants_last(rounds.committed):
                effects += parts.saving.checkpoint(parts.progress(now), now)
            effects += parts.saving.final(rounds.committed)
        if parts.saving.model and parts.saving.idle and not parts.members.present():
            effects += finish(parts, *good_end(parts, rounds), now)
        return effects

    # --- training -------------------------------------------------------------------------------------------------

    def _done(self, member: Member, event: ev.Done, now: float) -> Effects:
        parts = self._parts
        rounds = parts.running()
        effects = rounds.done(member.ordinal, event, now)
        withheld = rounds.withheld(member.ordinal)
        member.telemetry.add(event.samples, event.timings, now, withheld, refused=event.refusal is not None)
        parts.totals.moved(event.samples, event.traffic)
        parts.plans.held(member.name, event.memory)
        if event.refusal is not None:
            message = f"gradient of worker {member.name} in round {event.iteration} is discarded: {event.refusal}"
            parts.log.add(RunReason.GRADIENT_NOT_FINITE, message, now, warning=True)
        parts.evaluations.check_not_stuck(parts.running())
        return effects

    def _heartbeat(self, member: Member, event: ev.Heartbeat) -> Effects:
        parts = self._parts
        if event.version is not None and parts.rounds is not None:
            parts.rounds.holds(member.ordinal, event.version)
            parts.evaluations.at_epoch_end(member.name)
        return []

    def _report(self, member: Member, values: Mapping[str, float], now: float) -> Effects:
        parts = self._parts
        reached = parts.config.stop.reached_by(parts.reports.take(member.name, values, now))
        return stop(parts, RunReason.TARGET_REACHED, reached, now) if reached and parts.rounds is not None else []

    def _timer(self, now: float) -> Effects:
        parts = self._parts
        effects = self._check_leases(now) if now >= parts.lease_check else []
        parts.membership.timer(now)
        effects += parts.plans.timer(parts.rounds, now)
        if parts.rounds is not None:
            effects += parts.rounds.timer(now)
        limit, began = parts.config.stop.seconds, parts.totals.began
        if limit is not None and began is not None and now >= began + limit and parts.stopping is None:
            effects += stop(parts, RunReason.SECONDS_REACHED, f"{limit:g} s of training are over", now)
        return effects

    def _check_leases(self, now: float) -> Effects:
        parts = self._parts
        if now > parts.lease_check + parts.config.lease_seconds * _STALL_FRACTION:
            # This process stood still: what the workers said meanwhile is still in its sockets.
            for member in parts.members.present():
                member.last_heard = now
        effects: Effects = []
        for member in parts.members.silent(now):
            effects += lost(parts, member, f"silent for {parts.config.lease_seconds:g} s", now)
        parts.lease_check = parts.members.next_lease_end()
        return effects

    def abandon(self, why: str, now: float) -> Effects:
        """The term is over: answers for whoever waits for one. Nothing may be handled after it."""
        return [*self._parts.plans.cancel(why, now), *self._parts.saving.cancel(why)]
