"""A job in virtual time whose workers share the processors of one machine: what one gets, the others lack.

Steps are those of paced processes (`heterotrain run --speeds`): a worker computes on at most one core, then sleeps
until its step has lasted its stretch. More work for one worker slows the others down, other programs come and go, and
steps vary: no model of one worker by itself is right here, as on a loaded machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from builders_adaptation import Pace, SimulatedWorker, Simulation, steady
from heterotrain_core.adaptation.values import Settings
from heterotrain_core.run_values import Timings
from heterotrain_core.telemetry import StepRecord


@dataclass(frozen=True)
class Machine:
    """`cache`: by how much a computing neighbour lengthens the CPU time of the same work."""

    cores: float = 2.0
    cache: float = 0.1
    burst_seconds: float = 3.0
    """Mean length of a burst of another program, and of the pause after it; 0: there is none."""
    burst_cores: int = 1


@dataclass
class Contended(Simulation):
    """`cpu_per_sample`: of any worker, alone; `stretch`: step over CPU time, by worker."""

    machine: Machine = field(default_factory=Machine)
    cpu_per_sample: float = 0.0006
    stretch: Sequence[float] = (1.0,)
    switches: float = 0.0
    """When the other program starts or ends next."""
    bursting: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.elsewhere = random.Random(-self.seed)
        """Bursts come at the same instants whatever the job does."""

    def _round(self) -> None:
        if self.version >= self.effective:
            for worker in self.workers:
                worker.share = self.planned[worker.name]
        others = self._other_programs()
        times = self._shared([self._work(w) for w in self.workers], others)
        overhead = self.overhead * max(1.0, (1 + others) / self.machine.cores) * self._factor()
        lasted = max(times) + overhead
        for worker, compute in zip(self.workers, times, strict=True):
            worker.done += 1
            timings = Timings(compute=compute, step=lasted)
            worker.records.append(StepRecord(worker.done, worker.share, timings, 1.0 + self.now + lasted))
        self.now += lasted
        self.version += 1
        self.round_seconds.append(lasted)

    def _other_programs(self) -> int:
        if self.machine.burst_seconds <= 0:
            return 0
        while self.now >= self.switches:
            self.bursting = not self.bursting
            self.switches += self.elsewhere.expovariate(1 / self.machine.burst_seconds)
        return self.machine.burst_cores if self.bursting else 0

    def _work(self, worker: SimulatedWorker) -> float:
        return (worker.fixed + self.cpu_per_sample * worker.share) * self._factor()

    def _factor(self) -> float:
        return max(0.3, self.random.gauss(1.0, self.noise))

    def _shared(self, work: list[float], others: int) -> list[float]:
        """When each worker's step is over: processor sharing among all that compute, then the sleep."""
        left = dict(enumerate(work))
        used, ends, now = [0.0] * len(work), [0.0] * len(work), 0.0
        while left:
            active = len(left) + others
            part = min(1.0, self.machine.cores / active)
            speed = part / (1 + self.machine.cache * (min(active, self.machine.cores) - 1))
            first = min(left, key=lambda i: left[i])
            lasts = left[first] / speed
            now += lasts
            for i in tuple(left):
                used[i] += lasts * part
                left[i] -= lasts * speed
                if i == first or left[i] <= 0:
                    ends[i] = max(now, self.stretch[i] * used[i])
                    del left[i]
        return ends

    def without_noise(self, shares: Sequence[int]) -> float:
        """Samples a second with these shares on a quiet machine: to compare shares with each other."""
        work = [w.fixed + self.cpu_per_sample * b for w, b in zip(self.workers, shares, strict=True)]
        return sum(shares) / (max(self._shared(work, 0)) + self.overhead)

    def best_speed(self) -> float:
        """Of the best shares on a quiet machine: moved sample by sample until nothing helps."""
        shares = [w.share for w in self.workers]
        step = max(1, sum(shares) // 16)
        while step:
            best = max(_moves(shares, step), key=self.without_noise, default=shares)
            if self.without_noise(best) > self.without_noise(shares):
                shares = best
            else:
                step //= 2
        return self.without_noise(shares)


def _moves(shares: list[int], step: int) -> list[list[int]]:
    moves = []
    for i in range(len(shares)):
        for j in range(len(shares)):
            if i != j and shares[i] > step:
                moved = list(shares)
                moved[i] -= step
                moved[j] += step
                moves.append(moved)
    return moves


def contended(
    speeds: Sequence[float], batch: int = 500, *, machine: Machine | None = None, seed: int = 1, noise: float = 0.08
) -> Contended:
    """Workers w0, w1, … stretched to these speeds, on a machine that is smaller than they would like."""
    machine = machine or Machine()
    fastest = max(speeds)
    base = max(1.0, sum(s / fastest for s in speeds) / (0.75 * machine.cores))
    workers = [SimulatedWorker(f"w{i}", steady(0), batch // len(speeds), minimum=10) for i in range(len(speeds))]
    return Contended(
        Settings(global_batch=batch),
        workers,
        noise=noise,
        seed=seed,
        overhead=0.02,
        machine=machine,
        stretch=[base * fastest / s for s in speeds],
    )


def drifting(seed: int, *, amplitude: float, rounds: int, of_rounds: int) -> list[Pace]:
    """Speeds 4 : 3 : 2 : 1 that change all the time, each for itself and all together: by up to `amplitude`, every
    `rounds` rounds or so.
    """
    rng = random.Random(seed)

    def phases() -> list[float]:
        factors: list[float] = []
        while len(factors) < of_rounds:
            factors += [1 + amplitude * rng.random()] * max(3, int(rng.expovariate(1 / rounds)))
        return factors

    common, own = phases(), [phases() for _ in range(4)]
    slowness = [
        [a * b / (1000 * speed) for a, b in zip(common, mine, strict=False)]
        for speed, mine in zip((4, 3, 2, 1), own, strict=True)
    ]
    return [lambda round_, row=row: row[min(round_, len(row) - 1)] for row in slowness]
