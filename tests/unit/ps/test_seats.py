"""Who may push to a shard: workers that were added, incarnations that are over."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from heterotrain.ps.values import CommitOrder, GradientName
from heterotrain.transport.base import PushStatus, RefusedError
from shard_job import ShardJob, specs_of

ELEMENTS = 16
START = {"w": torch.zeros(ELEMENTS)}
NAMES = ("cpu-0", "cpu-1")


def filled(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((ELEMENTS,), value)}


def made() -> ShardJob:
    return ShardJob(specs_of(START), num_workers=len(NAMES))


def commit_of(incarnation: int, version: int) -> CommitOrder:
    return CommitOrder(term=1, version=version, contributions=((GradientName(0, incarnation, version), 1.0),))


def test_an_added_worker_is_known_by_name_and_its_gradient_counts() -> None:
    job = made().start(START)
    (store,) = job.stores
    assert store.ordinal("extra-0") is None
    store.seat(1, (*NAMES, "extra-0"), (0, 0, 0))
    assert [store.ordinal(name) for name in (*NAMES, "extra-0")] == [0, 1, 2]
    job.push(2, 0, filled(-1.0))
    job.commit(0, {2: 1.0})
    assert torch.equal(job.read(1)["w"], torch.full((ELEMENTS,), 1.0))


def test_a_barred_incarnation_can_neither_begin_nor_end_a_push() -> None:
    job = made().start(START)
    (store,), begun = job.stores, job.key(0, 0, incarnation=1)
    memory = store.reserve(begun, 0, 32)
    assert memory is not None
    store.seat(1, NAMES, (2, 0))
    words = "incarnation 1 of worker 0 was replaced by 2"
    with pytest.raises(RefusedError, match=words):
        store.received(begun, 0, 32)
    with pytest.raises(RefusedError, match=words):
        store.reserve(replace(begun, iteration=1), 0, 32)
    job.push(0, 0, filled(-2.0), incarnation=2)
    memory[:] = b"\xff" * 32  # what a broken transfer still writes
    store.commit(commit_of(2, 0))
    assert torch.equal(job.read(1)["w"], torch.full((ELEMENTS,), 2.0))


def test_what_a_barred_incarnation_has_pushed_whole_is_dropped_and_takes_no_memory() -> None:
    job = made().start(START)
    (store,) = job.stores
    job.push(0, 0, filled(-1.0), incarnation=1)
    held = store.bytes_held
    store.seat(1, NAMES, (2, 0))
    with pytest.raises(RefusedError, match="has not arrived"):
        store.commit(commit_of(1, 0))
    for version in range(4):
        job.push(0, version, filled(-1.0), incarnation=2)
        store.commit(commit_of(2, version))
    assert store.bytes_held == held


@pytest.mark.parametrize(
    ("workers", "least", "words"),
    [
        pytest.param(("cpu-0",), (0,), "workers must begin with cpu-0, cpu-1", id="one left out"),
        pytest.param(("cpu-1", "cpu-0"), (0, 0), "workers must begin with cpu-0, cpu-1", id="another order"),
        pytest.param(("cpu-0", "cpu-1", "cpu-0"), (0, 0, 0), "each once", id="one twice"),
        pytest.param(NAMES, (0,), "2 workers need as many incarnations, not 1", id="too few incarnations"),
    ],
)
def test_a_list_that_does_not_fit_is_refused(workers: tuple[str, ...], least: tuple[int, ...], words: str) -> None:
    job = made().start(START)
    with pytest.raises(ValueError, match=words):
        job.stores[0].seat(1, workers, least)
    assert job.stores[0].ordinal("cpu-1") == 1


def test_another_term_is_refused() -> None:
    job = made().start(START)
    with pytest.raises(RefusedError, match="term 2 is not here yet"):
        job.stores[0].seat(2, NAMES, (0, 0))


def test_initial_values_are_those_of_one_incarnation() -> None:
    job = made()
    (store,) = job.stores
    store.configure(job.shard_specs[0])
    assert job.push(0, -1, filled(5.0), incarnation=1) == {0: PushStatus.COMPLETE}
    assert job.push(0, -1, filled(7.0), incarnation=2) == {0: PushStatus.COMPLETE}
    store.publish(1)
    assert torch.equal(job.read(0)["w"], torch.full((ELEMENTS,), 7.0))
