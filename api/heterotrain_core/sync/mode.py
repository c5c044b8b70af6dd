"""What a mode of synchronisation must be able to do, and what several modes share. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from heterotrain_core.sync.state import TrainingState
from heterotrain_core.synchronization import Synchronization
from heterotrain_core.types import Commit, Grant


class Mode(ABC):
    """Decides who starts when and what a commit consists of. Owned by a `Policy`, which asks after every event.

    The policy calls what happened (`update`, `left`, `done`, `configure`), then takes `due` commits and `open`ed grants
    until there are none.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    @property
    @abstractmethod
    def settings(self) -> Synchronization:
        """As last configured."""

    @property
    def bound_wanted(self) -> int | None:
        """Staleness bound as last configured, in the mode's unit; `None`: none."""
        return self.settings.bound

    @property
    def bound_in_force(self) -> int | None:
        """What holds for every gradient not yet committed: wider than wanted until those beyond are in."""
        return self.settings.bound

    def is_late(self, worker: int) -> bool:
        """Whether the gradient that a worker computes will be dropped; the default is for modes that drop none."""
        return False

    @property
    def next_timer(self) -> float | None:
        """When `due` may give a commit without another event."""
        return None

    @property
    def next_round(self) -> int:
        """No grant given from now on names an older version."""
        return self._state.version

    @property
    @abstractmethod
    def settled(self) -> bool:
        """Nothing that was granted waits for its commit."""

    @property
    def empty(self) -> bool:
        """Settled, and nobody computes: another mode may take over."""
        return self.settled

    @abstractmethod
    def holds(self, worker: int) -> bool:
        """Whether a worker has a grant that is not committed or dropped."""

    @abstractmethod
    def waiting_for(self) -> list[int]:
        """Workers without whose gradient somebody idle cannot go on, ascending. O(N)."""

    @abstractmethod
    def samples_before(self, iteration: int) -> int:
        """Samples of its epoch committed once the version of the grants of `iteration` exists."""

    def configure(self, settings: Synchronization) -> None:
        """Take other settings of the same mode; the default is for modes without any."""
        return

    def update(self, worker: int) -> None:
        """A worker's status or share has changed, and it is still there; the default is for modes that look it up."""
        return

    def replanned(self) -> None:
        """Grants given from now on have other shares; the default is for modes where nobody is behind another."""
        return

    @abstractmethod
    def left(self, worker: int) -> None:
        """A worker is gone: give its uncommitted samples back."""

    @abstractmethod
    def done(self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool) -> None:
        """A gradient is in; raises `ValueError` if it was not granted."""

    @abstractmethod
    def due(self, now: float, *, timer: bool) -> Commit | None:
        """The commit of the present version, if it is due; `timer`: all other events of this instant are in."""

    @abstractmethod
    def open(self, now: float) -> list[Grant]:
        """Grants that can be given now."""

    def epoch_over(self) -> None:
        """Every sample of the epoch is committed, and the next one, if any, has begun."""
        return


class Bound:
    """A staleness bound that can be lowered while gradients are beyond it (design §3)."""

    def __init__(self, value: int | None) -> None:
        self.wanted = value
        self.in_force = value
        self._beyond: set[int] = set()

    def change(self, wanted: int | None, beyond: Iterable[int]) -> None:
        """Want another bound; `beyond` are workers with gradients on their way that are staler."""
        self.wanted = wanted
        self._beyond = set(beyond)
        self._settle()

    def gone(self, worker: int) -> None:
        """The gradient of a worker is in, or lost."""
        if self._beyond:
            self._beyond.discard(worker)
            self._settle()

    def all_in(self) -> None:
        """No gradient beyond the bound is on its way."""
        if self._beyond:
            self._beyond.clear()
            self._settle()

    def _settle(self) -> None:
        if not self._beyond:
            self.in_force = self.wanted


def check_done(  # noqa: PLR0917  # the words of a done after what the worker holds
    state: TrainingState, worker: int, iteration: int, grant: Grant | None, base_version: int, samples: int
) -> Grant:
    """Return `grant`, what the worker holds, if a done answers it; raises `ValueError` if not."""
    if grant is None or grant.iteration != iteration:
        raise ValueError(f"{describe(state, worker, iteration)}: was not granted, or done was said twice")
    if base_version != grant.version or samples != grant.samples:
        raise ValueError(
            f"{describe(state, worker, iteration)}: "
            f"was granted version {grant.version} and {grant.samples} samples, "
            f"done says version {base_version} and {samples} samples"
        )
    return grant


def describe(state: TrainingState, worker: int, iteration: int) -> str:
    """For messages."""
    return f"worker {state.names[worker]}, iteration {iteration}"
