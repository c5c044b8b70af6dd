"""What all modes share and what outlives a change of mode: who is there, the plan, the data cursor, the version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import IntEnum, auto

from heterotrain_core.cursor import split_ranges
from heterotrain_core.least import amounts
from heterotrain_core.types import Grant, Plan, SampleSource


class Status(IntEnum):
    """Where a worker stands."""

    EXPECTED = auto()
    """Has not joined; the first work waits for it."""
    LIVE = auto()
    DRAINING = auto()
    """Finishes its grants, gets no new ones."""
    DISMISSED = auto()
    """Got `TrainingEnd`."""
    GONE = auto()


class TrainingState:
    """Workers are ordinals; `names` has their names in the plan. Changed by the policy that owns it, and its modes."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        max_rounds: int | None = None,
        version: int = 0,
        *,
        least: int = 1,
    ) -> None:
        """`least`: samples that every grant must have (see `least`).

        Raise `ValueError` for no or doubled names, a plan with unknown ones, or a limit below 1.
        """
        if not names or len(set(names)) != len(names):
            raise ValueError(f"names must be unique and at least one, not {list(names)}")
        if max_rounds is not None and max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1 or None, not {max_rounds}")
        self.names = list(names)
        self.cursor = cursor
        self.max_rounds = max_rounds
        self.version = version
        self._least = least
        self.staleness: Counter[int] = Counter()
        """Number of applied gradients by staleness in versions."""
        self.dropped: list[tuple[int, int]] = []
        """Worker and iteration of gradients that came too late, and that no commit has named yet."""
        self._ordinals = {name: worker for worker, name in enumerate(names)}
        self._status = [Status.EXPECTED] * len(names)
        self._members: dict[Status, set[int]] = {status: set() for status in Status}
        self._members[Status.EXPECTED].update(range(len(names)))
        self._num_expected = len(names)
        self._live: tuple[int, ...] | None = ()
        self._planned = [0] * len(names)
        self._micro_batches: list[int | None] = [None] * len(names)
        self._batch = 0
        self._last_batch = 0
        self.set_plan(plan)

    @property
    def plan(self) -> Plan:
        """Newest plan given."""
        return self._plan

    @property
    def live(self) -> tuple[int, ...]:
        """Workers that may get work, ascending."""
        if self._live is None:
            self._live = self.of_status(Status.LIVE)
        return self._live

    @property
    def awaits_somebody(self) -> bool:
        """Somebody expected has neither joined nor left."""
        return self._num_expected > 0

    @property
    def batch(self) -> int:
        """Samples that all able workers have together in the plan; what it last was, once nobody is able any more."""
        return self._last_batch

    def able(self, worker: int) -> bool:
        """Live, with a share in the plan."""
        return self._status[worker] is Status.LIVE and self._planned[worker] > 0

    def status_of(self, worker: int) -> Status:
        """Raise `ValueError` for an unknown worker."""
        if not 0 <= worker < len(self.names):
            raise ValueError(f"worker {worker} is unknown: there are {len(self.names)}")
        return self._status[worker]

    def of_status(self, status: Status) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted(self._members[status]))

    def set_status(self, worker: int, status: Status) -> None:
        """Move a worker."""
        before = self._status[worker]
        self._members[before].discard(worker)
        self._members[status].add(worker)
        self._status[worker] = status
        self._num_expected = len(self._members[Status.EXPECTED])
        if Status.LIVE in (before, status):
            self._live = None
        amount = self._planned[worker]
        self._count(amount, (status is Status.LIVE) - (before is Status.LIVE))

    def add(self, name: str) -> None:
        """Know one more worker, the last in the order of summation; raise `ValueError` if the name is known.

        Nobody waits for it: it is as if it had left before.
        """
        if name in self._ordinals:
            raise ValueError(f"worker {name} is known already")
        worker = self._ordinals[name] = len(self.names)
        self.names.append(name)
        self._status.append(Status.GONE)
        self._members[Status.GONE].add(worker)
        self._planned.append(0)
        self._micro_batches.append(None)

    def set_plan(self, plan: Plan) -> None:
        """Use the shares of `plan` from now on; raise `ValueError` (and change nothing) if it names strangers."""
        unknown = sorted(set(plan.shares) - set(self.names))
        if unknown:
            raise ValueError(f"plan {plan.generation} names unknown workers: {', '.join(unknown)}")
        self._plan = plan
        self._planned = [0] * len(self.names)
        self._micro_batches = [None] * len(self.names)
        for name, share in plan.shares.items():
            worker = self._ordinals[name]
            self._planned[worker] = max(0, share.samples)
            self._micro_batches[worker] = share.micro_batch
        self._batch = 0
        for worker in self._members[Status.LIVE]:
            self._count(self._planned[worker], 1)

    def hand_out(self, workers: Iterable[int]) -> list[Grant]:
        """Grants on the present version for `workers`, who ask at once, ascending; see `hand_out_on`."""
        return self.hand_out_on(self.version, workers)

    def hand_out_on(self, version: int, workers: Iterable[int]) -> list[Grant]:
        """Take samples for all `workers` that are able. Too few are shared out in proportion, bounds waived.

        Nobody gets fewer than a model needs at once (`least.amounts`). Who then gets none has no grant.
        """
        asking = [w for w in workers if self.able(w)]
        counts = amounts([self._planned[w] for w in asking], self.cursor.remaining, self._least)
        total = sum(counts)
        if total == 0:
            return []
        micro_batches, generation = self._micro_batches, self._plan.generation
        return [
            Grant(w, version, version, ranges, micro_batches[w], generation)
            for w, ranges in zip(asking, split_ranges(self.cursor.take(total), counts), strict=True)
            if ranges
        ]

    def _count(self, amount: int, sign: int) -> None:
        self._batch += sign * amount
        # Gradients of a worker being drained may still come when nobody else is left.
        self._last_batch = self._batch or self._last_batch or sum(self._planned) or 1
