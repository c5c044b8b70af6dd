from __future__ import annotations

import pytest

from heterotrain.engine import Clip, Update
from heterotrain.grants import Item
from heterotrain.messages import done_message, item_of, judge_plan
from heterotrain_core.memory import MemoryUse
from heterotrain_core.run_values import Traffic
from heterotrain_core.types import EpochEnd, Grant, SampleRange, TrainingEnd
from heterotrain_rpc import control_pb2 as control
from heterotrain_rpc import session_pb2 as pb

GRANT = Grant(-1, 4, 3, (SampleRange(1, 5, 9),), 2, 6)
WELCOME = pb.Welcome(share_minimum=2, share_maximum=9)


@pytest.mark.parametrize(
    ("message", "want"),
    [
        (
            pb.CoordinatorMessage(
                grant=pb.GrantMessage(
                    iteration=4,
                    version=3,
                    epoch=1,
                    ranges=[pb.Range(epoch=1, start=5, stop=9)],
                    micro_batch=2,
                    plan_generation=6,
                    schedule_step=8,
                )
            ),
            Item(GRANT, 8),
        ),
        (
            pb.CoordinatorMessage(epoch_end=pb.EpochEndMessage(epoch=1, version=3, schedule_step=8)),
            Item(EpochEnd(-1, 1, 3), 8),
        ),
        (
            pb.CoordinatorMessage(training_end=pb.TrainingEndMessage(version=3, reason="over", schedule_step=8)),
            Item(TrainingEnd(-1, 3, "over"), 8),
        ),
    ],
    ids=["a grant", "the end of an epoch", "the end of training"],
)
def test_items(message: pb.CoordinatorMessage, want: Item) -> None:
    assert item_of(message) == want


def test_a_done_says_what_the_commit_needs() -> None:
    update = Update(GRANT, Clip(1.0, 2.0), data_seconds=0.1, compute_seconds=0.2, memory=MemoryUse(4, 500, 1000))
    timings = pb.Timings(data_seconds=0.1)
    assert done_message(9, update, ["{}"], [3], timings, traffic=Traffic(8, 4), refusal="ps-1: w") == pb.Done(
        term=9, iteration=4, base_version=3, samples=4, refused=True, refusal="ps-1: w", groups=["{}"], max_norm=1.0,
        norm_type=2.0, absent=[3], timings=timings, pushed_bytes=8, pulled_bytes=4,
        memory=pb.MemoryUse(samples=4, peak_bytes=500, limit_bytes=1000),
    )  # fmt: skip


def plan(*shares: control.PlanShare) -> control.Plan:
    return control.Plan(generation=3, shares=shares)


@pytest.mark.parametrize(
    ("proposed", "reason"),
    [
        (plan(control.PlanShare(worker="a", samples=9), control.PlanShare(worker="b", samples=1)), ""),
        (plan(control.PlanShare(worker="a", samples=10)), "the share of a must be between 2 and 9 samples, not 10"),
        (plan(control.PlanShare(worker="a", samples=1)), "the share of a must be between 2 and 9 samples, not 1"),
        (plan(control.PlanShare(worker="b", samples=5)), "the plan must have one share for a, not 0"),
        (
            plan(control.PlanShare(worker="a", samples=5, micro_batch=0)),
            "the micro-batch of a must be at least 1 sample, not 0",
        ),
    ],
    ids=["within bounds", "above", "below", "not in it", "an empty micro-batch"],
)
def test_a_worker_enforces_the_bounds_it_joined_with(proposed: control.Plan, reason: str) -> None:
    assert judge_plan("a", WELCOME, proposed) == pb.PlanAnswer(generation=3, accepted=not reason, reason=reason)
