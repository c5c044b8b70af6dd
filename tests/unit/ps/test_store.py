"""What a shard takes, keeps and gives: pushes, versions, terms, memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from heterotrain.ps.gradients import WAITING_LIMIT
from heterotrain.ps.store import ShardStore
from heterotrain.ps.values import GradientName
from heterotrain.transport.base import PushKey, PushStatus, RefusedError
from heterotrain_core.layout import TensorKind
from shard_job import ShardJob, specs_of

ELEMENTS = 64
START = {"w": torch.zeros(ELEMENTS)}
BYTES = 4 * ELEMENTS
P = PushStatus


def filled(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((ELEMENTS,), value)}


def started(**options: Any) -> ShardJob:
    return ShardJob(specs_of(START), **options).start(START)


def content(value: float) -> memoryview:
    return memoryview(bytes(torch.full((ELEMENTS,), value).numpy().data.cast("B")))


@contextmanager
def in_thread(call: Callable[[], Any]) -> Iterator[Any]:
    """Run `call` in a thread while the block runs; its future can be asked after it."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(call)


class TestPushes:
    def test_a_gradient_is_whole_when_its_last_range_is_there(self) -> None:
        job, data = started(), content(-1.0)
        store, key = job.stores[0], job.key(0, 0)
        for offset, expected in [(128, P.PARTIAL), (0, P.PARTIAL), (64, P.PARTIAL), (192, P.COMPLETE)]:
            memory = store.reserve(key, offset, 64)
            assert memory is not None
            memory[:] = data[offset : offset + 64]
            assert store.received(key, offset, 64) is expected

    def test_a_range_pushed_again_is_dropped_and_answered_alike(self) -> None:
        job = started()
        store, key = job.stores[0], job.key(0, 0)
        for _ in range(2):
            assert job.push_range(key, 0, 0, content(-1.0)[:128]) is P.PARTIAL
        for _ in range(2):
            assert job.push_range(key, 0, 128, content(-1.0)[128:]) is P.COMPLETE
        assert store.reserve(key, 32, 64) is None
        job.commit(0, {0: 1.0})
        assert job.read(1)["w"].tolist() == [1.0] * ELEMENTS

    def test_overlapping_ranges_count_once(self) -> None:
        job, data = started(), content(-1.0)
        key = job.key(0, 0)
        answers = [job.push_range(key, 0, a, data[a:b]) for a, b in [(0, 100), (50, 200), (10, 20), (150, BYTES)]]
        assert answers == [P.PARTIAL, P.PARTIAL, P.PARTIAL, P.COMPLETE]

    def test_a_retry_after_a_broken_transfer_completes_the_gradient(self) -> None:
        job = started()
        broken = job.stores[0].reserve(job.key(0, 0), 0, BYTES)
        assert broken is not None
        broken[:100] = content(-1.0)[:100]
        assert job.push(0, 0, filled(-1.0)) == {0: P.COMPLETE}

    def test_what_a_broken_transfer_writes_late_reaches_no_gradient(self) -> None:
        job = started()
        broken = job.stores[0].reserve(job.key(0, 0), 0, BYTES)
        assert broken is not None
        assert job.push(0, 0, filled(-1.0)) == {0: P.COMPLETE}
        broken[:] = content(math.nan)
        job.commit(0, {0: 1.0})
        assert job.push(1, 1, filled(-1.0)) == {0: P.COMPLETE}
        broken[:] = content(math.nan)
        job.commit(1, {1: 1.0})
        assert job.read(2)["w"].tolist() == [2.0] * ELEMENTS

    def test_what_a_broken_transfer_of_a_discarded_gradient_writes_reaches_no_other(self) -> None:
        job = started()
        broken = job.stores[0].reserve(job.key(0, 0), 0, BYTES)
        assert broken is not None
        job.push(1, 0, filled(-1.0))
        job.commit(0, {1: 1.0}, discard=(GradientName(0, 1, 0),))
        for worker in (0, 1):
            job.push(worker, 1, filled(-1.0))
        broken[:] = content(math.nan)
        job.commit(1, {0: 0.5, 1: 0.5})
        assert job.read(2)["w"].tolist() == [2.0] * ELEMENTS

    def test_many_threads_that_push_the_same_gradient_push_it_once(self) -> None:
        job = started()
        barrier = threading.Barrier(8)

        def push(_: int) -> PushStatus:
            barrier.wait()
            answers = [job.push_range(job.key(0, 0), 0, a, content(-1.0)[a : a + 16]) for a in range(0, BYTES, 16)]
            return answers[-1]

        with ThreadPoolExecutor(8) as pool:
            assert P.COMPLETE in set(pool.map(push, range(8)))
        assert job.push(0, 0, filled(-1.0)) == {0: P.COMPLETE}
        job.commit(0, {0: 1.0})
        assert job.read(1)["w"].tolist() == [1.0] * ELEMENTS

    def test_a_gradient_that_arrives_after_it_was_discarded_is_dropped(self) -> None:
        job = started()
        held = job.stores[0].bytes_held
        job.commit(0, {}, discard=(GradientName(0, 1, 0),))
        assert job.stores[0].reserve(job.key(0, 0), 0, BYTES) is None
        assert job.stores[0].bytes_held == held

    def test_a_newer_incarnation_frees_what_the_older_one_left_unfinished(self) -> None:
        job = started()
        held = job.stores[0].bytes_held
        job.push_range(job.key(0, 0, incarnation=1), 0, 0, content(1.0)[:64])
        job.push_range(job.key(0, 0, incarnation=2), 0, 0, content(1.0)[:64])
        assert job.stores[0].bytes_held == held + BYTES
        with pytest.raises(RefusedError, match="incarnation 1 of worker 0 was replaced by 2"):
            job.push(0, 0, filled(1.0), incarnation=1)

    def test_what_an_older_incarnation_finished_can_still_be_committed(self) -> None:
        job = started()
        job.push(0, 0, filled(-1.0), incarnation=1)
        job.push(0, 0, filled(-100.0), incarnation=2)
        job.commit(0, {0: 1.0})
        assert job.read(1)["w"].tolist() == [1.0] * ELEMENTS

    def test_a_shard_without_a_byte_of_the_model_takes_part(self) -> None:
        start = {"w": torch.zeros(1)}
        job = ShardJob(specs_of(start), num_shards=3).start(start)
        assert job.layout.shard_bytes == (0, 0, 64)
        for store in job.stores[:2]:
            assert store.reserve(job.key(0, 0), 0, 0) is None
            assert store.received(job.key(0, 0), 0, 0) is P.COMPLETE
        job.push(0, 0, {"w": -torch.ones(1)})
        job.commit(0, {0: 1.0})
        assert job.read(1)["w"].tolist() == [1.0]

    @pytest.mark.parametrize(
        ("key", "offset", "num_bytes", "message"),
        [
            pytest.param(PushKey(0, 0, 1, 0), 0, 4, "term 0 is over, the present one is 1", id="an older term"),
            pytest.param(PushKey(2, 0, 1, 0), 0, 4, "term 2 is not here yet", id="a newer term"),
            pytest.param(PushKey(1, 3, 1, 0), 0, 4, "worker 3 is not known here, there are 3", id="an unknown worker"),
            pytest.param(PushKey(1, -1, 1, 0), 0, 4, "worker -1 is not known", id="a negative worker"),
            pytest.param(PushKey(1, 0, 1, -2), 0, 4, "iteration -2 cannot be", id="an iteration below the initial one"),
            pytest.param(PushKey(1, 0, 1, 1 << 40), 0, 4, "cannot be, the present version is 0", id="one far ahead"),
            pytest.param(PushKey(1, 0, 1, 0), -4, 4, "bytes -4 to 0", id="a negative offset"),
            pytest.param(PushKey(1, 0, 1, 0), 0, -4, "bytes 0 to -4", id="a negative length"),
            pytest.param(PushKey(1, 0, 1, 0), 0, BYTES + 4, "are not in one region", id="more than there is"),
            pytest.param(PushKey(1, 0, 1, 0), 0, 10 << 30, "are not in one region", id="ten gigabytes"),
            pytest.param(PushKey(1, 0, 1, 0), BYTES, 4, "are not in one region", id="behind the end"),
            pytest.param(PushKey(1, 0, 1, 0), 1 << 70, 4, "are not in one region", id="far behind the end"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_is_refused_before_memory_is_given(
        self, key: PushKey, offset: int, num_bytes: int, message: str
    ) -> None:
        job = started()
        held = job.stores[0].bytes_held
        with pytest.raises(RefusedError, match=message):
            job.stores[0].reserve(key, offset, num_bytes)
        assert job.stores[0].bytes_held == held

    def test_frozen_tensors_are_pushed_once_and_never_with_a_gradient(self) -> None:
        start = {"w": torch.zeros(16), "table": torch.ones(16)}
        job = ShardJob(specs_of(start, {"table": TensorKind.FROZEN})).start(start)
        with pytest.raises(RefusedError, match="bytes 64 to 128 are not in one region of a gradient"):
            job.stores[0].reserve(job.key(0, 0), 64, 64)
        with pytest.raises(RefusedError, match="bytes 32 to 96"):
            job.stores[0].reserve(job.key(0, 0), 32, 64)

    def test_a_worker_may_have_a_few_gradients_waiting_and_no_more(self) -> None:
        job = started()
        for iteration in range(WAITING_LIMIT):
            job.push(0, iteration, filled(1.0))
        with pytest.raises(RefusedError, match=f"{WAITING_LIMIT} gradients of worker 0 wait here already"):
            job.push(0, WAITING_LIMIT, filled(1.0))
        job.commit(0, {0: 1.0})
        job.push(0, WAITING_LIMIT, filled(1.0))

    def test_nothing_is_taken_before_the_model_is_known(self) -> None:
        with pytest.raises(RefusedError, match="no model yet"):
            ShardStore().reserve(PushKey(1, 0, 1, -1), 0, 4)

    def test_gradients_are_not_taken_before_there_is_a_version(self) -> None:
        job = ShardJob(specs_of(START))
        job.stores[0].configure(job.shard_specs[0])
        with pytest.raises(RefusedError, match="only the initial values"):
            job.push(0, 0, filled(1.0))

    def test_a_range_that_was_never_announced_is_refused(self) -> None:
        with pytest.raises(RefusedError, match="is not known here"):
            started().stores[0].received(PushKey(1, 0, 1, 0), 0, 4)


class TestVersions:
    def test_a_version_that_is_read_is_not_changed_by_commits(self) -> None:
        job = started()
        with job.stores[0].snapshot(1, 0, 0.0) as held:
            assert held is not None
            before = bytes(held.buffer)
            for version in range(3):
                job.push(0, version, filled(-1.0))
                job.commit(version, {0: 1.0})
            assert bytes(held.buffer) == before
        assert job.read(3)["w"].tolist() == [3.0] * ELEMENTS

    def test_a_snapshot_cannot_be_written_to(self) -> None:
        with started().stores[0].snapshot(1, 0, 0.0) as held:
            assert held is not None
            with pytest.raises(TypeError, match="read-only"):
                held.buffer[0] = 1

    def test_without_readers_versions_are_made_in_place(self) -> None:
        job = started()
        job.push(0, 0, filled(-1.0))
        held = job.stores[0].bytes_held
        job.commit(0, {0: 1.0})
        assert (job.stores[0].bytes_held, job.stores[0].versions()) == (held, (1,))

    def test_readers_of_every_version_always_see_one_whole_version(self) -> None:
        job = started(num_workers=1)
        store, stop = job.stores[0], threading.Event()

        def read() -> set[bool]:
            seen = set()
            version = 0
            while not stop.is_set():
                try:
                    with store.snapshot(1, version, 0.01) as held:
                        if held is not None:
                            values = torch.frombuffer(bytearray(held.buffer), dtype=torch.float32)
                            seen.add(bool((values == float(version)).all()))
                            version += 1
                except RefusedError:
                    version = store.versions()[-1] if store.versions() else version
            return seen

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(3)]
            for version in range(40):
                job.push(0, version, filled(-1.0))
                job.commit(version, {0: 1.0}, retain=frozenset({version}) if version % 3 else frozenset())
            stop.set()
            assert {result for reader in readers for result in reader.result()} <= {True}
        assert job.read(40)["w"].tolist() == [40.0] * ELEMENTS

    def test_versions_that_are_named_stay_and_the_others_go(self) -> None:
        job = started()
        for version, retain in enumerate([{0}, {0, 1}, {0, 2}, {3}]):
            job.push(0, version, filled(-1.0))
            job.commit(version, {0: 1.0}, retain=frozenset(retain))
            assert job.stores[0].versions() == (*sorted(retain), version + 1)
            assert {v: job.read(v)["w"][0].item() for v in retain} == {v: float(v) for v in retain}

    def test_a_dropped_version_is_refused_and_the_held_ones_are_named(self) -> None:
        job = started()
        job.push(0, 0, filled(-1.0))
        job.commit(0, {0: 1.0})
        with pytest.raises(RefusedError, match=r"version 0 is not held any more \(held: 1\)"):
            job.read(0)

    def test_a_version_that_does_not_come_in_time_is_not_yet(self) -> None:
        with started().stores[0].snapshot(1, 1, 0.0) as held:
            assert held is None

    def test_a_shard_without_a_model_answers_not_yet(self) -> None:
        with ShardStore().snapshot(1, 0, math.nan) as held:
            assert held is None

    @pytest.mark.parametrize(("term", "version"), [(0, 0), (2, 0), (1, -1)])
    def test_other_terms_and_negative_versions_are_refused(self, term: int, version: int) -> None:
        with pytest.raises(RefusedError), started().stores[0].snapshot(term, version, 0.0):
            pass

    def test_a_pull_waits_for_its_version(self) -> None:
        job = ShardJob(specs_of(START))

        def pull() -> bytes:
            with job.stores[0].snapshot(1, 1, 30.0) as held:
                assert held is not None
                return bytes(held.buffer)

        with in_thread(pull) as pulled:
            job.start(START)
            job.push(0, 0, filled(-7.0))
            job.commit(0, {0: 1.0})
            assert pulled.result(30) == content(7.0)

    def test_closing_refuses_those_who_wait_at_once(self) -> None:
        job = started()

        def pull() -> None:
            with job.stores[0].snapshot(1, 9, 30.0):
                pass

        with in_thread(pull) as pulled:
            job.stores[0].close("the shard is shutting down")
            assert "the shard is shutting down" in str(pulled.exception(30))
        with pytest.raises(RefusedError, match="the shard is shutting down"):
            job.push(0, 0, filled(1.0))


class TestModel:
    def test_the_same_model_again_changes_nothing(self) -> None:
        job = started()
        job.stores[0].configure(job.shard_specs[0])
        job.stores[0].publish(1)
        assert job.stores[0].versions() == (0,)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            pytest.param({"optimizer": "Adam"}, "optimizer differ", id="another optimizer"),
            pytest.param({"tensors": specs_of({"v": torch.zeros(2)})}, "tensors differ", id="other tensors"),
            pytest.param({"workers": ("gpu-0",)}, "workers differ", id="other workers"),
            pytest.param({"term": 0}, "term 0 is over", id="an older term"),
        ],
    )
    def test_another_model_in_the_same_term_is_refused(self, change: dict[str, Any], message: str) -> None:
        job = started()
        with pytest.raises(RefusedError, match=message):
            job.stores[0].configure(replace(job.shard_specs[0], **change))
        assert job.read(0)["w"].tolist() == [0.0] * ELEMENTS

    def test_a_higher_term_starts_afresh(self) -> None:
        job = started()
        job.push(0, 0, filled(-1.0))
        again = ShardJob(specs_of(START), term=2)
        again.stores = job.stores
        again.start(filled(5.0))
        with pytest.raises(RefusedError, match="term 1 is over"):
            job.push(0, 0, filled(-1.0))
        assert again.read(0)["w"].tolist() == [5.0] * ELEMENTS

    def test_nothing_is_published_before_the_initial_values_are_whole(self) -> None:
        job = ShardJob(specs_of(START))
        job.stores[0].configure(job.shard_specs[0])
        job.push_range(job.key(0, -1), 0, 0, content(0.0)[:64])
        with pytest.raises(RefusedError, match="initial values are not complete"):
            job.stores[0].publish(1)
        with pytest.raises(RefusedError, match="not published yet"):
            job.commit(0, {})

    def test_initial_values_pushed_again_later_are_dropped(self) -> None:
        job = started()
        assert job.push(1, -1, filled(9.0)) == {0: P.COMPLETE}
        assert job.read(0)["w"].tolist() == [0.0] * ELEMENTS

    def test_a_shard_that_breaks_in_a_commit_serves_nobody_after_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        job = started()
        job.push(0, 0, filled(-1.0))

        def fail(*_: object) -> None:
            raise MemoryError("no memory for optimizer state")

        monkeypatch.setattr("heterotrain.ps.part.ShardOptimizer.step", fail)
        with pytest.raises(MemoryError):
            job.commit(0, {0: 1.0})
        with pytest.raises(RefusedError, match="the shard broke: MemoryError: no memory for optimizer state"):
            job.read(0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            pytest.param({"shard": 2}, "shard must be 0 to num_shards - 1 = 0", id="a shard too many"),
            pytest.param({"workers": ()}, "at least one worker", id="no worker"),
            pytest.param({"optimizer": "LBFGS"}, "optimizer `LBFGS` cannot run", id="an optimizer for whole tensors"),
            pytest.param({"groups": ('{"lr": -1}',)}, r"groups\[0\]: .*Invalid learning rate", id="a negative rate"),
            pytest.param({"groups": ()}, "group must be 0 to -1, not 0", id="no parameter group"),
        ],
    )
    def test_a_model_that_cannot_be_is_refused(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            replace(ShardJob(specs_of(START)).shard_specs[0], **change)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            pytest.param({"dtype": "I64"}, "`w`: dtype of a PARAMETER must be one of BF16", id="an integer parameter"),
            pytest.param({"kind": TensorKind.INTEGER_BUFFER}, "not F32", id="a float integer buffer"),
            pytest.param({"shape": (-1,)}, "out of bounds", id="a negative dimension"),
            pytest.param({"shape": (1 << 80,)}, "out of bounds", id="a huge dimension"),
            pytest.param({"shape": (1 << 40, 1 << 40)}, "more than 70368744177664 bytes", id="a huge product"),
            pytest.param({"name": ""}, "must be printable and not empty, not ''", id="no name"),
            pytest.param({"aliases": ("",)}, "must be printable and not empty, not ''", id="no further name"),
            pytest.param({"name": "w\nINFO x"}, "must be printable", id="a name that would forge a line of a log"),
            pytest.param({"group": 1}, "group must be 0 to 0, not 1", id="a group that is not there"),
        ],
    )
    def test_a_tensor_that_cannot_be_is_refused(self, change: dict[str, Any], message: str) -> None:
        job = ShardJob(specs_of(START))
        tensors = (replace(job.layout.tensors[0], **change),)
        with pytest.raises(ValueError, match=message):
            replace(job.shard_specs[0], tensors=tensors)

    def test_expected_bytes_are_those_of_values_and_optimizer_state(self) -> None:
        spec = ShardJob(specs_of(START), optimizer="Adam").shard_specs[0]
        assert ShardStore().configure(spec) == BYTES + 2 * BYTES


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_memory_is_flat_over_fifty_commits(optimizer: str) -> None:
    job = started(optimizer=optimizer, groups=[{"lr": 0.1}])
    store = job.stores[0]
    held = []
    for version in range(50):
        for worker in range(3):
            job.push(worker, version, filled(float(worker)))
        with store.snapshot(1, version, 0.0):
            job.commit(version, {0: 0.5, 1: 0.25, 2: 0.25}, retain=frozenset({version - 1, version}))
        held.append(store.bytes_held)
    assert set(held[2:]) == {held[2]}
    state = {"SGD": 0, "Adam": 2 * BYTES + 4}[optimizer]
    # Three gradients, the aggregate, and four arenas of versions: the present one, two retained, the next.
    assert held[-1] <= (3 + 1 + 4) * BYTES + state
