"""A job in virtual time whose workers are held to a part of a core, as a container with a limit of CPU is.

The kernel (CFS bandwidth control) grants a group `quota x period` of processor time in each period and stops it until
the next once that is used up; what is not used is lost. A share that is small enough is computed without a stop, one
that is a little larger waits for the next period: time is in no proportion to the share, and steps vary by a period.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from builders_adaptation import SimulatedWorker, Simulation, steady
from heterotrain_core.adaptation.values import Mode, Settings

CPU_PER_SAMPLE = 0.00037
NOISE = 0.03
"""Standard deviation of the processor time of a step, relative."""


@dataclass
class Throttled(Simulation):
    """`quotas`: cores of each worker; `period`: in seconds."""

    quotas: Sequence[float] = (1.0,)
    period: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.phases = [self.random.random() * self.period for _ in self.workers]

    def _round(self) -> None:
        self.overhead = 0.01 + self.random.expovariate(100)
        super()._round()

    def _compute(self, worker: SimulatedWorker) -> float:
        i = self.workers.index(worker)
        worker.cpu = cpu = CPU_PER_SAMPLE * worker.share * max(0.3, self.random.gauss(1.0, self.noise))
        return throttled(self.now + self.phases[i], cpu, self.quotas[i], self.period)


def throttled(start: float, cpu: float, quota: float, period: float) -> float:
    """Seconds from the instant `start` until `cpu` seconds of work are done, by a group that was idle before."""
    now = start
    while True:
        ends = (math.floor(now / period + 1e-9) + 1) * period
        runs = min(cpu, quota * period, ends - now)
        cpu -= runs
        if cpu <= 1e-12:
            return now + runs - start
        now = ends


def held(
    quotas: Sequence[float], shares: Sequence[int], *, mode: Mode = Mode.APPLY, seed: int = 1, period: float = 0.1
) -> Throttled:
    """Workers w0, w1, … with these parts of a core and these shares at first."""
    workers = [SimulatedWorker(f"w{i}", steady(0), share, minimum=10) for i, share in enumerate(shares)]
    settings = Settings(global_batch=sum(shares), mode=mode)
    return Throttled(settings, workers, noise=NOISE, seed=seed, quotas=quotas, period=period)


def fitting(quotas: Sequence[float], total: int) -> list[int]:
    """Shares in proportion to the quotas."""
    shares = [max(10, round(total * quota / sum(quotas))) for quota in quotas]
    return [shares[0] + total - sum(shares), *shares[1:]]
