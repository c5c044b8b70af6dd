"""BSP: rounds for all workers at once, some opened ahead (algorithms.md D1). Pure.

Rounds are opened in worker order, so that who gets which samples never depends on the order of arrival. Round r
computes on version r and its commit makes version r + 1. A few rounds are open ahead of the one being computed: their
grants name versions that do not exist yet, and the workers' pulls wait for them.
"""

from __future__ import annotations

from collections import deque

from heterotrain_core.open_round import OpenRound
from heterotrain_core.sync.mode import Mode, check_done, describe
from heterotrain_core.sync.state import TrainingState
from heterotrain_core.synchronization import Bsp
from heterotrain_core.types import Commit, Grant


class LockstepMode(Mode):
    """Open rounds in order, the first one being computed. A round that lost all its workers is committed empty."""

    def __init__(self, state: TrainingState, settings: Bsp, rounds_ahead: int) -> None:
        super().__init__(state)
        self._settings = settings
        self._rounds_ahead = rounds_ahead
        self._rounds: deque[OpenRound] = deque()
        self._next_round = state.version

    @property
    def settings(self) -> Bsp:
        """BSP has none."""
        return self._settings

    @property
    def next_round(self) -> int:
        """First round not yet opened."""
        return self._next_round

    @property
    def settled(self) -> bool:
        """No round is open."""
        return not self._rounds

    def holds(self, worker: int) -> bool:
        """In any open round."""
        return any(worker in r.grants for r in self._rounds)

    def waiting_for(self) -> list[int]:
        """Workers whose gradient the round in progress still misses."""
        return sorted(self._rounds[0].missing) if self._rounds else []

    def samples_before(self, iteration: int) -> int:
        """Fixed when the round is opened, hence the same for all workers (unless somebody is lost)."""
        return self._open_round(iteration).samples_before

    def left(self, worker: int) -> None:
        """Out of every open round, those granted ahead too."""
        for r in self._rounds:
            self._state.cursor.give_back(r.drop(worker))

    def done(self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool) -> None:
        """Of the round in progress only: later ones have no version to compute on."""
        who = describe(self._state, worker, iteration)
        current = self._open_round(iteration)
        grant = current.grants.get(worker)
        if grant is None:
            raise ValueError(f"{who}: was not granted")
        if worker not in current.missing:
            raise ValueError(f"{who}: done was said twice")
        newest = self._state.version
        if iteration != newest:
            raise ValueError(f"{who}: cannot be done before version {iteration} exists; the newest is {newest}")
        check_done(self._state, worker, iteration, grant, base_version, samples)
        current.missing.remove(worker)
        if refused:
            current.refused.add(worker)

    def due(self, now: float, *, timer: bool) -> Commit | None:
        """The first open round once nobody is missing."""
        if not self._rounds or self._rounds[0].missing:
            return None
        return self._rounds.popleft().commit()

    def open(self, now: float) -> list[Grant]:
        """The next round if it is due and there is work and somebody to do it."""
        state, number = self._state, self._next_round
        within_limit = state.max_rounds is None or number < state.max_rounds
        if not within_limit or number > state.version + self._rounds_ahead or state.cursor.remaining == 0:
            return []
        samples_before = state.cursor.committed + state.cursor.outstanding
        grants = state.hand_out_on(number, state.live)
        if grants:
            by_worker = {g.worker: g for g in grants}
            self._rounds.append(OpenRound(number, samples_before, by_worker, set(by_worker)))
            self._next_round += 1
        return grants

    def _open_round(self, iteration: int) -> OpenRound:
        index = iteration - self._state.version
        if not 0 <= index < len(self._rounds):
            raise ValueError(f"iteration {iteration} is not open; open are {[r.number for r in self._rounds]}")
        return self._rounds[index]
