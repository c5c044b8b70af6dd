"""Backup workers: a round takes the first gradients, the rest is dropped (Chen et al. 2016, algorithms.md D6). Pure.

Late workers go on undisturbed; their gradients are recognised by their version and dropped when they come, but their
samples are handed out again as soon as the round closes without them. So data of persistent stragglers are not lost.
"""

from __future__ import annotations

from heterotrain_core.staleness import make_commit
from heterotrain_core.sync.gathering import GatheringMode
from heterotrain_core.sync.mode import check_done
from heterotrain_core.sync.state import TrainingState
from heterotrain_core.synchronization import Backup, Synchronization
from heterotrain_core.types import Commit, Grant


class BackupMode(GatheringMode):
    """With k backup workers a round closes, with at least one gradient, as soon as it leaves at most k workers behind.

    It closes earlier if nobody else computes for it: at the end of an epoch there is no work for all. The denominator
    is what the gathered gradients were granted.
    """

    def __init__(self, state: TrainingState, settings: Backup) -> None:
        super().__init__(state)
        self._settings = settings
        self._late: dict[int, Grant] = {}
        """Computing for a round that closed without them; their samples are given back."""

    @property
    def settings(self) -> Backup:
        """As last configured."""
        return self._settings

    @property
    def lockstep(self) -> bool:
        """Without backup workers."""
        return self._settings.workers == 0

    @property
    def empty(self) -> bool:
        """Late workers are in too."""
        return self.settled and not self._late

    def holds(self, worker: int) -> bool:
        """Late ones as well: they have not said done."""
        return super().holds(worker) or worker in self._late

    def is_late(self, worker: int) -> bool:
        """Its round has closed without it."""
        return worker in self._late

    def waiting_for(self) -> list[int]:
        """All who compute for the round, as any of them may be needed; none while nobody waits."""
        return sorted(self._computing) if self._arrived or self._idle else []

    def configure(self, settings: Synchronization) -> None:
        """Another number of backup workers, from the round in progress on."""
        if not isinstance(settings, Backup):
            raise TypeError(f"Backup cannot take the settings of {settings.mode}")
        self._settings = settings

    def left(self, worker: int) -> None:
        """The samples of a late one are given back already."""
        self._late.pop(worker, None)
        super().left(worker)

    def done(self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool) -> None:
        """A late gradient is dropped, and its worker starts afresh."""
        late = self._late.get(worker)
        if late is None:
            super().done(worker, iteration, base_version, samples, now, refused=refused)
            return
        check_done(self._state, worker, iteration, late, base_version, samples)
        del self._late[worker]
        if not refused:
            self._state.dropped.append((worker, iteration))
        self.update(worker)

    def due(self, now: float, *, timer: bool) -> Commit | None:
        """Once enough are in, or nobody else can be."""
        if not self._arrived:
            lost_round = self.lockstep and self.settled and self._granted_version == self._state.version
            return self._close() if lost_round else None
        behind = len(self._computing) + len(self._late)
        return self._close() if not self._computing or behind <= self._settings.workers else None

    def _close(self) -> Commit:
        state = self._state
        grants = [a.grant for a in self._arrived.values()]
        commit = make_commit(
            state.version,
            grants,
            self._refused,
            batch=sum(g.samples for g in grants),
        )
        for grant in self._computing.values():
            state.cursor.give_back(grant.ranges)
        self._late.update(self._computing)
        self._computing = {}
        self._idle.update(w for w in self._arrived if state.able(w))
        self._arrived = {}
        self._refused.clear()
        return commit
