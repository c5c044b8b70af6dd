"""From the first join to the first grant, with messages that are late and lost: training begins, from one model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders_sync import examples
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.run import TrainingRun
from heterotrain_core.run_values import RunReason
from run_driver import make_config, make_manifest

NUM_SHARDS = 2


@dataclass
class Shard:
    """Keeps initial values as a shard does: of the lowest worker, of no incarnation that is over."""

    initial: set[tuple[int, int]] = field(default_factory=set)
    least: dict[int, int] = field(default_factory=dict)
    published: tuple[int, int] | None = None
    configured: bool = False

    def push(self, worker: int, incarnation: int) -> None:
        if self.published is None and incarnation >= self.least.get(worker, 0):
            self.bar(worker, incarnation)
            self.initial.add((worker, incarnation))

    def bar(self, worker: int, least: int) -> None:
        self.least[worker] = max(least, self.least.get(worker, 0))
        self.initial = {(w, i) for w, i in self.initial if w != worker or i >= least}

    def publish(self) -> None:
        if self.published is None:
            self.published = min(self.initial)


@dataclass
class Process:
    """One process of a worker: its session's messages come late, in order, and not at all once it is broken."""

    name: str
    inbox: deque[out.Message] = field(default_factory=deque)
    outbox: deque[ev.WorkerEvent] = field(default_factory=deque)
    key: tuple[int, int] = (-1, 0)
    to_push: list[int] = field(default_factory=list)
    """Shards that still lack its initial values."""
    pulls: bool = False
    started: bool = False


class Joining:
    """A job whose parts do one small thing at a time, in an order that `random` picks."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.names = [f"w-{i}" for i in range(random.randint(1, 3))]
        self.run = TrainingRun(make_config(dict.fromkeys(self.names, 2), rejoin_limit=1000), 0.0)
        self.shards = [Shard() for _ in range(NUM_SHARDS)]
        self.work: deque[out.Effect] = deque()
        self.answers: deque[ev.RunEvent] = deque()
        self.processes: dict[str, Process] = {}
        self.now = 0.0
        self.faults = random.randint(0, 8)
        self.slow_shards = random.choice([False, True])

    def go(self) -> None:
        """Until training begins; at most a bounded number of turns once nothing is lost any more."""
        turns = 0
        while not self.run.training_began and self.run.outcome is None:
            steps = self._possible()
            assert steps, f"nobody can do anything: {self.run.view(self.now).message}"
            self._random.choice(steps)()
            turns += 1
            assert turns < 2000, self.run.view(self.now).message

    def _possible(self) -> list[Callable[[], None]]:
        steps = [partial(self._join, name) for name in self.names if name not in self.processes]
        for process in self.processes.values():
            steps += [partial(self._say, process)] if process.outbox else []
            steps += [partial(self._hear, process)] if process.inbox else []
            steps += [partial(self._push, process)] if process.to_push else []
            ready = process.pulls and not process.started and all(s.published is not None for s in self.shards)
            steps += [partial(self._pulled, process)] if ready else []
            if self.faults:
                steps += [partial(self._break, process), partial(self._leave, process)]
        shards: list[Callable[[], None]] = [self._work] if self.work else []
        shards += [lambda: self._tell(self.answers.popleft())] if self.answers else []
        late = self.slow_shards and steps and self._random.random() < 0.9
        return steps if late else steps + shards

    # --- workers ---

    def _join(self, name: str) -> None:
        self.processes[name] = Process(name)
        self._tell(ev.Joined(name, 1))

    def _say(self, process: Process) -> None:
        self._tell(process.outbox.popleft())

    def _hear(self, process: Process) -> None:
        match process.inbox.popleft():
            case out.Welcome(ordinal=ordinal, incarnation=incarnation):
                process.key = ordinal, incarnation
                process.outbox.append(ev.ManifestGiven(process.name, make_manifest()))
            case out.ManifestAccepted(push_initial_values=True):
                process.to_push = list(range(NUM_SHARDS))
            case out.ManifestAccepted():
                process.pulls = True

    def _push(self, process: Process) -> None:
        self.shards[process.to_push.pop()].push(*process.key)
        if not process.to_push:
            process.outbox += [ev.InitialValuesPushed(process.name), ev.Started(process.name, 1)]
            process.started = True

    def _pulled(self, process: Process) -> None:
        process.started = True
        process.outbox.append(ev.Started(process.name, 1))

    def _break(self, process: Process) -> None:
        """Its process is gone; what it had under way is lost."""
        self.faults -= 1
        del self.processes[process.name]
        self._tell(ev.SessionBroken(process.name, "closed"))

    def _leave(self, process: Process) -> None:
        """It is told to end, and comes back."""
        self.faults -= 1
        self._tell(ev.Leaving(process.name))
        if self._random.random() < 0.7:
            del self.processes[process.name]
            self._tell(ev.SaidGoodbye(process.name))

    # --- shards ---

    def _work(self) -> None:
        """The next thing that the shards are told, done by all; the answer comes later."""
        match self.work.popleft():
            case out.ConfigureShards():
                for shard in self.shards:
                    shard.configured = True
                self.answers.append(ev.ShardsConfigured())
            case out.PublishInitial():
                for shard in self.shards:
                    shard.publish()
                self.answers.append(ev.InitialPublished())
            case out.SeatWorkers(number=number, workers=workers):
                for shard in self.shards:
                    assert shard.configured, "a shard without a model refuses it"
                    for ordinal, (_, least) in enumerate(workers):
                        shard.bar(ordinal, least)
                self.answers.append(ev.WorkersSeated(number))

    def _tell(self, event: ev.RunEvent) -> None:
        self.now += 0.001
        for effect in self.run.handle(event, self.now):
            match effect:
                case out.Send(worker=name, message=message) if name in self.processes:
                    self.processes[name].inbox.append(message)
                case out.ConfigureShards() | out.PublishInitial() | out.SeatWorkers():
                    self.work.append(effect)


@settings(max_examples=examples(300))
@given(st.integers(0, 2**32))
def test_whoever_is_lost_before_training_it_begins_from_the_values_of_one_worker(seed: int) -> None:
    job = Joining(Random(seed))
    job.go()
    assert job.run.outcome is None, job.run.outcome
    assert RunReason.STARTED in [e.reason for e in job.run.log.latest()]
    published = {shard.published for shard in job.shards}
    assert len(published) == 1, f"shards hold the values of several workers: {published}"
    assert None not in published


def configured() -> TrainingRun:
    """Two workers whose model the shards have laid out; w-0 is to give the values."""
    run = TrainingRun(make_config({"w-0": 2, "w-1": 2}, rejoin_limit=3), 0.0)
    for name in ("w-0", "w-1"):
        run.handle(ev.Joined(name, 1), 0.0)
        run.handle(ev.ManifestGiven(name, make_manifest()), 0.0)
    assert run.handle(ev.ShardsConfigured(), 0.0) == [
        out.Send("w-0", out.ManifestAccepted(True)),
        out.Send("w-1", out.ManifestAccepted(False)),
    ]
    return run


def test_who_comes_back_after_it_pushed_the_initial_values_pulls_them_even_before_they_are_published() -> None:
    run = configured()
    assert run.handle(ev.InitialValuesPushed("w-0"), 1.0) == [out.PublishInitial()]
    run.handle(ev.SessionBroken("w-0", "closed"), 2.0)
    run.handle(ev.Joined("w-0", 1), 3.0)
    assert run.handle(ev.ManifestGiven("w-0", make_manifest()), 3.0) == [
        out.Send("w-0", out.ManifestAccepted(False)),
    ]


@pytest.mark.parametrize("leaving", [False, True], ids=["is lost", "is told to end"])
def test_what_a_worker_pushed_of_the_initial_values_before_it_goes_counts_on_no_shard(leaving: bool) -> None:
    run = configured()
    gone: list[ev.RunEvent] = [ev.Leaving("w-0"), ev.SaidGoodbye("w-0")] if leaving else [ev.SessionBroken("w-0", "x")]
    effects = [effect for event in gone for effect in run.handle(event, 1.0)]
    assert out.SeatWorkers(1, (("w-0", 2), ("w-1", 1))) in effects
    run.handle(ev.Joined("w-0", 1), 2.0)
    assert run.handle(ev.ManifestGiven("w-0", make_manifest()), 2.0) == [out.Send("w-0", out.ManifestAccepted(True))]
