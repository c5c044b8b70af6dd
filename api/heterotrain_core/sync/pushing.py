"""ASP and SSP: every push is one commit, and starts wait for the bound (algorithms.md D2, D4). Pure.

The blocking rule, on starts: a worker that has completed c iterations may start its next one iff c - least c of all
that take part <= bound. Those take part who have a share in the plan, and whoever still computes. At the end of an
epoch everybody waits for everybody, so all clocks go on from the largest.

Iterations that a worker is behind because of shares that no longer hold are skipped: with shares that all take alike
long it would never make them good, and the others would wait for it for ever with nothing left of their bound. It
catches up with its next gradients, as far as the bound allows beyond the slowest other, until it has.
"""

from __future__ import annotations

import heapq

from heterotrain_core.staleness import make_commit
from heterotrain_core.sync.clocks import Clocks
from heterotrain_core.sync.mode import Bound, Mode, check_done
from heterotrain_core.sync.state import TrainingState
from heterotrain_core.synchronization import Asp, Dssp, Ssp, Synchronization
from heterotrain_core.types import Commit, Grant


class PushMode(Mode):
    """A lowered bound holds for all new starts; it is in force when the gradients that started beyond it are in."""

    def __init__(self, state: TrainingState, settings: Asp | Ssp | Dssp) -> None:
        super().__init__(state)
        self._settings = settings
        self._bound = Bound(settings.bound)
        self._clocks = Clocks()
        self._computing: dict[int, Grant] = {}
        self._arrived: tuple[Grant, bool] | None = None
        """The push to commit next, and whether it was refused."""
        self._idle: set[int] = set()
        self._waiting: list[tuple[int, int]] = []
        """Heap of (clock, worker) of the idle; entries that do not fit any more are skipped."""
        self._to_catch_up: set[int] = set()
        """Workers that computed with shares of an older plan and are behind for it."""
        for worker in state.live:
            self.update(worker)

    @property
    def settings(self) -> Asp | Ssp | Dssp:
        """As last configured."""
        return self._settings

    @property
    def bound_in_force(self) -> int | None:
        """In iterations."""
        return self._bound.in_force

    @property
    def settled(self) -> bool:
        """Nobody computes."""
        return not self._computing and self._arrived is None

    def holds(self, worker: int) -> bool:
        """Computing."""
        return worker in self._computing

    def waiting_for(self) -> list[int]:
        """The slowest, if somebody is blocked by them; at the end of an epoch everybody who computes."""
        if not self._idle:
            return []
        if self._state.cursor.remaining == 0:
            return sorted(self._computing)
        lowest = self._clocks.lowest
        return sorted(w for w in self._computing if self._clocks[w] == lowest)

    def samples_before(self, iteration: int) -> int:
        """Right for the present version: the grants given last are on it."""
        if iteration != self._state.version:
            raise ValueError(f"iteration {iteration} was not granted just now; the version is {self._state.version}")
        return self._state.cursor.committed

    def configure(self, settings: Synchronization) -> None:
        """A wider bound is in force at once."""
        if not isinstance(settings, type(self._settings)):
            raise TypeError(f"{self._settings.mode} cannot take the settings of {settings.mode}")
        self._settings = settings
        bound = settings.bound
        limit = self._limit(bound)
        self._bound.change(bound, [w for w in self._computing if limit is not None and self._clocks[w] > limit])

    def update(self, worker: int) -> None:
        """Take part with a share; without one not even the own clock counts, unless a gradient is still to come."""
        if worker in self._computing:
            return
        if not self._state.able(worker):
            self._out(worker)
        elif worker not in self._idle:
            if worker not in self._clocks:
                self._clocks.enter(worker)
            self._wait(worker)

    def replanned(self) -> None:
        """Whoever computes catches up. The idle wait for others, or for the end of the epoch."""
        self._to_catch_up |= set(self._computing)

    def left(self, worker: int) -> None:
        """Out of the minimum at once."""
        grant = self._computing.pop(worker, None)
        if grant is not None:
            self._state.cursor.give_back(grant.ranges)
        self._bound.gone(worker)
        self._out(worker)

    def done(self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool) -> None:
        """One more iteration completed."""
        grant = check_done(self._state, worker, iteration, self._computing.get(worker), base_version, samples)
        del self._computing[worker]
        self._arrived = grant, refused
        self._bound.gone(worker)
        self._clocks.tick(worker)
        if worker in self._to_catch_up:
            self._catch_up(worker)
        self.update(worker)

    def due(self, now: float, *, timer: bool) -> Commit | None:
        """Whatever has come."""
        if self._arrived is None:
            return None
        (grant, refused), self._arrived = self._arrived, None
        return make_commit(
            self._state.version,
            (grant,),
            (grant.worker,) if refused else (),
            batch=self._state.batch,
            discount=self._settings.discount,
            normalization=self._settings.normalization,
            compensation=self._settings.delay_compensation,
        )

    def open(self, now: float) -> list[Grant]:
        """Work for all who may start, in worker order."""
        if not self._idle or self._state.cursor.remaining == 0:
            return []
        startable = self._startable()
        if not startable:
            return []
        group = sorted(startable)
        limit = self._state.max_rounds
        if limit is not None:
            # Each grant makes one version.
            group = group[: max(0, limit - self._state.version - len(self._computing))]
        grants = self._state.hand_out(group)
        for grant in grants:
            startable.discard(grant.worker)
            self._idle.discard(grant.worker)
            self._computing[grant.worker] = grant
        for worker in startable:
            self._wait(worker)
        return grants

    def epoch_over(self) -> None:
        """Everybody is idle and goes on from the largest clock."""
        self._clocks.align()
        self._to_catch_up.clear()
        self._waiting = [(self._clocks[w], w) for w in sorted(self._idle)]

    def _catch_up(self, worker: int) -> None:
        if self._most_ahead is not None:
            self._clocks.catch_up(worker, self._most_ahead)
        if self._most_ahead is None or self._clocks[worker] == self._clocks.highest:
            self._to_catch_up.discard(worker)

    @property
    def _most_ahead(self) -> int | None:
        """Iterations that every worker may be ahead of the slowest; `None`: any number."""
        return self._settings.bound

    def _startable(self) -> set[int]:
        """Take the idle workers that may start out of the heap."""
        return self._take_waiting(self._limit(self._most_ahead))

    def _take_waiting(self, limit: int | None) -> set[int]:
        """Idle workers with a clock of at most `limit`; `None`: all."""
        heap, idle, clocks = self._waiting, self._idle, self._clocks
        taken: set[int] = set()
        while heap and (limit is None or heap[0][0] <= limit):
            clock, worker = heapq.heappop(heap)
            if worker in idle and clocks[worker] == clock:
                taken.add(worker)
        return taken

    def _limit(self, bound: int | None) -> int | None:
        """Largest clock with which an iteration may be started."""
        return None if bound is None else self._clocks.lowest + bound

    def _wait(self, worker: int) -> None:
        self._idle.add(worker)
        heapq.heappush(self._waiting, (self._clocks[worker], worker))

    def _out(self, worker: int) -> None:
        self._idle.discard(worker)
        self._to_catch_up.discard(worker)
        if worker in self._clocks:
            self._clocks.leave(worker)
