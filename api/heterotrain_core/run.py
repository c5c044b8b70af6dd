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
from heterotrain_core.bsp import EPOCHS_OVER, ROUNDS_OVER
from heterotrain_core.evaluation_desk import EvaluationDesk
from heterotrain_core.event_log import EventLog, printable
from heterotrain_core.members import Member, Members
from heterotrain_core.membership import Membership, again
from heterotrain_core.plan_desk import PlanDesk
from heterotrain_core.progress import Progress
from heterotrain_core.reports import Reports
from heterotrain_core.rounds import Rounds, least_of
from heterotrain_core.run_ends import answer_after_end, fault_of
from heterotrain_core.run_starts import first_progress
from heterotrain_core.run_state import RunView, view_before, view_worker
from heterotrain_core.run_values import Manifest, Outcome, Phase, RunConfig, RunFault, RunReason, WorkerPhase
from heterotrain_core.saving import Saving
from heterotrain_core.setup_stage import Agreed, SetupStage
from heterotrain_core.telemetry import RoundTelemetry
from heterotrain_core.types import Plan

Effects = list[out.Effect]

_STALL_FRACTION = 0.25
"""A timer later than this part of a lease means that the coordinator itself stood still, not the workers."""


class TrainingRun:
    """One term of a job: from the first join to `Finish`. Raises `ValueError` if the start shares are no valid plan.

    `restored`: the checkpoint that it goes on from. `log`: that of the term before, which it continues.
    """

    def __init__(
        self, config: RunConfig, now: float, *, restored: Progress | None = None, log: EventLog | None = None
    ) -> None:
        self._config = config
        self._restored = restored
        self._log = log or EventLog(now)
        self._totals = RoundTelemetry()
        self._members = Members(
            config.workers,
            protocol_version=config.protocol_version,
            lease_seconds=config.lease_seconds,
            rejoins=config.rejoin_limit > 0,
        )
        self._created = now
        self._setup = SetupStage(self._members, config.seed, restored)
        self._plans = PlanDesk(config, self._log, restored)
        self._membership = Membership(config, self._members, self._plans, self._log)
        self._evaluations = EvaluationDesk(self._members, self._totals)
        self._saving = Saving(
            config.model_file, self._log, config.checkpoint, restored.version if restored is not None else None
        )
        self._rounds: Rounds | None = None
        self._stopping: tuple[RunReason, str] | None = None
        self._reports = Reports(self._log, restored.reported if restored is not None else {})
        self._lease_check = math.inf
        self._outcome: Outcome | None = None

    # --- reading --------------------------------------------------------------------------------------------------

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended; `None` while it has not."""
        return self._outcome

    @property
    def log(self) -> EventLog:
        """What was worth telling a person."""
        return self._log

    @property
    def training_began(self) -> bool:
        """Whether a first grant was given."""
        return self._rounds is not None

    @property
    def num_workers(self) -> int:
        """Workers that the job knows, present or not."""
        return len(self._members)

    @property
    def next_timer(self) -> float:
        """When `TimerFired` is due next; infinity: never. O(1): leases are looked at only when one may be over."""
        if self._outcome is not None:
            return math.inf
        limit, began = self._config.stop.seconds, self._totals.began
        window = self._rounds.policy.next_timer if self._rounds is not None else None
        return min(
            self._lease_check,
            self._membership.deadline,
            self._patience_ends,
            self._saving.next_timer if self.phase is Phase.TRAINING else math.inf,
            math.inf if self._plans.deadline is None else self._plans.deadline,
            math.inf if window is None else window,
            math.inf if limit is None or began is None or self._stopping is not None else began + limit,
        )

    @property
    def _patience_ends(self) -> float:
        """When a training that goes on from a checkpoint no longer waits for all workers; infinity: it does."""
        if self._rounds is not None or self._restored is None or not self._config.rejoin_limit:
            return math.inf
        return self._created + self._config.recovery_seconds

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        if self._outcome is not None:
            return self._outcome.phase
        if self._rounds is None:
            return Phase.WAITING
        return Phase.TRAINING if self._rounds.policy.end_reason is None else Phase.FINISHING

    def view(self, now: float) -> RunView:
        """The state for whoever watches. Takes medians: not for every message."""
        reason, message = self._standing()
        rounds, totals = self._rounds, self._totals
        plan = self._plan
        return RunView(
            phase=self.phase,
            reason=reason,
            message=message,
            epoch=rounds.epoch if rounds is not None else 0,
            epochs=next((m.epochs for m in self._members if m.epochs is not None), 0),
            version=rounds.committed if rounds is not None else self._first_version,
            samples=totals.samples,
            dataset_size=self._setup.manifest.dataset_size if self._setup.manifest is not None else 0,
            rounds_planned=rounds.planned if rounds is not None else 0,
            training_seconds=totals.training_seconds(now),
            evaluation_seconds=totals.evaluation_seconds,
            samples_per_second=totals.recent_speed(),
            mean_samples_per_second=totals.mean_speed(now),
            ideal_samples_per_second=sum(m.telemetry.own_speed() for m in self._members.present()),
            round_seconds=totals.round_seconds(),
            workers=tuple(
                view_worker(m, plan.shares.get(m.name), rounds.last_grant(m.ordinal) if rounds is not None else None)
                for m in self._members
            ),
            plan=plan,
            plan_round=rounds.policy.plan_round if rounds is not None else 0,
            synchronization=view_before(self._config.synchronization) if rounds is None else rounds.synchronization(),
            reported=self._reports.values,
            groups=self._members.groups.replicas,
            events=self._log.latest(),
            model=self._saving.model,
            checkpoint_version=self._saving.checkpoint_version,
        )

    # --- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: ev.RunEvent, now: float) -> Effects:
        """Take an event; the effects in order."""
        if self._outcome is not None:
            return answer_after_end(event, self._outcome)
        try:
            return [*self._dispatch(event, now), *self._progress(now)]
        except RunFault as fault:
            return self._fail(fault.reason, str(fault), now)

    def _dispatch(self, event: ev.RunEvent, now: float) -> Effects:  # noqa: PLR0911, PLR0912  # a case an event
        match event:
            case ev.Committed():
                self._totals.committed(self._running().published(event.version), now)
                return []
            case ev.Joined():
                return self._joined(event, now)
            case ev.ShardsWaited() | ev.ShardsConfigured() | ev.InitialPublished() | ev.ShardFailed():
                return self._from_shards(event, now)
            case ev.WorkersSeated():
                return self._membership.seated(event.number, self._rounds)
            case ev.PlanRequested():
                return self._plans.requested(event, self._rounds, ending=self._ending, now=now)
            case ev.TimerFired():
                return self._timer(now)
            case ev.StopCommanded():
                return self._stop(RunReason.STOPPED, event.reason or "stopped on request", now)
            case ev.DrainCommanded():
                return self._plans.drain(event, self._members.get(event.worker), self._rounds, now)
            case ev.ScaleCommanded():
                return self._membership.scale(event, self._rounds, ending=self._ending, now=now)
            case ev.CheckpointCommanded():
                if not self._setup.published:
                    return [out.AnswerCommand(event.request, False, "there are no parameters yet")]
                return self._saving.checkpoint(self._progress_now(now), now, event.request)
            case ev.CheckpointSaved():
                return self._saving.saved(event, now)
            case ev.CheckpointFailed():
                return self._saving.failed(event, now)
            case ev.Exported():
                self._saving.exported(event, now)
                return []
            case ev.ExportFailed():
                raise RunFault(RunReason.SAVE_FAILED, f"the model could not be saved: {event.reason}")
            case ev.Aborted():
                raise RunFault(event.reason, event.message)
            case _:
                member = self._members.get(event.worker)
                if member is None or not member.present:
                    return []  # what an ended session still had under way
                member.last_heard = now
                return self._from_worker(member, event, now)

    def _from_worker(self, member: Member, event: ev.WorkerEvent, now: float) -> Effects:  # noqa: PLR0911, PLR0912
        match event:
            case ev.Done():
                return self._done(member, event, now)
            case ev.Heartbeat():
                return self._heartbeat(member, event)
            case ev.ManifestGiven():
                return self._described(member, event.manifest)
            case ev.InitialValuesPushed():
                return self._setup.values_pushed(member)
            case ev.Started():
                self._setup.started(member, event.epochs)
                if self._rounds is None:
                    return []
                return self._membership.started(member, self._rounds, ending=self._ending, now=now)
            case ev.PlanAnswered():
                return self._plans.answered(event, self._rounds, now)
            case ev.EvaluationCalled():
                return self._evaluations.called(event, self._rounds, self._plan, now)
            case ev.EvaluationPart():
                return self._evaluations.part(event, now)
            case ev.Reported():
                return self._report(member, event.values, now)
            case ev.WorkerFailed():
                if event.lost_shard and self._config.rejoin_limit:
                    # Whether the shard is lost to all is seen from the coordinator.
                    return self._lost(member, f"it lost parameter server {event.lost_shard}", now)
                if event.too_many > 1 and self._config.rejoin_limit and self._rounds is not None:
                    most = self._plans.lower(member.name, event.too_many)
                    what = f"out of memory with {event.too_many} samples at once, from now on at most {most}"
                    return self._lost(member, what, now)
                member.phase, member.error = WorkerPhase.LOST, event.error
                raise fault_of(event)
            case ev.SessionBroken():
                return self._lost(member, event.detail, now)
            case ev.Leaving():
                return self._leaving(member, now)
            case ev.SaidGoodbye():
                return self._goodbye(member, now)

    def _from_shards(
        self, event: ev.ShardsWaited | ev.ShardsConfigured | ev.InitialPublished | ev.ShardFailed, now: float
    ) -> Effects:
        match event:
            case ev.ShardsWaited():
                self._setup.shards_waited = event.shards
                if event.shards:
                    self._log.add(RunReason.WAITING_FOR_SHARDS, f"waiting for {', '.join(event.shards)} to answer", now)
                return []
            case ev.ShardsConfigured():
                return self._setup.configured()
            case ev.InitialPublished():
                self._setup.published = True
                return []
            case ev.ShardFailed():
                reason = RunReason.OPTIMIZER_NOT_SUPPORTED if event.refused else RunReason.SHARD_FAILED
                raise RunFault(reason, f"parameter server {event.shard}: {event.detail}")

    def _progress(self, now: float) -> Effects:
        """What follows from the state, whatever the event was: begin, save, finish."""
        rounds = self._rounds
        if rounds is None:
            agreed = self._setup.agreed(patient=now < self._patience_ends) if self._outcome is None else None
            return self._begin(agreed, now) if agreed is not None else []
        self._membership.note(rounds, now)
        effects: Effects = []
        if (advice := rounds.advice()) is not None:
            self._log.add(RunReason.MOMENTUM_WITH_STALENESS, advice, now, warning=True)
        if rounds.policy.end_reason is not None:
            effects += self._plans.cancel("training is over", now)
        if self._saving.is_due(rounds.policy.version, now) and rounds.policy.end_reason is None:
            effects += self._saving.checkpoint(self._progress_now(now), now)
        if rounds.over:
            self._totals.end(now)
            if self._saving.wants_last(rounds.committed):
                effects += self._saving.checkpoint(self._progress_now(now), now)
            effects += self._saving.final(rounds.committed)
        if self._saving.model and self._saving.idle and not self._members.present():
            effects += self._finish(*self._good_end(rounds), now)
        return effects

    # --- from joining to training ---------------------------------------------------------------------------------

    def _joined(self, event: ev.Joined, now: float) -> Effects:
        member = self._members.join(event, now)
        if isinstance(member, out.RefuseJoin):
            if not member.retry:
                self._log.add(RunReason.JOIN_REFUSED, member.reason, now, warning=True)
            return [member]
        self._lease_check = min(self._lease_check, now + self._config.lease_seconds)
        where = f" from {event.host}" if event.host else ""
        again = " again" if member.losses else ""
        self._log.add(RunReason.WORKER_JOINED, f"worker {member.name} has joined{again}{where}", now)
        welcome = out.Send(member.name, out.Welcome(member.ordinal, member.incarnation, member.spec.bounds))
        if self._rounds is None:
            return [welcome]
        self._evaluations.came(member.name)
        return [welcome, *self._membership.joined(member)]

    def _described(self, member: Member, manifest: Manifest) -> Effects:
        if self._rounds is None:
            return self._setup.manifest_given(member, manifest)
        self._setup.check(member, manifest)
        return self._membership.described(member, self._rounds)

    def _begin(self, agreed: Agreed, now: float) -> Effects:
        restored = self._restored
        ready = set(agreed.names)
        missing = [m for m in self._members if m.name not in ready and m.phase is not WorkerPhase.FINISHED]
        for member in missing:
            self._plans.left_before_training(member)
        least = least_of(self._config, agreed.manifest)
        if least > 1 and self._plans.raise_minimums(least, now):
            self._members.raise_minimums(least, self._config.batch_grain)
        self._rounds = Rounds(self._config, agreed.manifest, agreed.epochs, self._plans.start, restored)
        for member in agreed.workers:
            member.phase = WorkerPhase.TRAINING
        self._totals.begin(now, restored)
        self._saving.begin(now)
        begins = "begins" if restored is None else f"goes on from version {restored.version}"
        self._log.add(RunReason.STARTED, f"training {begins} with {len(agreed.workers)} workers", now)
        effects = self._rounds.begin([m.incarnation if m.name in ready else None for m in self._members], now)
        for member in missing:
            if member.present:
                self._evaluations.came(member.name)
                effects += self._membership.late(member, self._rounds)
        return effects

    # --- training -------------------------------------------------------------------------------------------------

    def _done(self, member: Member, event: ev.Done, now: float) -> Effects:
        effects = self._running().done(member.ordinal, event, now)
        member.telemetry.add(event.samples, event.timings, refused=event.refusal is not None)
        if event.refusal is not None:
            message = f"gradient of worker {member.name} in round {event.iteration} is discarded: {event.refusal}"
            self._log.add(RunReason.GRADIENT_NOT_FINITE, message, now, warning=True)
        self._evaluations.check_not_stuck(self._running())
        return effects

    def _heartbeat(self, member: Member, event: ev.Heartbeat) -> Effects:
        if event.version is not None and self._rounds is not None:
            self._rounds.holds(member.ordinal, event.version)
            self._evaluations.at_epoch_end(member.name)
        return []

    def _report(self, member: Member, values: Mapping[str, float], now: float) -> Effects:
        reached = self._config.stop.reached_by(self._reports.take(member.name, values, now))
        return self._stop(RunReason.TARGET_REACHED, reached, now) if reached and self._rounds is not None else []

    def _stop(self, reason: RunReason, message: str, now: float) -> Effects:
        """End the training early; the first reason wins."""
        if self._rounds is None:
            dismissals = [out.Dismiss(m.name, message, fault=False) for m in self._members.present()]
            return [*dismissals, *self._finish(Phase.STOPPED, reason, f"{message}, before training began", now)]
        if self._stopping is None:
            self._stopping = (reason, message)
        return self._rounds.stop(message, now)

    def _timer(self, now: float) -> Effects:
        effects = self._check_leases(now) if now >= self._lease_check else []
        self._membership.timer(now)
        effects += self._plans.timer(self._rounds, now)
        if self._rounds is not None:
            effects += self._rounds.timer(now)
        limit, began = self._config.stop.seconds, self._totals.began
        if limit is not None and began is not None and now >= began + limit and self._stopping is None:
            effects += self._stop(RunReason.SECONDS_REACHED, f"{limit:g} s of training are over", now)
        return effects

    def _check_leases(self, now: float) -> Effects:
        if now > self._lease_check + self._config.lease_seconds * _STALL_FRACTION:
            # This process stood still: what the workers said meanwhile is still in its sockets.
            for member in self._members.present():
                member.last_heard = now
        effects: Effects = []
        for member in self._members.silent(now):
            effects += self._lost(member, f"silent for {self._config.lease_seconds:g} s", now)
        self._lease_check = self._members.next_lease_end()
        return effects

    def abandon(self, why: str, now: float) -> Effects:
        """The term is over: answers for whoever waits for one. Nothing may be handled after it."""
        return [*self._plans.cancel(why, now), *self._saving.cancel(why)]

    # --- checkpoints ----------------------------------------------------------------------------------------------

    @property
    def _first_version(self) -> int:
        return self._restored.version if self._restored is not None else 0

    def _progress_now(self, now: float) -> Progress:
        if self._rounds is not None:
            totals = self._totals
            return self._rounds.progress(totals.training_seconds(now), totals.evaluation_seconds, self._reports.values)
        return self._restored or first_progress(self._config, self._setup.manifest, self._plans.start)

    # --- leaving and ending ---------------------------------------------------------------------------------------

    @property
    def _plan(self) -> Plan:
        """The newest."""
        return self._rounds.policy.plan if self._rounds is not None else self._plans.start

    @property
    def _ending(self) -> bool:
        """No further rounds will be opened."""
        return self._stopping is not None or (self._rounds is not None and self._rounds.policy.end_reason is not None)

    def _lost(self, member: Member, detail: str, now: float) -> Effects:
        """A worker is gone without a goodbye; the others go on, and it may come back."""
        if member.leaving:
            return self._goodbye(member, now)
        self._membership.count_loss(member, detail)
        self._log.add(RunReason.WORKER_LOST, f"worker {member.name} is lost: {detail}", now, warning=True)
        effects: Effects = [again(member)]
        if self._rounds is None:
            self._setup.lost(member)
        else:
            effects += self._membership.out(member, self._rounds, ending=self._ending, now=now)
            effects.append(self._membership.bar())
        return [*effects, *self._evaluations.lost(member.name, self._rounds, self._plan, now)]

    def _leaving(self, member: Member, now: float) -> Effects:
        """A worker's process was told to end."""
        member.leaving = True
        if self._rounds is None or member.ordinal not in self._rounds.policy.live:
            return []
        return self._plans.leaves(member, self._rounds, now)

    def _goodbye(self, member: Member, now: float) -> Effects:
        if not member.leaving:
            self._evaluations.left(member.name)
        rounds, effects = self._rounds, []
        member.returns = member.leaving and self._members.groups.wants(member.spec)
        member.phase = WorkerPhase.FINISHED
        self._log.add(RunReason.WORKER_FINISHED, f"worker {member.name} has finished", now)
        if rounds is None and member.leaving:
            member.phase = WorkerPhase.ABSENT
            self._setup.lost(member)
        elif rounds is None:
            self._setup.left(member)
            self._plans.left_before_training(member)
        else:
            effects += self._membership.out(member, rounds, ending=self._ending, now=now)
            awaited = any(m.awaited for m in self._members)
            if not rounds.policy.live and rounds.policy.end_reason is None and not awaited:
                effects += self._stop(RunReason.SCRIPTS_ENDED, "all scripts ended before their last epoch", now)
        return [*effects, *self._evaluations.lost(member.name, rounds, self._plan, now)]

    def _good_end(self, rounds: Rounds) -> tuple[Phase, RunReason, str]:
        if rounds.policy.end_reason == EPOCHS_OVER:
            return Phase.SUCCEEDED, RunReason.EPOCHS_COMPLETED, f"all {rounds.epochs} epochs are trained"
        if rounds.policy.end_reason == ROUNDS_OVER:
            return Phase.SUCCEEDED, RunReason.ROUNDS_REACHED, f"the limit of {rounds.committed} rounds is reached"
        reason, message = self._stopping or (RunReason.STOPPED, "stopped on request")
        return (Phase.STOPPED if reason is RunReason.STOPPED else Phase.SUCCEEDED), reason, message

    def _fail(self, reason: RunReason, message: str, now: float) -> Effects:
        dismissals = [out.Dismiss(m.name, message, fault=True) for m in self._members.present()]
        return [*dismissals, *self._finish(Phase.FAILED, reason, message, now)]

    def _finish(self, phase: Phase, reason: RunReason, message: str, now: float) -> Effects:
        effects = [*self._plans.cancel(message, now), *self._saving.cancel(message)]
        self._totals.end(now)
        rounds = self._rounds.committed if self._rounds is not None else 0
        samples, model = self._totals.samples, self._saving.model
        self._outcome = Outcome(phase, reason, printable(message), rounds, samples, self._reports.values, model)
        self._log.add(reason, message, now, warning=phase is Phase.FAILED)
        return [*effects, out.Finish(self._outcome)]

    def _standing(self) -> tuple[RunReason, str]:
        if self._outcome is not None:
            return self._outcome.reason, self._outcome.message
        if self._rounds is None:
            waits_for_shards = bool(self._setup.shards_waited)
            reason = RunReason.WAITING_FOR_SHARDS if waits_for_shards else RunReason.WAITING_FOR_WORKERS
            return reason, self._setup.waiting_for()
        if self._membership.alone:
            names = ", ".join(m.name for m in self._members if m.awaited)
            return RunReason.WAITING_FOR_WORKERS, f"waiting for a worker to come back: {names}"
        if self._rounds.policy.end_reason is None:
            where = f"epoch {self._rounds.epoch + 1} of {self._rounds.epochs}"
            of = f" of {self._rounds.planned}" if self._rounds.planned else ""
            return RunReason.TRAINING, f"{where}, round {self._rounds.committed}{of}"
        if not self._saving.model:
            return RunReason.FINISHING, "the model is being saved"
        names = ", ".join(m.name for m in self._members.present())
        return RunReason.FINISHING, f"waiting for the scripts of {names} to end"

    def _running(self) -> Rounds:
        if self._rounds is None:
            raise RunFault(RunReason.WORKER_FAILED, "protocol broken: work was done before the first grant")
        return self._rounds
