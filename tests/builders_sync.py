"""A world of workers around a synchronisation policy, without I/O, which checks what must hold in every mode."""

from __future__ import annotations

import os
import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial

from builders_core import positions
from heterotrain_core.cursor import DataCursor
from heterotrain_core.sync.policy import Policy
from heterotrain_core.synchronization import Delay, Dssp, Ssp, Synchronization
from heterotrain_core.types import Commit, Decision, EpochEnd, Grant, Plan, Share, TrainingEnd

Item = Grant | EpochEnd | TrainingEnd


def examples(default: int) -> int:
    """How many examples hypothesis tries: `default`, or what HETEROTRAIN_EXAMPLES says."""
    return int(os.environ.get("HETEROTRAIN_EXAMPLES", default))


class World:
    """Workers take their items in order; at the end of an epoch they wait for each other, as for an evaluation."""

    def __init__(
        self,
        synchronization: Synchronization,
        shares: Sequence[int],
        *,
        dataset_size: int,
        epochs: int = 1,
        rounds_ahead: int = 0,
        max_rounds: int | None = None,
        least: int = 1,
    ) -> None:
        self.least = min(least, dataset_size)
        self.names = [f"w{i}" for i in range(len(shares))]
        self.cursor = DataCursor(dataset_size, epochs)
        self.policy = Policy(
            synchronization,
            Plan(1, {n: Share(s) for n, s in zip(self.names, shares, strict=True)}),
            self.names,
            self.cursor,
            rounds_ahead=rounds_ahead,
            max_rounds=max_rounds,
            least=least,
        )
        self.now = 0.0
        self.items: dict[int, deque[Item]] = defaultdict(deque)
        self.present: set[int] = set()
        self.arrived: dict[tuple[int, int], Grant] = {}
        """Gradients that are in and in no commit."""
        self.evaluating: dict[int, set[int]] = {}
        """By epoch that is over: whom its evaluation waits for."""
        self.commits: list[Commit] = []
        self.decisions: list[Decision] = []
        self.used: set[tuple[int, int]] = set()
        self.dropped: list[tuple[int, int]] = []
        self.newest_grant: dict[int, int] = {}
        self.clocks = Clocks()

    # --- what may happen ---------------------------------------------------------------------------------------------

    def join(self, *workers: int) -> list[Decision]:
        taken: list[Decision] = []
        for worker in workers or range(len(self.names)):
            self.present.add(worker)
            taken += self.happen(partial(self.policy.on_join, worker, self.now))
        return taken

    def leave(self, worker: int) -> list[Decision]:
        self.present.discard(worker)
        self.items.pop(worker, None)
        self.newest_grant.pop(worker, None)
        for waited_for in self.evaluating.values():
            waited_for.discard(worker)
        for key in [k for k in self.arrived if k[0] == worker]:
            del self.arrived[key]
        return self.happen(lambda: self.policy.on_leave(worker, self.now))

    def drain(self, worker: int) -> list[Decision]:
        return self.happen(lambda: self.policy.drain(worker))

    def done(self, worker: int, *, refused: bool = False) -> list[Decision]:
        grant = self.items[worker].popleft()
        assert isinstance(grant, Grant)
        if not refused:
            self.arrived[worker, grant.iteration] = grant
        self.clocks.tick(worker, self.policy.synchronization)
        return self.happen(
            lambda: self.policy.on_done(
                worker, grant.iteration, grant.version, grant.samples, self.now, refused=refused
            )
        )

    def tick(self) -> list[Decision]:
        """Go to the next timer, if there is one."""
        if (timer := self.policy.next_timer) is None:
            return []
        self.now = max(self.now, timer)
        return self.happen(lambda: self.policy.on_timer(self.now))

    def plan(self, shares: Sequence[int], synchronization: Synchronization | None = None) -> list[Decision]:
        plan = Plan(
            self.policy.plan.generation + 1,
            {n: Share(s) for n, s in zip(self.names, shares, strict=True)},
            synchronization=synchronization,
        )
        if list(shares) != [share.samples for share in self.policy.plan.shares.values()]:
            self.clocks.behind |= self.computing()
        return self.happen(lambda: self.policy.on_plan(plan, self.now))

    def synchronize(self, synchronization: Synchronization) -> list[Decision]:
        return self.happen(lambda: self.policy.on_synchronization(synchronization, self.now))

    def stop(self) -> list[Decision]:
        return self.happen(lambda: self.policy.on_stop("asked to stop", self.now))

    # --- what follows ------------------------------------------------------------------------------------------------

    def ready(self) -> list[int]:
        """Workers that can finish an iteration now."""
        return sorted(
            w
            for w in self.present
            if self.items[w] and isinstance(item := self.items[w][0], Grant) and item.version <= self.policy.version
        )

    def evaluate(self) -> None:
        """Who has come to the end of an epoch waits until all have, then all go on."""
        for epoch, workers in list(self.evaluating.items()):
            if all(isinstance(item := self.items[w][0], EpochEnd) and item.epoch == epoch for w in workers):
                for worker in workers:
                    self.items[worker].popleft()
                del self.evaluating[epoch]

    def finish(self, choose: Callable[[Sequence[int]], int] = min) -> None:
        """Workers finish in the order that `choose` picks until nobody can go on; a deadlock is a failure."""
        while self.policy.end_reason is None:
            if ready := self.ready():
                self.done(choose(ready))
            elif self.policy.next_timer is not None:
                before = len(self.commits)
                self.tick()
                assert len(self.commits) > before, "the timer closes a round"
            else:
                break
        able = [w for w in self.policy.live if self.policy.plan.shares[self.names[w]].samples > 0]
        assert self.policy.end_reason is not None or not able, f"deadlock: {self.items}"

    def happen(self, event: Callable[[], Sequence[Decision]]) -> list[Decision]:
        mode, bound = self.policy.synchronization, self.policy.bound_in_force
        decisions = list(event())
        after = self.policy.synchronization
        if mode.mode is not after.mode:
            self.clocks = Clocks()
        self.clocks.take_part(self.policy, self.computing())
        epochs: set[int] = set()
        for decision in decisions:
            match decision:
                case Grant():
                    self.granted(decision)
                case Commit():
                    limit = bound if isinstance(mode, Delay) else None
                    self.committed(decision, limit)
                case EpochEnd():
                    assert decision.version == len(self.commits)
                    if decision.epoch not in epochs:
                        epochs.add(decision.epoch)
                        self.clocks.align()
                    self.evaluating.setdefault(decision.epoch, set()).add(decision.worker)
                    self.items[decision.worker].append(decision)
                case TrainingEnd():
                    assert decision.version == len(self.commits)
                    assert not any(isinstance(i, TrainingEnd) for i in self.items[decision.worker])
                    self.items[decision.worker].append(decision)
        self.decisions += decisions
        self.evaluate()
        wanted, in_force = self.policy.bound_wanted, self.policy.bound_in_force
        if after.mode is self.policy.synchronization_wanted.mode and in_force is not None:
            assert wanted is not None
            assert in_force >= wanted
        return decisions

    def granted(self, grant: Grant) -> None:
        worker = grant.worker
        assert worker in self.present
        assert not any(isinstance(i, TrainingEnd) for i in self.items[worker])
        assert grant.samples >= self.least
        assert grant.iteration == grant.version > self.newest_grant.get(worker, -1)
        # What lets a commit free every older version that nobody was told to pull before.
        assert grant.version >= len(self.commits)
        self.newest_grant[worker] = grant.version
        assert self.used.isdisjoint(positions(grant.ranges))
        self.clocks.check_start(worker, self.policy.synchronization)
        self.items[worker].append(grant)

    def committed(self, commit: Commit, bound: int | None) -> None:
        assert commit.version == len(self.commits)
        weights = [c.weight for c in commit.contributions]
        assert not weights or abs(sum(weights) - 1) < 1e-12
        assert [c.worker for c in commit.contributions] == sorted({c.worker for c in commit.contributions})
        taken = set(positions(commit.ranges))
        assert len(taken) == sum(len(r) for r in commit.ranges)
        assert self.used.isdisjoint(taken), "a sample is committed twice"
        for c in commit.contributions:
            grant = self.arrived.pop((c.worker, c.iteration))
            assert taken.issuperset(positions(grant.ranges))
            assert bound is None or commit.version - grant.version <= bound
        for key in commit.dropped:
            del self.arrived[key]
            self.dropped.append(key)
        self.used |= taken
        self.commits.append(commit)

    def computing(self) -> set[int]:
        return {w for w in self.present if any(isinstance(i, Grant) for i in self.items[w])}

    def all_samples(self) -> set[tuple[int, int]]:
        return {(e, p) for e in range(self.cursor.epochs) for p in range(self.cursor.dataset_size)}


class Clocks:
    """The blocking rule once more, without any care for speed."""

    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        self.floor = 0
        self.behind: set[int] = set()
        """Computed with shares of an older plan, and have not caught up."""

    def take_part(self, policy: Policy, computing: set[int]) -> None:
        live = set(policy.live)
        for worker in sorted({*self.values, *live, *computing}):
            share = policy.plan.shares[f"w{worker}"].samples
            takes_part = (worker in live and share > 0) or worker in computing
            if worker in self.values and not takes_part:
                self.floor = min(self.values.values())
                del self.values[worker]
                self.behind.discard(worker)
            elif worker not in self.values and takes_part:
                self.values[worker] = min(self.values.values(), default=self.floor)

    def tick(self, worker: int, synchronization: Synchronization) -> None:
        if worker not in self.values:
            return
        self.values[worker] += 1
        bound = most_ahead(synchronization)
        if worker in self.behind and bound is not None:
            others = [clock for other, clock in self.values.items() if other != worker]
            ahead = min([max(self.values.values()), *(clock + bound for clock in others)])
            self.values[worker] = max(self.values[worker], ahead)
        if bound is None or self.values[worker] == max(self.values.values()):
            self.behind.discard(worker)

    def align(self) -> None:
        self.behind.clear()
        self.values = dict.fromkeys(self.values, max(self.values.values(), default=0))

    def check_start(self, worker: int, synchronization: Synchronization) -> None:
        ahead = self.values[worker] - min(self.values.values())
        match synchronization:
            case Ssp(staleness_bound=int() as bound):
                assert ahead <= bound
            case Dssp(lower=lower, range=width):
                assert ahead <= lower + width


def most_ahead(synchronization: Synchronization) -> int | None:
    """Of the slowest, for everybody, under modes whose bound counts iterations."""
    match synchronization:
        case Ssp(staleness_bound=bound):
            return bound
        case Dssp(lower=lower):
            return lower
        case _:
            return None


def randomly(seed: int) -> Callable[[Sequence[int]], int]:
    return random.Random(seed).choice
