"""A shard that makes versions before they are ordered has the same bits as one that does not, whatever is ordered."""

from __future__ import annotations

import queue
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain.ps.arithmetic import update_buffers
from heterotrain.ps.optimizer import elementwise_optimizers
from heterotrain.ps.part import Part
from heterotrain.ps.store import ShardStore
from heterotrain.ps.values import GradientName
from heterotrain.transport.base import PushStatus, RefusedError, capture_version
from heterotrain_core.layout import TensorKind
from shard_job import ShardJob, Tensors, specs_of

START: Tensors = {
    "weight": torch.linspace(-1, 1, 7),
    "half": torch.linspace(-2, 2, 5, dtype=torch.bfloat16),
    "mean": torch.linspace(0, 1, 3, dtype=torch.float64),
    "count": torch.tensor(3),
}
KINDS = {"mean": TensorKind.FLOAT_BUFFER, "count": TensorKind.INTEGER_BUFFER}
USUAL = {0: 0.75, 1: 0.25}


class Pair:
    """Two jobs that are told the same; the first one's shard works ahead whenever it can."""

    def __init__(self, optimizer: str = "AdamW", **options: Any) -> None:
        self.group = {"lr": 0.1, **options}
        self.jobs = [ShardJob(specs_of(START, KINDS), optimizer=optimizer, groups=[self.group]) for _ in range(2)]
        for job in self.jobs:
            job.start(START)
        self.version = 0
        self.generator = torch.Generator().manual_seed(5)

    @property
    def part(self) -> Part:
        """Of the job whose shard works ahead."""
        part = self.jobs[0].stores[0]._part
        assert part is not None
        return part

    @property
    def ahead(self) -> bool:
        """A version that nobody has ordered has been made."""
        return self.part.is_ahead

    def push(self, worker: int) -> None:
        values = {name: torch.randn(t.shape, generator=self.generator).to(t.dtype) for name, t in START.items()}
        for job in self.jobs:
            assert job.push(worker, self.version, values) == {0: PushStatus.COMPLETE}
        self.jobs[0].stores[0].answered()

    def commit(self, weights: dict[int, float] | None = None, **fields: Any) -> None:
        weights = USUAL if weights is None else weights
        ours, theirs = (job.order(self.version, weights, groups=[self.group], **fields) for job in self.jobs)
        store, ahead = self.jobs[0].stores[0], self.ahead
        made = store.commit_made(ours)
        assert ahead or made is None
        self.version = store.commit(ours) if made is None else made
        assert self.jobs[1].stores[0].commit(theirs) == self.version

    def round(self, weights: dict[int, float] | None = None, **fields: Any) -> None:
        for worker in USUAL:
            self.push(worker)
        self.commit(weights, **fields)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def check(self) -> None:
        ours, theirs = (job.read(self.version) for job in self.jobs)
        assert all(torch.equal(ours[name], theirs[name]) for name in START)
        packed = [captured(job.stores[0], self.version) for job in self.jobs]
        assert packed[0] == packed[1], "the optimizer's state"
        part = self.part
        pool = part.pool
        waiting = [g.arena for g in part.gradients._waiting.values() if g.arena is not None]
        held = [published.arena for published in part.versions._held.values()]
        arenas = {arena.data_ptr() for arena in (*pool._free, *waiting, *held)}
        assert len(arenas) == len(pool._free) + len(waiting) + len(held), "no arena has two uses"
        assert pool.bytes_held == pool.num_bytes * len(arenas), "none is lost"


def captured(store: ShardStore, version: int) -> bytes:
    store.capture(1, version)
    blob = store.blob(1, capture_version(version))
    assert blob is not None
    store.release(1, [capture_version(version)])
    return bytes(blob)


@pytest.mark.parametrize("optimizer", elementwise_optimizers())
def test_alike_rounds_are_made_ahead_bit_for_bit(optimizer: str) -> None:
    pair = Pair(optimizer)
    seen = []
    for _ in range(6):
        for worker in USUAL:
            pair.push(worker)
        seen.append(pair.ahead)
        pair.commit()
    pair.check()
    assert seen == [False, False, True, True, True, True]
    assert not pair.ahead


class Steps:
    """What may come between the last gradient of a round and the order of its commit, or instead of it."""

    def usual(self, pair: Pair) -> None:
        pair.round()

    def other_shares(self, pair: Pair) -> None:
        pair.round({0: 0.5, 1: 0.5})

    def another_rate(self, pair: Pair) -> None:
        pair.group = {**pair.group, "lr": pair.group["lr"] / 2}
        pair.round()

    def one_is_discarded(self, pair: Pair) -> None:
        version = pair.version
        pair.round({0: 1.0}, discard=(GradientName(1, 1, version),), scale=0.75)

    def both_are_discarded(self, pair: Pair) -> None:
        names = tuple(GradientName(worker, 1, pair.version) for worker in USUAL)
        pair.round({}, discard=names)

    def clipped(self, pair: Pair) -> None:
        for worker in USUAL:
            pair.push(worker)
        parts = [job.stores[0].aggregate(job.order(pair.version, USUAL)) for job in pair.jobs]
        assert parts[0] == parts[1]
        pair.commit(clip_coefficient=0.5)

    def a_tensor_is_absent(self, pair: Pair) -> None:
        pair.round(absent=frozenset({0}))

    def the_old_version_stays(self, pair: Pair) -> None:
        pair.round(retain=frozenset({pair.version}))

    def a_checkpoint_between(self, pair: Pair) -> None:
        for worker in USUAL:
            pair.push(worker)
        pair.check()
        pair.commit()

    def refused_first(self, pair: Pair) -> None:
        for worker in USUAL:
            pair.push(worker)
        for job in pair.jobs:
            with pytest.raises(RefusedError, match="has not arrived"):
                job.commit(pair.version, {0: 0.5, 1: 0.25, 2: 0.25})
        pair.commit()


NAMES = [name for name in vars(Steps) if not name.startswith("_")]


@settings(max_examples=60)
@given(
    st.sampled_from(["AdamW", "SGD", "Adagrad", "RMSprop", "ASGD"]),
    st.lists(st.sampled_from(["usual", "usual", *NAMES]), min_size=1, max_size=12),
)
def test_whatever_is_ordered_the_bits_are_the_same(optimizer: str, steps: list[str]) -> None:
    options: dict[str, Any] = {"momentum": 0.9} if optimizer in {"SGD", "RMSprop"} else {}
    pair = Pair(optimizer, **options)
    for name in ["usual", "usual", *steps]:
        getattr(Steps(), name)(pair)
    pair.check()


@pytest.mark.parametrize(
    ("step", "of_use", "afterwards"),
    [
        ("usual", 1, 3),
        ("the_old_version_stays", 1, 3),
        ("refused_first", 1, 3),
        ("a_checkpoint_between", 0, 3),
        ("another_rate", 0, 2),
        ("other_shares", 0, 1),
        ("one_is_discarded", 0, 1),
        ("both_are_discarded", 0, 1),
        ("clipped", 0, 1),
        ("a_tensor_is_absent", 0, 1),
    ],
)
def test_what_is_as_foreseen_uses_it_and_what_is_not_undoes_it(step: str, of_use: int, afterwards: int) -> None:
    pair = Pair()
    store = pair.jobs[0].stores[0]
    pair.rounds(3)
    assert store.found_made == 1, "the third round was foreseen"
    getattr(Steps(), step)(pair)
    assert store.found_made == 1 + of_use
    pair.check()
    pair.rounds(3)
    assert store.found_made == 1 + of_use + afterwards
    pair.check()


def test_every_step_is_tried() -> None:
    (marks,) = [m for m in test_what_is_as_foreseen_uses_it_and_what_is_not_undoes_it.pytestmark if m.args]  # type: ignore[attr-defined]
    assert sorted(step for step, *_ in marks.args[1]) == sorted(NAMES)


def test_what_came_while_the_order_was_looked_at_is_made_by_the_next_answer() -> None:
    pair = Pair()
    store = pair.jobs[0].stores[0]
    pair.round()
    for worker in USUAL:  # of the round after the next, before the next is over
        pair.push(worker)
    pair.version += 1
    for worker in USUAL:
        pair.push(worker)
    pair.version -= 1
    pair.commit()
    assert not pair.ahead
    store.answered()
    assert pair.ahead
    pair.commit()
    pair.check()


def test_a_version_that_is_being_made_is_not_waited_for() -> None:
    pair = Pair()
    pair.rounds(2)
    for worker in USUAL:
        pair.push(worker)
    store, order = pair.jobs[0].stores[0], pair.jobs[0].order(2, USUAL, groups=[pair.group])
    with store._command:
        assert store.commit_made(order) is None
    assert store.commit_made(order) == 3
    assert store.commit_made(order) is None, "there is nothing to be made any more; `commit` says that it was"
    assert store.commit(order) == 3
    assert store.found_made == 1


def test_a_new_term_begins_without_what_was_made_ahead() -> None:
    pair = Pair()
    pair.rounds(2)
    for worker in USUAL:
        pair.push(worker)
    assert pair.ahead
    store, spec = pair.jobs[0].stores[0], pair.jobs[0].shard_specs[0]
    store.configure(replace(spec, term=2))
    assert not pair.ahead
    assert store.standing() == (2, -1)


def test_a_worker_that_comes_back_before_the_commit_takes_its_gradient_away() -> None:
    pair = Pair()
    pair.rounds(2)
    pair.push(1)
    for job in pair.jobs:
        job.stores[0].seat(1, ("cpu-0", "cpu-1", "cpu-2"), [1, 2, 1])
    pair.push(0)
    assert not pair.ahead
    pair.commit({0: 1.0}, scale=0.75)
    pair.check()


def test_a_large_model_is_not_held_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain.ps.part.AHEAD_BYTES", 64)
    pair = Pair()
    before = 0
    for _ in range(4):
        for worker in USUAL:
            pair.push(worker)
        assert not pair.ahead
        pair.commit()
        before = before or pair.jobs[0].stores[0].bytes_held
    assert [job.stores[0].bytes_held for job in pair.jobs] == [before, before]
    pair.check()


def test_without_memory_for_it_versions_are_made_when_they_are_ordered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(value: Any, memory: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16:
            raise MemoryError("no memory")
        return value.clone() if isinstance(value, torch.Tensor) else value

    monkeypatch.setattr("heterotrain.ps.optimizer._copy", none)
    pair = Pair()
    pair.rounds(6)
    assert [record.getMessage() for record in caplog.records] == [
        "versions are made only when they are ordered from now on: no memory"
    ]
    assert pair.part._optimizer is not None
    assert pair.part._optimizer._kept == {}


@pytest.mark.parametrize("seed", range(3))
def test_with_everybody_at_once_the_bits_are_the_same(seed: int) -> None:
    """Three workers in threads of their own push and pull; the coordinator commits and now and then captures."""
    chance, rounds, weights = random.Random(seed), 60, {0: 0.5, 1: 0.25, 2: 0.25}
    job, reference = (
        ShardJob(specs_of(START, KINDS), optimizer="AdamW", groups=[{"lr": 0.1}]).start(START) for _ in range(2)
    )
    store = job.stores[0]
    dones: queue.SimpleQueue[int] = queue.SimpleQueue()

    def gradient(worker: int, version: int) -> Tensors:
        generator = torch.Generator().manual_seed(1000 * version + worker)
        return {name: torch.randn(t.shape, generator=generator).to(t.dtype) for name, t in START.items()}

    def work(worker: int) -> None:
        for version in range(rounds):
            with store.snapshot(1, version, 20.0) as held:
                assert held is not None
            assert job.push(worker, version, gradient(worker, version)) == {0: PushStatus.COMPLETE}
            dones.put(worker)
            store.answered()

    with ThreadPoolExecutor(3) as workers:
        works = [workers.submit(work, worker) for worker in weights]
        for version in range(rounds):
            for _ in weights:
                dones.get(timeout=20.0)
            shares = weights if chance.random() < 0.9 else {0: 0.25, 1: 0.25, 2: 0.5}
            order = job.order(version, shares)
            if store.commit_made(order) is None:
                assert store.commit(order) == version + 1
            if chance.random() < 0.1:
                captured(store, version + 1)
            for worker in weights:
                reference.push(worker, version, gradient(worker, version))
            reference.commit(version, shares)
        for done in works:
            done.result(20.0)

    ours, theirs = job.read(rounds), reference.read(rounds)
    assert all(torch.equal(ours[name], theirs[name]) for name in START)
    assert captured(store, rounds) == captured(reference.stores[0], rounds)
    assert store.found_made > 0


def test_a_step_that_fails_half_way_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [True]

    def buffers(*arguments: Any, **options: Any) -> None:
        if fails:
            fails.pop()
            raise RuntimeError("half way")
        update_buffers(*arguments, **options)

    pair = Pair()
    pair.rounds(2)
    monkeypatch.setattr("heterotrain.ps.part.update_buffers", buffers)
    pair.round()
    assert not fails
    pair.check()
