"""A shard that has ended with code 0: too early, or told to because the job is over and nobody else has said so yet."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from builders_operator import TRAINING, in_, make_end, make_job, make_pod, make_state, pods, seen, training_status
from builders_operator import viewed as view_of
from heterotrain_operator.job.judge import UNHEARD_EXIT_SECONDS, End, Verdict, Wait, judge
from heterotrain_operator.job.observed import TrainingSeen
from heterotrain_rpc import control_pb2

JOB = make_job(status=training_status())


def judged(seconds_ago: float, training: TrainingSeen | None) -> Verdict:
    shard = make_pod("ps-0", trainer=make_end(0, seconds_ago=seconds_ago))
    return judge(view_of(job=JOB, pods=pods(shard), training=training))


class Case(NamedTuple):
    text: str
    seconds_ago: float
    training: TrainingSeen | None
    want: str


OVER = make_state(control_pb2.PHASE_SUCCEEDED, reason="EpochsCompleted")
CASES = [
    Case("the coordinator trains on, for some seconds", 5, seen(make_state(TRAINING)), "wait"),
    Case("the coordinator trains on, for longer", 11, seen(make_state(TRAINING)), "ShardFailed"),
    Case("the coordinator said the end, its container's is not seen yet", 45, seen(OVER, connected=False), "go on"),
    Case(
        "the coordinator does not answer: it may have ended too",
        45,
        seen(make_state(TRAINING), connected=False),
        "wait",
    ),
    Case("the operator has just started and has heard nothing", 45, None, "wait"),
    Case("nobody has said anything for a minute", 61, seen(make_state(TRAINING), connected=False), "ShardFailed"),
]


@pytest.mark.parametrize("case", CASES, ids=[case.text for case in CASES])
def test_a_shard_that_has_ended(case: Case) -> None:
    match judged(case.seconds_ago, case.training):
        case End() as end:
            found = end.reason
        case Wait():
            found = "wait"
        case None:
            found = "go on"
    assert found == case.want


def test_it_is_waited_for_until_the_patience_with_a_silent_coordinator_is_over() -> None:
    verdict = judged(45, None)
    assert verdict == Wait(
        in_(UNHEARD_EXIT_SECONDS - 45), "parameter server ps-0 has ended; the coordinator has not yet"
    )
