"""The training itself: a policy's decisions as messages and commits, and who still needs which version.

Workers are ordinals here. Raises `RunFault` when a worker does what the protocol or the others do not allow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from heterotrain_core.agreement import RoundSettings, common_absent, settle
from heterotrain_core.cursor import DataCursor
from heterotrain_core.least import round_sizes
from heterotrain_core.progress import Progress
from heterotrain_core.recording import Beginning, Record, make_policy
from heterotrain_core.run_effects import CommitRound, Effect, GradientKey, Send, Work
from heterotrain_core.run_events import Done
from heterotrain_core.run_state import SynchronizationView
from heterotrain_core.run_values import Manifest, RunConfig, RunFault, RunReason
from heterotrain_core.schedule import schedule_step
from heterotrain_core.staleness_watch import StalenessWatch
from heterotrain_core.types import Commit, Decision, EpochEnd, Grant, Plan, TrainingEnd

KEPT_INSTANTS: Final = 64
"""Of the newest versions; older ones have been there for long."""


class _Seat:
    """What one worker holds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = 0
        self.grants: dict[int, Grant] = {}
        """Granted and not done, by iteration."""
        self.last_grant: Grant | None = None
        self.last_named: int | None = None
        """Iteration of what it was told last; `None`: an end, or nothing yet."""
        self.last_done = -1
        self.named: deque[tuple[int, int | None]] = deque()
        """Versions named to it that it may not have pulled yet, in the order of naming; with a grant's iteration."""
        self.dropped = False
        """What it handed in last came too late."""
        self.told_dropped = False
        """It knows, or will, by an item that follows the grant in question."""
        self.ended = False
        """Got `TrainingEnd`."""
        self.sent: dict[int, float] = {}
        """When its grants went out, by iteration, until they are done."""
        self.done_at: float | None = None
        """When its newest done came."""
        self.withheld: float | None = None
        """Seconds that it could not but wait before the iteration that it did last; `None`: that was its first."""


class Rounds:
    """One training from first grant to last commit."""

    def __init__(
        self,
        config: RunConfig,
        manifest: Manifest,
        epochs: int,
        plan: Plan,
        *,
        restored: Progress | None = None,
        record: Record | None = None,
    ) -> None:
        """Begin at the beginning, or where `restored` stands (which fits the manifest).

        `record` takes what the policy is told, line by line.
        """
        self._config = config
        self._manifest = manifest
        self._restored = restored
        self._cursor = _cursor(manifest, epochs, restored)
        self._seats = [_Seat(w.name) for w in config.workers]
        self.committed = restored.version if restored is not None else 0
        """Newest version that all shards have published."""
        beginning = Beginning(
            term=config.term,
            synchronization=config.synchronization,
            plan=plan,
            names=tuple(w.name for w in config.workers),
            dataset_size=manifest.dataset_size,
            epochs=epochs,
            epoch=self._cursor.epoch,
            used=self._cursor.used,
            max_rounds=config.stop.rounds,
            version=self.committed,
            least=least_of(config, manifest),
        )
        self.policy = make_policy(beginning, self._cursor, record)
        self.epochs = epochs
        self._pending_samples: deque[int] = deque()
        self._dones: dict[tuple[int, int], Done] = {}
        self._refused: list[Done] = []
        self._discard: list[GradientKey] = []
        self._published_at: dict[int, float] = {}
        self._watch = StalenessWatch()
        self._settings = RoundSettings(restored.groups if restored is not None else manifest.groups, None)

    @property
    def epoch(self) -> int:
        """Present epoch, from 0."""
        return self._cursor.epoch

    @property
    def planned(self) -> int:
        """Rounds that the epochs come to, unless a limit is lower; 0: not known, since rounds wait for nobody."""
        if not self.policy.synchronization_wanted.lockstep:
            return self._config.stop.rounds or 0
        batch, least = self._config.global_batch_size, least_of(self._config, self._manifest)
        rounds = round_sizes(self._manifest.dataset_size, batch, least)[0] * self.epochs
        return rounds if self._config.stop.rounds is None else min(rounds, self._config.stop.rounds)

    @property
    def over(self) -> bool:
        """Every worker got `TrainingEnd` and everything decided is published."""
        return self.policy.end_reason is not None and self.committed == self.policy.version

    def name_of(self, worker: int) -> str:
        """Of a worker."""
        return self._seats[worker].name

    def last_grant(self, worker: int) -> Grant | None:
        """Newest grant of a worker."""
        return self._seats[worker].last_grant

    def ended(self, worker: int) -> bool:
        """Whether the worker got `TrainingEnd`."""
        return self._seats[worker].ended

    def stuck(self, waiting: frozenset[int], expected: frozenset[int]) -> tuple[int, int] | None:
        """A pair (who waits, whom the round in progress waits for) that can never go on, if there is one.

        `waiting` are workers that do nothing until all `expected` join them (in an evaluation). If the round misses
        only gradients of these, whoever has finished its part of it is inside `optimizer.step()` and cannot come.
        """
        missing = self.policy.waiting_for
        if not missing or not waiting.issuperset(missing):
            return None
        for worker in self.policy.live:
            seat = self._seats[worker]
            # Done in this round, or without a part in it and with nothing left to do.
            idle = seat.last_done in (self.policy.version, seat.last_named)
            if worker in expected and worker not in waiting and idle:
                return worker, missing[0]
        return None

    def begin(self, incarnations: Sequence[int | None], now: float) -> list[Effect]:
        """Open the first rounds for all workers with an incarnation; the others have left, or may join later."""
        effects: list[Effect] = []
        for worker, incarnation in enumerate(incarnations):
            if incarnation is None:
                effects += self._carry_out(self.policy.on_leave(worker, now), now)
        for worker, incarnation in enumerate(incarnations):
            if incarnation is not None:
                self._seats[worker].incarnation = incarnation
                ended = self._restored.ended_epoch if self._restored is not None else None
                if ended is not None:
                    effects += self._carry_out([EpochEnd(worker, ended, self.committed)], now)
                effects += self._carry_out(self.policy.on_join(worker, now), now)
        return effects

    def add(self, name: str) -> None:
        """Know one more worker, the last in order; it may be admitted."""
        self._seats.append(_Seat(name))
        self.policy.add_worker(name)

    def admit(self, worker: int, incarnation: int) -> int:
        """Give a worker's seat to a new incarnation; returns the version to pull, which is kept for it."""
        seat = self._seats[worker] = _Seat(self._seats[worker].name)
        seat.incarnation = incarnation
        version = self.policy.version
        seat.named.append((version, None))
        return version

    def join(self, worker: int, now: float) -> list[Effect]:
        """A worker that was admitted is ready for work."""
        return self._carry_out(self.policy.on_join(worker, now), now)

    def done(self, worker: int, done: Done, now: float) -> list[Effect]:
        """A gradient is complete, or refused, on all shards."""
        seat = self._seats[worker]
        if done.term != self._config.term:
            raise RunFault(
                RunReason.WORKER_FAILED,
                f"worker {seat.name}: done is of term {done.term}, the job is in term {self._config.term}",
            )
        seat.dropped = self.policy.is_late(worker)
        try:
            decisions = self.policy.on_done(
                worker, done.iteration, done.base_version, done.samples, now, refused=done.refusal is not None
            )
        except ValueError as error:
            raise RunFault(RunReason.WORKER_FAILED, f"protocol broken: {error}") from error
        self._note_wait(seat, done.iteration, now)
        seat.grants.pop(done.iteration, None)
        seat.last_done = done.iteration
        # The worker pulls in the order in which it was told: what was named before this grant it has pulled too.
        while seat.named.popleft()[1] != done.iteration:
            pass
        if done.refusal is None:
            self._dones[worker, done.iteration] = done
        else:
            self._refused.append(done)
            self._discard.append(GradientKey(worker, seat.incarnation, done.iteration))
        return self._carry_out(decisions, now)

    def withheld(self, worker: int) -> float | None:
        """Seconds from a worker's last but one done until it had been granted its last iteration and could pull it.

        `None`: it has done one only.
        """
        return self._seats[worker].withheld

    def holds(self, worker: int, version: int) -> None:
        """A worker without a grant holds `version`: no end of an epoch before it will be pulled any more.

        Who computes says so by its next done; who gets no grants (its part of a small epoch is 0) would otherwise have
        a version kept for every epoch.
        """
        named = self._seats[worker].named
        kept = [entry for entry in named if entry[1] is not None or entry[0] > version]
        named.clear()
        named.extend(kept)

    def left(self, worker: int, now: float) -> list[Effect]:
        """A worker is gone; what it pushed and was not committed is discarded."""
        seat = self._seats[worker]
        seat.named.clear()
        if seat.ended:
            return []
        seat.ended = True
        lost = {*seat.grants, *(i for w, i in self._dones if w == worker)}
        self._discard += [GradientKey(worker, seat.incarnation, i) for i in sorted(lost)]
        for iteration in lost:
            self._dones.pop((worker, iteration), None)
        seat.grants.clear()
        return self._carry_out(self.policy.on_leave(worker, now), now)

    def drain(self, worker: int, now: float) -> list[Effect]:
        """No more grants for a worker; give the derived plan to `plan` first."""
        return self._carry_out(self.policy.drain(worker), now)

    def plan(self, plan: Plan, now: float) -> list[Effect]:
        """An agreed or derived plan."""
        return self._carry_out(self.policy.on_plan(plan, now), now)

    def timer(self, now: float) -> list[Effect]:
        """The policy's `next_timer` may have come."""
        return self._carry_out(self.policy.on_timer(now), now)

    def advice(self) -> str | None:
        """A warning about staleness and the optimizer's settings that has not been given yet."""
        return self._watch.advice(self._settings.groups)

    def synchronization(self) -> SynchronizationView:
        """How workers wait for each other now, and how stale gradients have been."""
        policy = self.policy
        return SynchronizationView(
            wanted=policy.synchronization_wanted,
            mode=policy.synchronization.mode,
            bound_in_force=policy.bound_in_force,
            largest_staleness=policy.largest_staleness,
            staleness=policy.staleness_histogram,
        )

    def stop(self, reason: str, now: float) -> list[Effect]:
        """Open no further rounds."""
        return self._carry_out(self.policy.on_stop(reason, now), now)

    def progress(self, training_seconds: float, evaluation_seconds: float, reported: Mapping[str, float]) -> Progress:
        """Where the training stands at the newest decided version; what was granted beyond it is free."""
        return Progress(
            version=self.policy.version,
            epoch=self._cursor.epoch,
            used=self._cursor.used,
            manifest=self._manifest,
            groups=self._settings.groups,
            plan=self.policy.plan,
            synchronization=self.policy.synchronization_wanted,
            global_batch_size=self._config.global_batch_size,
            seed=self._config.seed,
            training_seconds=training_seconds,
            evaluation_seconds=evaluation_seconds,
            reported=dict(reported),
            schedule_step=self._step(self._cursor.epoch, self._cursor.committed),
        )

    def published(self, version: int, now: float) -> int:
        """All shards have published ``version + 1``; returns the samples of that round."""
        if version != self.committed:
            raise RunFault(
                RunReason.SHARD_FAILED, f"a commit of version {version} was answered, {self.committed} is due"
            )
        self.committed = version + 1
        self._published_at[self.committed] = now
        self._published_at.pop(self.committed - KEPT_INSTANTS, None)
        return self._pending_samples.popleft()

    def _carry_out(self, decisions: Sequence[Decision], now: float) -> list[Effect]:
        # Looked up after the policy has decided: the step of an end is the one after the last commit decided.
        return [self._effect(d, now) for d in decisions]

    def _effect(self, decision: Decision, now: float) -> Effect:
        if isinstance(decision, Commit):
            return self._commit(decision)
        seat = self._seats[decision.worker]
        seat.last_named = decision.iteration if isinstance(decision, Grant) else None
        seat.named.append((decision.version, seat.last_named))
        # An end may be told to a worker that is late before it is done: it takes that item next all the same.
        dropped = not seat.told_dropped and (seat.dropped or self.policy.is_late(decision.worker))
        seat.told_dropped = (seat.told_dropped or dropped) and not isinstance(decision, Grant)
        seat.dropped = False
        match decision:
            case Grant():
                seat.sent[decision.iteration] = now
                seat.grants[decision.iteration] = decision
                seat.last_grant = decision
                before = self.policy.samples_before(decision.iteration)
                return Send(seat.name, Work(decision, self._step(decision.ranges[0].epoch, before), dropped))
            case EpochEnd():
                step = self._step(decision.epoch, self._manifest.dataset_size)
                return Send(seat.name, Work(decision, step, dropped))
            case TrainingEnd():
                seat.ended = True
                step = self._step(self._cursor.epoch, self._cursor.committed)
                return Send(seat.name, Work(decision, step, dropped))

    def _note_wait(self, seat: _Seat, iteration: int, now: float) -> None:
        """A worker is done with an iteration: how long it could not have begun it after the one before."""
        sent, grant = seat.sent.pop(iteration, now), seat.grants.get(iteration)
        there = self._published_at.get(grant.version, sent) if grant is not None else sent
        seat.withheld = None if seat.done_at is None else max(0.0, max(sent, there) - seat.done_at)
        seat.done_at = now

    def _step(self, epoch: int, committed: int) -> int:
        return schedule_step(epoch, self._manifest.dataset_size, self._config.global_batch_size, committed)

    def _commit(self, commit: Commit) -> CommitRound:
        dones = [self._dones.pop((c.worker, c.iteration)) for c in commit.contributions]
        for worker, iteration in commit.dropped:
            del self._dones[worker, iteration]
            self._discard.append(GradientKey(worker, self._seats[worker].incarnation, iteration))
        try:
            # A round whose gradients were all refused has settings too: its rate may be logged, its step is empty.
            self._settings = settle(dones or self._refused) if dones or self._refused else self._settings
        except ValueError as error:
            raise RunFault(RunReason.HYPERPARAMETERS_DIFFER, f"round {commit.version}: {error}") from error
        self._watch.note(commit)
        discard, self._discard, self._refused = tuple(self._discard), [], []
        self._pending_samples.append(sum(len(r) for r in commit.ranges))
        return CommitRound(
            version=commit.version,
            contributions=tuple(
                (GradientKey(c.worker, self._seats[c.worker].incarnation, c.iteration), c.weight)
                for c in commit.contributions
            ),
            scale=commit.scale,
            groups=self._settings.groups,
            absent=common_absent(dones),
            retain=self._retained(commit.version),
            clip=self._settings.clip if dones else None,
            discard=discard,
            compensation=commit.compensation,
        )

    def _retained(self, version: int) -> tuple[int, ...]:
        """Versions up to `version` that somebody was told to pull and may not have pulled yet.

        Nobody can be told later to pull one of these or an older version: whatever is named from now on is the newest
        decided version (> `version`) or one to come.
        """
        named = {v for seat in self._seats for v, _ in seat.named}
        return tuple(sorted(v for v in named if v <= version))


def least_of(config: RunConfig, manifest: Manifest) -> int:
    """Samples of a grant that the model needs; a global batch that is smaller is the user's word."""
    return min(manifest.smallest_batch, config.global_batch_size)


def _cursor(manifest: Manifest, epochs: int, restored: Progress | None) -> DataCursor:
    if restored is None:
        return DataCursor(manifest.dataset_size, epochs)
    try:
        return restored.cursor(epochs)
    except ValueError as error:
        raise RunFault(RunReason.SCRIPTS_DIFFER, str(error)) from error
