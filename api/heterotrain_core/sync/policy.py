"""The synchronisation policy: what holds in every mode, around the one `Mode` in force. Pure; no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from heterotrain_core.sync.backup import BackupMode
from heterotrain_core.sync.delay import DelayMode
from heterotrain_core.sync.dssp import DsspMode
from heterotrain_core.sync.lockstep import LockstepMode
from heterotrain_core.sync.mode import Mode
from heterotrain_core.sync.pushing import PushMode
from heterotrain_core.sync.state import Status, TrainingState
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Dssp, Ssp, Synchronization
from heterotrain_core.types import Commit, Decision, EpochEnd, Grant, Plan, SampleSource, TrainingEnd

EPOCHS_OVER = "all epochs are over"
"""Reason of `TrainingEnd` when the script's last epoch is committed; it wins over a stop or limit met at once."""
ROUNDS_OVER = "the limit of rounds is reached"
"""Reason of `TrainingEnd` when `max_rounds` rounds are committed."""
DRAINED = "the worker was drained"
"""Reason of the `TrainingEnd` that follows `Policy.drain`."""


class Policy:
    """The state machine of one training; implements `types.SyncPolicy`. Workers are ordinals; `names`: theirs in plans.

    - No work is given before every expected worker has joined or left. A worker that joins later takes part from the
      next round on, or at once where rounds wait for nobody.
    - The cursor belongs to the policy: it takes, gives back, commits and moves to the next epoch.
    - Workers that ask for work at once when too few samples of the epoch are left share them in proportion to the plan,
      bounds waived; a share of 0 is no grant.
    - An epoch ends, for everybody, when all of its samples are committed.
    - The batch is the sum of the live workers' shares. So when a worker goes, give `on_plan` the derived plan first and
      then call `on_leave` or `drain`, else the others' work goes on without that worker's share.
    - Other bounds of the same mode take effect at once, as the mode says. For another mode everything granted is
      finished first; the new mode then starts fresh.
    """

    def __init__(
        self,
        synchronization: Synchronization,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        *,
        rounds_ahead: int = 1,
        max_rounds: int | None = None,
        version: int = 0,
        least: int = 1,
    ) -> None:
        """Raise `ValueError` for no or doubled names, a plan with unknown ones, or numbers out of range.

        `rounds_ahead` is for BSP. A synchronisation in `plan` wins over `synchronization`. `version`: that of the
        checkpoint that this training goes on from; then `cursor` stands where it stood. `least`: samples of a grant.
        """
        if rounds_ahead < 0:
            raise ValueError(f"rounds_ahead must be at least 0, not {rounds_ahead}")
        self._rounds_ahead = rounds_ahead
        self._state = TrainingState(plan, names, cursor, max_rounds, version, least=least)
        self._mode = self._make_mode(plan.synchronization or synchronization)
        self._next_mode: Synchronization | None = None
        self._plan_round = 0
        self._stop_reason: str | None = None
        # A checkpoint may have been the last epoch's end; the script may have more epochs now.
        self._epochs_over = cursor.remaining == 0 and cursor.outstanding == 0 and not cursor.next_epoch()
        self._end_reason: str | None = None
        self._now = 0.0

    @property
    def version(self) -> int:
        """Version after the last commit decided; equal to the number of rounds committed."""
        return self._state.version

    @property
    def next_round(self) -> int:
        """Where a plan given to `on_plan` now would be in force: no grant from now on names an older version."""
        return self._mode.next_round

    @property
    def plan(self) -> Plan:
        """Newest plan given; grants before `plan_round` keep the shares of older ones."""
        return self._state.plan

    @property
    def plan_round(self) -> int:
        """First round that has the shares of `plan`: `next_round` as it was when `on_plan` was called."""
        return self._plan_round

    @property
    def live(self) -> tuple[int, ...]:
        """Workers that get work from now on, ascending."""
        return self._state.live

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Workers whose gradient others wait for (under BSP: all that the round in progress misses), ascending."""
        return tuple(self._mode.waiting_for())

    @property
    def end_reason(self) -> str | None:
        """Why training is over, `None` while it is not."""
        return self._end_reason

    @property
    def next_timer(self) -> float | None:
        """When to call `on_timer`; it may lie in the past (see `types.SyncPolicy`)."""
        return None if self._end_reason is not None else self._mode.next_timer

    @property
    def synchronization(self) -> Synchronization:
        """The mode in force, with its settings as wanted."""
        return self._mode.settings

    @property
    def synchronization_wanted(self) -> Synchronization:
        """The mode in force, or the one that follows when everything granted is finished."""
        return self._next_mode or self._mode.settings

    @property
    def bound_wanted(self) -> int | None:
        """Staleness bound asked for, in the unit of `synchronization_wanted`; `None`: no bound."""
        return self.synchronization_wanted.bound

    @property
    def bound_in_force(self) -> int | None:
        """What every gradient keeps, in the unit of `synchronization`; wider than wanted while some are beyond."""
        return self._mode.bound_in_force

    @property
    def staleness_histogram(self) -> Mapping[int, int]:
        """Number of gradients applied by their staleness in versions, ascending."""
        return dict(sorted(self._state.staleness.items()))

    @property
    def largest_staleness(self) -> int:
        """Of all gradients applied, in versions; 0 before the first."""
        return max(self._state.staleness, default=0)

    def is_late(self, worker: int) -> bool:
        """Whether what the worker computes now is dropped when it comes."""
        return self._mode.is_late(worker)

    def samples_before(self, iteration: int) -> int:
        """Samples of its epoch committed once the version of the grants of `iteration` exists.

        What a grant's schedule step is computed from; ask when the grant is given. Raises `ValueError` later, except
        under BSP, where it stays fixed while the round is open.
        """
        return self._mode.samples_before(iteration)

    def on_join(self, worker: int, now: float) -> Sequence[Decision]:
        """A worker is ready, for the first time or again; raise `ValueError` if it is there already."""
        if self._state.status_of(worker) in (Status.LIVE, Status.DRAINING):
            raise ValueError(f"worker {self._state.names[worker]} has joined already")
        self._state.set_status(worker, Status.LIVE)
        if self._end_reason is not None:
            return self._dismiss(self._end_reason, (worker,))
        self._mode.update(worker)
        return self._advance(now)

    def add_worker(self, name: str) -> None:
        """Know one more worker, the last in order; it takes part once it joins. Give it a share by a plan first."""
        self._state.add(name)

    def on_leave(self, worker: int, now: float) -> Sequence[Decision]:
        """A worker is gone: out of every round and minimum; its uncommitted samples are handed out again."""
        self._state.status_of(worker)
        self._state.set_status(worker, Status.GONE)
        self._state.dropped = [key for key in self._state.dropped if key[0] != worker]
        self._mode.left(worker)
        return self._advance(now)

    def drain(self, worker: int) -> Sequence[Decision]:
        """Give a worker no more grants; it gets `TrainingEnd` when what it was granted is committed.

        Raises `ValueError` if the worker is not there; does nothing if it is drained or dismissed already.
        """
        match self._state.status_of(worker):
            case Status.EXPECTED | Status.GONE:
                raise ValueError(f"worker {self._state.names[worker]} is not there to be drained")
            case Status.LIVE:
                self._state.set_status(worker, Status.DRAINING)
                self._mode.update(worker)
        return [*self._dismiss_drained(), *self._advance(self._now)]

    def on_done(
        self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool = False
    ) -> Sequence[Decision]:
        """A gradient is complete (or refused) on all shards; raise `ValueError` if it was not granted or came twice."""
        self._state.status_of(worker)
        self._mode.done(worker, iteration, base_version, samples, now, refused=refused)
        # A drained worker whose gradient came too late has nothing that a commit would still bring in.
        return [*self._advance(now), *self._dismiss_drained()]

    def on_timer(self, now: float) -> Sequence[Decision]:
        """Close a round whose window is over; nothing if none is."""
        due = self.next_timer
        if due is None or now < due:
            return ()
        return self._advance(now, timer=True)

    def on_plan(self, plan: Plan, now: float) -> Sequence[Decision]:
        """Use `plan` from `next_round` on; raise `ValueError` if its generation is not newer or a name is unknown.

        A live worker without a share gets no grants. Bounds and sum are not checked here (`plan.check_plan`).
        """
        newest = self._state.plan.generation
        if plan.generation <= newest:
            raise ValueError(f"plan generation {plan.generation} is not newer than {newest}")
        other_shares = plan.samples != self._state.plan.samples
        self._state.set_plan(plan)
        self._plan_round = self._mode.next_round
        for worker in self._state.live:
            self._mode.update(worker)
        if other_shares:
            self._mode.replanned()
        if plan.synchronization is not None:
            self._synchronize(plan.synchronization)
        return self._advance(now)

    def on_synchronization(self, synchronization: Synchronization, now: float) -> Sequence[Decision]:
        """Take other bounds or another mode, as a plan that carries them."""
        self._synchronize(synchronization)
        return self._advance(now)

    def on_stop(self, reason: str, now: float) -> Sequence[Decision]:
        """Give no more work; when what was granted is committed all workers get `TrainingEnd`. First reason wins."""
        if self._stop_reason is None:
            self._stop_reason = reason
        return self._advance(now)

    def _advance(self, now: float, *, timer: bool = False) -> list[Decision]:
        """Commit and open whatever can be, then end the training if it is over."""
        self._now = now
        mode = self._mode
        decisions: list[Decision] = []
        while self._end_reason is None:
            if (commit := mode.due(now, timer=timer)) is not None:
                decisions += self._apply(commit)
            elif grants := self._open(now):
                decisions += grants
            elif mode.settled and (reason := self._due_end()) is not None:
                self._end_reason = reason
                decisions += self._dismiss(reason, self._state.live)
            elif self._next_mode is not None and mode.empty:
                self._mode = mode = self._make_mode(self._next_mode)
                self._next_mode = None
            else:
                break
        return decisions

    def _apply(self, commit: Commit) -> list[Decision]:
        state = self._state
        # Whatever the mode that is in force now: they are on the shards, which must let them go.
        commit = replace(commit, dropped=tuple(state.dropped)) if state.dropped else commit
        state.dropped.clear()
        state.cursor.commit(commit.ranges)
        state.staleness.update([commit.version - c.iteration for c in commit.contributions])
        state.version += 1
        decisions: list[Decision] = [commit, *self._dismiss_drained()]
        if state.cursor.remaining == 0 and state.cursor.outstanding == 0:
            epoch = state.cursor.epoch
            decisions += [EpochEnd(worker, epoch, state.version) for worker in state.live]
            self._epochs_over = not state.cursor.next_epoch()
            self._mode.epoch_over()
        return decisions

    def _open(self, now: float) -> list[Grant]:
        if self._stop_reason is not None or self._next_mode is not None or self._state.awaits_somebody:
            return []
        return self._mode.open(now)

    def _due_end(self) -> str | None:
        if self._epochs_over:
            return EPOCHS_OVER
        if self._stop_reason is not None:
            return self._stop_reason
        limit = self._state.max_rounds
        return ROUNDS_OVER if limit is not None and self._state.version >= limit else None

    def _dismiss_drained(self) -> list[Decision]:
        drained = self._state.of_status(Status.DRAINING)
        if not drained:
            return []
        return self._dismiss(DRAINED, [w for w in drained if not self._mode.holds(w)])

    def _dismiss(self, reason: str, workers: Sequence[int]) -> list[Decision]:
        for worker in workers:
            self._state.set_status(worker, Status.DISMISSED)
        return [TrainingEnd(worker, self._state.version, reason) for worker in workers]

    def _synchronize(self, synchronization: Synchronization) -> None:
        if synchronization.mode is self._mode.settings.mode:
            self._next_mode = None
            self._mode.configure(synchronization)
        else:
            self._next_mode = synchronization

    def _make_mode(self, synchronization: Synchronization) -> Mode:
        match synchronization:
            case Bsp():
                return LockstepMode(self._state, synchronization, self._rounds_ahead)
            case Asp() | Ssp():
                return PushMode(self._state, synchronization)
            case Dssp():
                return DsspMode(self._state, synchronization)
            case Delay():
                return DelayMode(self._state, synchronization)
            case Backup():
                return BackupMode(self._state, synchronization)
            case _:
                raise TypeError(f"not a mode of synchronisation: {synchronization!r}")
