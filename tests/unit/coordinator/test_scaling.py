"""A job whose groups were scaled begins its next term with the workers that it then has."""

from __future__ import annotations

import pytest

from heterotrain.coordinator.messages import event_of
from heterotrain.coordinator.scaling import scaled_config
from heterotrain.coordinator.term import loss_of
from heterotrain_api.trainer_config import ShardConfig, TrainerConfig, WorkerConfig
from heterotrain_core import run_events as ev
from heterotrain_rpc import session_pb2

SHARD = ShardConfig(control_address="x:1", tensor_address="x:2")


def config(batch: int, *workers: tuple[str, int, int]) -> TrainerConfig:
    return TrainerConfig(
        job_name="j",
        job_uid="u",
        seed=1,
        global_batch_size=batch,
        workers=tuple(
            WorkerConfig(name=name, group=name.split("-")[0], share=low, minimum=low, maximum=high)
            for name, low, high in workers
        ),
        shards=(SHARD,),
    )


@pytest.mark.parametrize(
    ("replicas", "shares"),
    [
        pytest.param({"a": 2, "b": 1}, {"a-0": 4, "a-1": 4, "b-0": 4}, id="as it was"),
        pytest.param({"a": 1, "b": 2}, {"a-0": 4, "b-0": 4, "b-1": 4}, id="one less, one more"),
        pytest.param({"a": 1, "b": 1}, {"a-0": 6, "b-0": 5}, id="less than their bounds allow of the batch"),
    ],
)
def test_shares_are_equal_within_the_bounds(replicas: dict[str, int], shares: dict[str, int]) -> None:
    scaled = scaled_config(config(12, ("a-0", 1, 6), ("a-1", 1, 6), ("b-0", 2, 5)), replicas)
    assert {w.name: w.share for w in scaled.workers} == shares
    assert [(w.group, w.minimum, w.maximum) for w in scaled.workers if w.group == "b"] == [("b", 2, 5)] * replicas["b"]


def test_smallest_shares_above_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="more than the 3 samples"):
        scaled_config(config(3, ("a-0", 2, 6)), {"a": 2})


def test_a_worker_says_that_it_leaves() -> None:
    assert event_of("a-0", session_pb2.WorkerMessage(leaving=session_pb2.Leaving())) == ev.Leaving("a-0")


@pytest.mark.parametrize(("rejoins", "words"), [(False, "parameter server ps-1 is lost to worker a-0"), (True, "")])
def test_one_worker_that_lost_a_shard_is_no_loss_of_the_shard_where_it_may_rejoin(rejoins: bool, words: str) -> None:
    assert loss_of(ev.WorkerFailed("a-0", "x", "ps-1"), rejoins=rejoins) == words
    assert loss_of(ev.ShardFailed("ps-1", "gone"), rejoins=rejoins) == "parameter server ps-1 is lost: gone"
