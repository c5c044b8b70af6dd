"""A job in virtual time around the adaptation loop: BSP rounds of workers with given speeds, the real `loop.step`."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heterotrain_core.adaptation.loop import State, step
from heterotrain_core.adaptation.values import Answer, Decision, NodeFact, Observation, Refused, Settings, WorkerSeen
from heterotrain_core.run_values import Timings
from heterotrain_core.synchronization import BSP, Delay, Synchronization
from heterotrain_core.telemetry import StepRecord
from heterotrain_core.types import Bounds

Pace = Callable[[int], float]
"""Seconds per sample in a round."""


def steady(seconds_per_sample: float) -> Pace:
    return lambda _: seconds_per_sample


@dataclass
class SimulatedWorker:
    name: str
    pace: Pace
    share: int
    fixed: float = 0.0
    receive: float = 0.0
    """Seconds of each step in which it receives, and computes nothing."""
    minimum: int = 1
    maximum: int = 10_000
    live: bool = True
    silent: bool = False
    """Its records do not reach the loop."""
    refuses_above: int | None = None
    records: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=20))
    done: int = 0
    micro_batch: int | None = None
    node: NodeFact | None = None
    irreplaceable: str = ""
    cpu: float = 0.0
    """Processor time of its newest step; 0: not known."""
    behind: float = 0.0
    """Seconds since it began its iteration, if rounds do not wait for it."""


@dataclass
class Simulation:
    """`overhead`: seconds of a round beside its slowest worker; `noise`: standard deviation of steps, relative."""

    settings: Settings
    workers: list[SimulatedWorker]
    noise: float = 0.0
    weather: float = 0.0
    """Standard deviation of what makes all workers slower or faster at once, relative; half is left after a second."""
    spikes: float = 0.0
    """Part of the steps that take four times as long."""
    overhead: float = 0.01
    watch_seconds: float = 0.5
    seed: int = 1
    synchronization: Synchronization = BSP

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.mood = 0.0
        """Of all workers in this round: logarithm of how many times as long they take."""
        self.state = State(self.settings)
        self.now, self.version, self.generation, self.effective = 0.0, 0, 1, 0
        self.planned = {w.name: w.share for w in self.workers}
        self.start = dict(self.planned)
        self.answer: Answer | None = None
        self.decisions: list[tuple[int, Decision]] = []
        self.plans: list[tuple[int, dict[str, int]]] = []
        self.round_seconds: list[float] = []
        self.bounds: list[tuple[int, int | None]] = []
        self.replaced: list[tuple[int, str]] = []
        self.watched = 0.0

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self._round()
            if self.now - self.watched >= self.watch_seconds:
                self.watched = self.now
                self._tick()

    def until(self, seconds: float) -> None:
        while self.now < seconds:
            self.run(1)

    def _round(self) -> None:
        if self.version >= self.effective:
            for worker in self.workers:
                worker.share = self.planned[worker.name] if worker.live else 0
        live = [w for w in self.workers if w.live]
        self._change_weather()
        times = [self._compute(w) for w in live]
        lasted = self._lasts([t + w.receive for t, w in zip(times, live, strict=True)]) + self.overhead
        for worker, compute in zip(live, times, strict=True):
            self._finished(worker, compute, lasted)
        self.now += lasted
        self.version += 1
        self.round_seconds.append(lasted)

    def _lasts(self, times: Sequence[float]) -> float:
        """A round, by its workers' times. Under Delay it waits for nobody who is late by no more than the bound."""
        if not isinstance(self.synchronization, Delay) or self.synchronization.staleness_bound is None:
            return max(times)
        fast = max(t for t in times if t <= 2 * min(times))
        return max([fast, *(t / (self.synchronization.staleness_bound + 1) for t in times)])

    def _finished(self, worker: SimulatedWorker, compute: float, lasted: float) -> None:
        """A worker that is not waited for is done with its share some rounds later."""
        worker.behind += lasted
        if worker.behind < compute:
            return
        worker.done += 1
        waited = worker.behind - compute
        timings = Timings(compute=compute, pull=waited, step=worker.behind, receive=worker.receive, cpu=worker.cpu)
        worker.records.append(StepRecord(worker.done, worker.share, timings, 1.0 + self.now + lasted, waited))
        worker.behind = 0.0

    def _change_weather(self) -> None:
        if self.weather:
            left = 0.5 ** (self.round_seconds[-1] if self.round_seconds else 60.0)
            self.mood = left * self.mood + self.random.gauss(0.0, self.weather) * math.sqrt(1 - left**2)

    def _compute(self, worker: SimulatedWorker) -> float:
        factor = max(0.2, self.random.gauss(1.0, self.noise)) if self.noise else 1.0
        if self.spikes and self.random.random() < self.spikes:
            factor *= 4
        factor *= math.exp(self.mood)
        return (worker.fixed + worker.pace(self.version) * worker.share) * factor

    def observation(self) -> Observation:
        return Observation(
            training=True,
            version=self.version,
            generation=self.generation,
            effective_round=self.effective,
            workers=tuple(
                WorkerSeen(
                    w.name,
                    w.live,
                    self.planned[w.name] if w.live else 0,
                    Bounds(w.minimum, w.maximum),
                    () if w.silent else tuple(w.records),
                    w.node,
                    w.micro_batch,
                    w.irreplaceable,
                )
                for w in self.workers
            ),
            start_shares=self.start,
            answer=self.answer,
            synchronization=self.synchronization,
        )

    def _tick(self) -> None:
        self.state, decision = step(self.state, self.observation(), self.now)
        self.answer = None
        self.decisions.append((self.version, decision))
        if decision.replace:
            self.replaced.append((self.version, decision.replace))
        if decision.proposal is None:
            return
        shares = dict(decision.proposal.shares)
        refusals = [
            Refused(w.name, f"share {shares[w.name]} does not fit")
            for w in self.workers
            if w.refuses_above is not None and shares.get(w.name, 0) > w.refuses_above
        ]
        if refusals:
            self.answer = Answer(decision.proposal.generation, refusals=tuple(refusals))
            return
        self.generation, self.effective = decision.proposal.generation, self.version + 2
        self.planned |= shares
        for worker in self.workers:
            worker.micro_batch = decision.proposal.micro_batches.get(worker.name, worker.micro_batch)
        if decision.proposal.synchronization is not None:
            self.synchronization = decision.proposal.synchronization
            self.bounds.append((self.version, self.synchronization.bound))
        self.plans.append((self.version, shares))
        self.answer = Answer(self.generation, self.effective)

    def speed(self, part: float = 0.0) -> float:
        """Samples a second, without the first `part` of the rounds."""
        rounds = self.round_seconds[int(part * len(self.round_seconds)) :]
        return len(rounds) * self.settings.global_batch / sum(rounds)

    def ideal(self, round_: int) -> float:
        """Samples a second if nobody ever waited, with the overhead."""
        speed = sum(1 / w.pace(round_) for w in self.workers if w.live)
        batch = self.settings.global_batch
        return batch / (batch / speed + self.overhead)

    def efficiency(self, first: int, last: int) -> float:
        """Reached over ideal speed in rounds first..last-1."""
        seconds = sum(self.round_seconds[first:last])
        return (last - first) * self.settings.global_batch / seconds / self.ideal(last - 1)


def simulate(
    paces: Sequence[Pace], batch: int = 128, shares: Sequence[int] | None = None, **options: object
) -> Simulation:
    """Workers w0, w1, … with these paces, equal shares unless given; `options` of `Simulation` or `Settings`."""
    names = [f"w{i}" for i in range(len(paces))]
    given = shares if shares is not None else [batch // len(paces)] * len(paces)
    workers = [SimulatedWorker(n, p, s) for n, p, s in zip(names, paces, given, strict=True)]
    fields = Settings.__dataclass_fields__
    chosen: Mapping[str, object] = {k: v for k, v in options.items() if k in fields}
    settings = replace(Settings(global_batch=batch), **chosen)  # type: ignore[arg-type]
    rest = {k: v for k, v in options.items() if k not in fields}
    return Simulation(settings, workers, **rest)  # type: ignore[arg-type]
