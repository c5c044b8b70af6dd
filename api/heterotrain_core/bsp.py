"""Bulk synchronous parallel: every worker of a round computes on the same version (algorithms.md D1). Pure.

Rounds are opened for all workers at once, in worker order, so that who gets which samples never depends on the order
of arrival. Round r computes on version r and its commit makes version r + 1. A few rounds are open ahead of the one
being computed: their grants name versions that do not exist yet, and the workers' pulls wait for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto

from heterotrain_core.open_round import OpenRound
from heterotrain_core.shares import proportional
from heterotrain_core.types import (
    Decision,
    EpochEnd,
    Grant,
    Plan,
    SampleSource,
    TrainingEnd,
)

EPOCHS_OVER = "all epochs are over"
"""Reason of `TrainingEnd` when the script's last epoch is committed; it wins over a stop or limit met at once."""
ROUNDS_OVER = "the limit of rounds is reached"
"""Reason of `TrainingEnd` when `max_rounds` rounds are committed."""
DRAINED = "the worker was drained"
"""Reason of the `TrainingEnd` that follows `BspPolicy.drain`."""


class _Status(Enum):
    EXPECTED = auto()
    """Has not joined; the first round waits for it."""
    LIVE = auto()
    DRAINING = auto()
    """Finishes its grants, gets no new ones."""
    DISMISSED = auto()
    """Got `TrainingEnd`."""
    GONE = auto()


class BspPolicy:
    """The BSP state machine; implements `types.SyncPolicy`. Workers are ordinals; `names` has their names in the plan.

    - No round is opened before every expected worker has joined or left; then `rounds_ahead` rounds beyond the one
      being computed are kept open. A worker that joins later takes part from the next opened round.
    - The cursor belongs to the policy: it takes, gives back, commits and moves to the next epoch.
    - The last round of an epoch shares what is left in proportion to the plan, bounds waived; a share of 0 is no grant.
    - A round that has lost all its workers is committed without contributions (scale 0): versions stay in order.
    - The round's size is the sum of the live workers' shares. So when a worker goes, give `on_plan` the derived plan
      first and then call `on_leave` or `drain`, else the next round is opened without that worker's share.
    """

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        *,
        rounds_ahead: int = 1,
        max_rounds: int | None = None,
    ) -> None:
        """Raise `ValueError` for no or doubled names, a plan with unknown ones, or numbers out of range."""
        if not names or len(set(names)) != len(names):
            raise ValueError(f"names must be unique and at least one, not {list(names)}")
        if rounds_ahead < 0:
            raise ValueError(f"rounds_ahead must be at least 0, not {rounds_ahead}")
        if max_rounds is not None and max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1 or None, not {max_rounds}")
        self._names = tuple(names)
        self._cursor = cursor
        self._rounds_ahead = rounds_ahead
        self._max_rounds = max_rounds
        self._check_names(plan)
        self._plan = plan
        self._plan_round = 0
        self._status = [_Status.EXPECTED] * len(names)
        self._rounds: deque[OpenRound] = deque()
        self._version = 0
        self._next_round = 0
        self._stop_reason: str | None = None
        self._epochs_over = False
        self._end_reason: str | None = None

    @property
    def version(self) -> int:
        """Version after the last commit decided; equal to the number of rounds committed."""
        return self._version

    @property
    def next_round(self) -> int:
        """First round not yet opened: where a plan given to `on_plan` now would be in force."""
        return self._next_round

    @property
    def plan(self) -> Plan:
        """Newest plan given; rounds opened before `plan_round` keep the shares of older ones."""
        return self._plan

    @property
    def plan_round(self) -> int:
        """First round that has the shares of `plan`: `next_round` as it was when `on_plan` was called."""
        return self._plan_round

    @property
    def live(self) -> tuple[int, ...]:
        """Workers that take part in rounds opened from now on, ascending."""
        return self._of_status(_Status.LIVE)

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Workers whose gradient the round in progress still misses, ascending."""
        return tuple(sorted(self._rounds[0].missing)) if self._rounds else ()

    @property
    def end_reason(self) -> str | None:
        """Why training is over, `None` while it is not."""
        return self._end_reason

    @property
    def next_timer(self) -> float | None:
        """BSP has no timers."""
        return None

    def samples_before(self, iteration: int) -> int:
        """Samples of its epoch committed once the version of open round `iteration` exists (unless somebody is lost).

        What a grant's schedule step is computed from; fixed when the round is opened, hence the same for all workers.
        """
        return self._open_round(iteration).samples_before

    def on_join(self, worker: int, now: float) -> Sequence[Decision]:
        """A worker is ready; raise `ValueError` if it is there already."""
        if self._status_of(worker) not in (_Status.EXPECTED, _Status.GONE):
            raise ValueError(f"worker {self._names[worker]} has joined already")
        self._status[worker] = _Status.LIVE
        return self._dismiss(self._end_reason, (worker,)) if self._end_reason is not None else self._advance()

    def on_leave(self, worker: int, now: float) -> Sequence[Decision]:
        """A worker is gone: out of every open round, those granted ahead too; its samples are handed out again."""
        self._status_of(worker)
        self._status[worker] = _Status.GONE
        for r in self._rounds:
            self._cursor.give_back(r.drop(worker))
        return self._advance()

    def drain(self, worker: int) -> Sequence[Decision]:
        """Give a worker no more grants; it gets `TrainingEnd` when what it was granted is committed.

        Raises `ValueError` if the worker is not there; does nothing if it is drained or dismissed already.
        """
        match self._status_of(worker):
            case _Status.EXPECTED | _Status.GONE:
                raise ValueError(f"worker {self._names[worker]} is not there to be drained")
            case _Status.LIVE:
                self._status[worker] = _Status.DRAINING
        return [*self._dismiss_drained(), *self._advance()]

    def on_done(
        self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool = False
    ) -> Sequence[Decision]:
        """A gradient is complete (or refused) on all shards; raise `ValueError` if it was not granted or came twice."""
        self._status_of(worker)
        who = f"worker {self._names[worker]}, iteration {iteration}"
        current = self._open_round(iteration)
        grant = current.grants.get(worker)
        if grant is None:
            raise ValueError(f"{who}: was not granted")
        if worker not in current.missing:
            raise ValueError(f"{who}: done was said twice")
        if iteration != self._version:
            raise ValueError(f"{who}: cannot be done before version {iteration} exists; the newest is {self._version}")
        if (base_version, samples) != (grant.version, grant.samples):
            raise ValueError(
                f"{who}: was granted version {grant.version} and {grant.samples} samples, "
                f"done says version {base_version} and {samples} samples"
            )
        current.missing.remove(worker)
        if refused:
            current.refused.add(worker)
        return self._advance()

    def on_timer(self, now: float) -> Sequence[Decision]:
        """Nothing: BSP has no timers."""
        return ()

    def on_plan(self, plan: Plan, now: float) -> Sequence[Decision]:
        """Use `plan` from `next_round` on; raise `ValueError` if its generation is not newer or a name is unknown.

        A live worker without a share gets no grants. Bounds and sum are not checked here (`plan.check_plan`).
        """
        if plan.generation <= self._plan.generation:
            raise ValueError(f"plan generation {plan.generation} is not newer than {self._plan.generation}")
        self._check_names(plan)
        self._plan = plan
        self._plan_round = self._next_round
        return self._advance()

    def on_stop(self, reason: str, now: float) -> Sequence[Decision]:
        """Open no further rounds; when the open ones are committed all workers get `TrainingEnd`. First reason wins."""
        if self._stop_reason is None:
            self._stop_reason = reason
        return self._advance()

    def _advance(self) -> list[Decision]:
        """Commit and open whatever can be, then end the training if it is over."""
        decisions: list[Decision] = []
        while self._end_reason is None:
            if self._rounds and not self._rounds[0].missing:
                decisions += self._commit()
            elif grants := self._open():
                decisions += grants
            elif not self._rounds and (reason := self._due_end()) is not None:
                self._end_reason = reason
                decisions += self._dismiss(reason, self.live)
            else:
                break
        return decisions

    def _commit(self) -> list[Decision]:
        commit = self._rounds.popleft().commit()
        self._cursor.commit(commit.ranges)
        self._version += 1
        decisions: list[Decision] = [commit, *self._dismiss_drained()]
        if self._cursor.remaining == 0 and self._cursor.outstanding == 0:
            epoch = self._cursor.epoch
            decisions += [EpochEnd(worker, epoch, self._version) for worker in self.live]
            self._epochs_over = not self._cursor.next_epoch()
        return decisions

    def _open(self) -> list[Grant]:
        """Open the next round if it is due and there is work and somebody to do it; returns its grants."""
        within_limit = self._max_rounds is None or self._next_round < self._max_rounds
        due = self._next_round <= self._version + self._rounds_ahead
        if _Status.EXPECTED in self._status or self._stop_reason is not None or not (within_limit and due):
            return []
        shares = {w: s for w in self.live if (s := self._plan.shares.get(self._names[w])) and s.samples > 0}
        amounts = [s.samples for s in shares.values()]
        if not amounts or self._cursor.remaining == 0:
            return []
        if sum(amounts) > self._cursor.remaining:
            amounts = proportional(amounts, self._cursor.remaining)
        number = self._next_round
        samples_before = self._cursor.committed + self._cursor.outstanding
        grants = {
            worker: Grant(worker, number, number, self._cursor.take(n), share.micro_batch, self._plan.generation)
            for (worker, share), n in zip(shares.items(), amounts, strict=True)
            if n > 0
        }
        self._rounds.append(OpenRound(number, samples_before, grants, set(grants)))
        self._next_round += 1
        return list(grants.values())

    def _due_end(self) -> str | None:
        if self._epochs_over:
            return EPOCHS_OVER
        if self._stop_reason is not None:
            return self._stop_reason
        return ROUNDS_OVER if self._version == self._max_rounds else None

    def _dismiss_drained(self) -> list[Decision]:
        busy = {worker for r in self._rounds for worker in r.grants}
        return self._dismiss(DRAINED, [w for w in self._of_status(_Status.DRAINING) if w not in busy])

    def _dismiss(self, reason: str, workers: Sequence[int]) -> list[Decision]:
        for worker in workers:
            self._status[worker] = _Status.DISMISSED
        return [TrainingEnd(worker, self._version, reason) for worker in workers]

    def _open_round(self, iteration: int) -> OpenRound:
        index = iteration - self._version
        if not 0 <= index < len(self._rounds):
            raise ValueError(f"iteration {iteration} is not open; open are {[r.number for r in self._rounds]}")
        return self._rounds[index]

    def _status_of(self, worker: int) -> _Status:
        if not 0 <= worker < len(self._names):
            raise ValueError(f"worker {worker} is unknown: there are {len(self._names)}")
        return self._status[worker]

    def _of_status(self, status: _Status) -> tuple[int, ...]:
        return tuple(worker for worker, s in enumerate(self._status) if s is status)

    def _check_names(self, plan: Plan) -> None:
        unknown = sorted(set(plan.shares) - set(self._names))
        if unknown:
            raise ValueError(f"plan {plan.generation} names unknown workers: {', '.join(unknown)}")
