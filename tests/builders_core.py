"""Builders for tests of `heterotrain_core`: plans by letters, and a fleet of workers that lives without I/O."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from heterotrain_core.bsp import BspPolicy
from heterotrain_core.cursor import DataCursor
from heterotrain_core.types import (
    Commit,
    Contribution,
    Decision,
    EpochEnd,
    Grant,
    Plan,
    SampleRange,
    Share,
    TrainingEnd,
)

A, B, C = range(3)
"""Ordinals of the workers a, b, c."""


def make_plan(generation: int = 1, **shares: int | Share) -> Plan:
    """``make_plan(a=5, b=2)``: shares by worker name."""
    return Plan(generation, {name: s if isinstance(s, Share) else Share(s) for name, s in shares.items()})


def positions(ranges: Iterable[SampleRange]) -> list[tuple[int, int]]:
    """All samples of `ranges` as (epoch, position), sorted; one that appears twice is listed twice."""
    return sorted((r.epoch, p) for r in ranges for p in range(r.start, r.stop))


class Fleet:
    """Workers that carry out a policy's decisions, and check at each one what must hold for any policy of rounds."""

    def __init__(
        self,
        plan: Plan,
        *,
        dataset_size: int,
        epochs: int = 1,
        rounds_ahead: int = 1,
        max_rounds: int | None = None,
    ) -> None:
        self.names = sorted(plan.shares)
        self.cursor = DataCursor(dataset_size, epochs)
        self.policy = BspPolicy(plan, self.names, self.cursor, rounds_ahead=rounds_ahead, max_rounds=max_rounds)
        self.pending: dict[int, list[Grant]] = defaultdict(list)
        self.grants: dict[int, list[Grant]] = defaultdict(list)
        """All grants ever given, by round."""
        self.commits: list[Commit] = []
        self.epoch_ends: list[EpochEnd] = []
        self.training_ends: dict[int, TrainingEnd] = {}
        self.draining: set[int] = set()
        """Told to drain; they have not left."""

    def join(self, *workers: int) -> list[Decision]:
        """Workers join one after another; all by default."""
        everybody = workers or range(len(self.names))
        return [d for worker in everybody for d in self.carry_out(self.policy.on_join(worker, 0.0))]

    def leave(self, worker: int) -> list[Decision]:
        self.pending.pop(worker, None)
        self.training_ends.pop(worker, None)
        self.draining.discard(worker)
        return self.carry_out(self.policy.on_leave(worker, 0.0))

    def drain(self, worker: int) -> list[Decision]:
        self.draining.add(worker)
        return self.carry_out(self.policy.drain(worker))

    def plan(self, plan: Plan) -> list[Decision]:
        return self.carry_out(self.policy.on_plan(plan, 0.0))

    def stop(self, reason: str = "asked to stop") -> list[Decision]:
        return self.carry_out(self.policy.on_stop(reason, 0.0))

    def done(self, worker: int, *, refused: bool = False) -> list[Decision]:
        grant = self.pending[worker].pop(0)
        return self.carry_out(
            self.policy.on_done(worker, grant.iteration, grant.version, grant.samples, 0.0, refused=refused)
        )

    def round(self, *workers: int) -> list[Decision]:
        """These workers (all that can, by default) finish the present round, in this order."""
        return [d for worker in workers or self.ready() for d in self.done(worker)]

    def ready(self) -> list[int]:
        """Workers whose next grant names a version that exists."""
        return [w for w, grants in sorted(self.pending.items()) if grants and grants[0].version == self.policy.version]

    def carry_out(self, decisions: Sequence[Decision]) -> list[Decision]:
        for decision in decisions:
            match decision:
                case Grant():
                    assert decision.worker not in self.training_ends
                    assert decision.version == decision.iteration
                    assert decision.samples > 0
                    assert all(g.plan_generation == decision.plan_generation for g in self.grants[decision.iteration])
                    self.pending[decision.worker].append(decision)
                    self.grants[decision.iteration].append(decision)
                case Commit():
                    assert decision.version == len(self.commits)
                    assert sum(c.weight for c in decision.contributions) in (0, 1) or (
                        abs(sum(c.weight for c in decision.contributions) - 1) < 1e-15 * len(decision.contributions)
                    )
                    self.commits.append(decision)
                case EpochEnd():
                    assert decision.version == len(self.commits)
                    self.epoch_ends.append(decision)
                case TrainingEnd():
                    assert decision.version == len(self.commits)
                    assert not self.pending[decision.worker]
                    assert decision.worker not in self.training_ends
                    self.training_ends[decision.worker] = decision
        return list(decisions)

    def used(self) -> list[tuple[int, int]]:
        """All samples that commits used up."""
        return positions(r for c in self.commits for r in c.ranges)


FIVE_TWO_ONE = make_plan(a=5, b=2, c=Share(1, micro_batch=1))


def fleet(dataset_size: int = 80, epochs: int = 1, rounds_ahead: int = 1, max_rounds: int | None = None) -> Fleet:
    return Fleet(
        FIVE_TWO_ONE, dataset_size=dataset_size, epochs=epochs, rounds_ahead=rounds_ahead, max_rounds=max_rounds
    )


def grant(worker: int, number: int, start: int, stop: int, *, epoch: int = 0, generation: int = 1) -> Grant:
    micro_batch = 1 if worker == C else None
    return Grant(worker, number, number, (SampleRange(epoch, start, stop),), micro_batch, generation)


def commit(
    number: int, samples: dict[int, int], start: int, stop: int, *, scale: float = 1.0, epoch: int = 0
) -> Commit:
    total = sum(samples.values())
    return Commit(
        number,
        tuple(Contribution(worker, number, n / total) for worker, n in samples.items()),
        scale,
        (SampleRange(epoch, start, stop),),
    )
