"""Delay synchronisation: rounds that close a window after their first gradient (algorithms.md D7). Pure.

Nobody is interrupted: who is not in when a round closes goes on, and its gradient comes into a later round with
staleness tau >= 1. A round waits longer than its window only for those who would exceed the bound otherwise.
"""

from __future__ import annotations

from collections import deque

from heterotrain_core.staleness import make_commit
from heterotrain_core.sync.gathering import GatheringMode
from heterotrain_core.sync.mode import Bound
from heterotrain_core.sync.state import TrainingState
from heterotrain_core.synchronization import Delay, Synchronization
from heterotrain_core.types import Commit


class DelayMode(GatheringMode):
    """A lowered bound makes the next close wait for all whose gradients are beyond it; then it is in force.

    The limit of rounds is met exactly and loses nothing: the last round waits for everybody who computes.
    """

    def __init__(self, state: TrainingState, settings: Delay) -> None:
        super().__init__(state)
        self._settings = settings
        self._bound = Bound(settings.staleness_bound)
        self._bases = _Bases()

    @property
    def settings(self) -> Delay:
        """As last configured."""
        return self._settings

    @property
    def bound_in_force(self) -> int | None:
        """In rounds."""
        return self._bound.in_force

    @property
    def lockstep(self) -> bool:
        """Without a window or with bound 0, once no older gradient is on its way."""
        settings = self._settings
        return settings.lockstep and (settings.window_seconds is None or self._bound.in_force == 0)

    @property
    def next_timer(self) -> float | None:
        """End of the window, unless the round waits for somebody anyway."""
        window = self._settings.window_seconds
        if window is None or not self._arrived or not self._computing or self._must_wait():
            return None
        return next(iter(self._arrived.values())).seconds + window

    def waiting_for(self) -> list[int]:
        """Those whom the round will not close without; at the end of an epoch everybody who computes."""
        if not self._arrived and not self._idle:
            return []
        if self._settings.window_seconds is None or self._is_last or self._state.cursor.remaining == 0:
            return sorted(self._computing)
        return sorted(w for w, g in self._computing.items() if self._exceeds(g.version))

    def configure(self, settings: Synchronization) -> None:
        """A wider bound is in force at once."""
        if not isinstance(settings, Delay):
            raise TypeError(f"Delay cannot take the settings of {settings.mode}")
        self._settings = settings
        wanted = settings.staleness_bound
        grants = [*self._computing.values(), *(a.grant for a in self._arrived.values())]
        oldest_allowed = self._state.version - wanted if wanted is not None else 0
        self._bound.change(wanted, [g.worker for g in grants if g.version < oldest_allowed])

    def left(self, worker: int) -> None:
        """No round waits for it any more."""
        grant = self._computing.get(worker)
        if grant is not None:
            self._bases.remove(grant.version)
        super().left(worker)
        self._bound.gone(worker)

    def done(self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool) -> None:
        """The first one opens the window."""
        super().done(worker, iteration, base_version, samples, now, refused=refused)
        self._bases.remove(base_version)

    def due(self, now: float, *, timer: bool) -> Commit | None:
        """Close at once when all are in, else only by the timer: arrivals come before a close of the same instant."""
        if not self._computing:
            if self._arrived:
                return self._close()
            lost_round = self.lockstep and self._granted_version == self._state.version
            return self._close() if lost_round else None
        if not timer:
            return None
        end = self.next_timer
        return self._close() if end is not None and now >= end else None

    def _granted(self, count: int) -> None:
        self._bases.add(self._state.version, count)

    def _close(self) -> Commit:
        state, settings = self._state, self._settings
        grants = [a.grant for a in self._arrived.values()]
        # In lock step the denominator is what was granted, which is less than the batch in the ragged last round.
        batch = sum(g.samples for g in grants) if self.lockstep else state.batch
        commit = make_commit(
            state.version,
            grants,
            self._refused,
            batch=batch,
            discount=settings.discount,
            normalization=settings.normalization,
            compensation=settings.delay_compensation,
        )
        able = state.able
        self._idle.update(w for w in self._arrived if able(w))
        self._arrived = {}
        self._refused.clear()
        # Whoever still computes is within the bound wanted: else the round would have waited.
        self._bound.all_in()
        return commit

    def _must_wait(self) -> bool:
        return self._is_last or self._exceeds(self._bases.oldest)

    def _exceeds(self, base_version: int) -> bool:
        """Whether a gradient on this version is too stale for the next round."""
        bound = self._settings.staleness_bound
        return bound is not None and self._state.version + 1 - base_version > bound

    @property
    def _is_last(self) -> bool:
        return self._state.version + 1 == self._state.max_rounds


class _Bases:
    """How many workers compute on which version; versions are added in ascending order."""

    def __init__(self) -> None:
        self._versions: deque[int] = deque()
        self._counts: dict[int, int] = {}

    @property
    def oldest(self) -> int:
        """There must be one."""
        while self._versions[0] not in self._counts:
            self._versions.popleft()
        return self._versions[0]

    def add(self, version: int, count: int) -> None:
        if version not in self._counts:
            self._versions.append(version)
        self._counts[version] = self._counts.get(version, 0) + count

    def remove(self, version: int) -> None:
        left = self._counts[version] - 1
        if left:
            self._counts[version] = left
        else:
            del self._counts[version]
