"""What Delay and Backup share: one round that gathers gradients, and workers that compute on it or older ones."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from heterotrain_core.sync.mode import Mode, check_done
from heterotrain_core.sync.state import TrainingState
from heterotrain_core.types import Grant


class Arrival(NamedTuple):
    """A gradient that waits for the close of the round."""

    grant: Grant
    seconds: float
    """When it came."""


class GatheringMode(Mode):
    """Workers are idle, computing, or arrived. Whoever is idle gets work on the present version.

    In lock step an idle worker waits for the next round, as under BSP, and a round that lost everybody is committed
    empty; so that lock step is BSP commit for commit.
    """

    def __init__(self, state: TrainingState) -> None:
        super().__init__(state)
        self._idle = {w for w in state.live if state.able(w)}
        self._computing: dict[int, Grant] = {}
        self._arrived: dict[int, Arrival] = {}
        """In order of arrival."""
        self._refused: set[int] = set()
        self._granted_version = -1
        """Newest version that a grant has named."""

    @property
    @abstractmethod
    def lockstep(self) -> bool:
        """Whether every round waits for everybody."""

    @property
    def next_round(self) -> int:
        """The present version until somebody computes on it in lock step."""
        version = self._state.version
        return version + 1 if self.lockstep and self._granted_version == version else version

    @property
    def settled(self) -> bool:
        """Nobody computes for a commit and nothing has arrived."""
        return not self._computing and not self._arrived

    def holds(self, worker: int) -> bool:
        """Computing, or arrived and not committed."""
        return worker in self._computing or worker in self._arrived

    def samples_before(self, iteration: int) -> int:
        """Right for the present version: the grants given last are on it."""
        if iteration != self._state.version:
            raise ValueError(f"iteration {iteration} was not granted just now; the version is {self._state.version}")
        return self._state.cursor.committed

    def update(self, worker: int) -> None:
        """Put it among the idle, or take it out."""
        if self._state.able(worker) and not self.holds(worker):
            self._idle.add(worker)
        else:
            self._idle.discard(worker)

    def left(self, worker: int) -> None:
        """Out of the round, whether its gradient is in or not."""
        self._idle.discard(worker)
        self._refused.discard(worker)
        grant = self._computing.pop(worker, None)
        if grant is None and worker in self._arrived:
            grant = self._arrived.pop(worker).grant
        if grant is not None:
            self._state.cursor.give_back(grant.ranges)

    def done(self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool) -> None:
        """From computing to arrived."""
        grant = self._computing.get(worker)
        grant = check_done(self._state, worker, iteration, grant, base_version, samples)
        del self._computing[worker]
        self._arrived[worker] = Arrival(grant, now)
        if refused:
            self._refused.add(worker)

    def open(self, now: float) -> list[Grant]:
        """Work for everybody idle, in worker order; in lock step not while a round is in progress."""
        state = self._state
        if not self._idle or state.cursor.remaining == 0 or not self._may_open():
            return []
        grants = state.hand_out(sorted(self._idle))
        for grant in grants:
            self._idle.discard(grant.worker)
            self._computing[grant.worker] = grant
        if grants:
            self._granted_version = state.version
            self._granted(len(grants))
        return grants

    def _granted(self, count: int) -> None:
        """So many grants on the present version were given; the default is for modes that need not know."""
        return

    def _may_open(self) -> bool:
        limit = self._state.max_rounds
        if limit is not None and self._state.version >= limit:
            return False
        return self.settled or not self.lockstep
