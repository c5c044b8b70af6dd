"""A worker that the adaptation wants replaced: its pod goes, and the next one prefers another node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders_operator import (
    NOW,
    SETTINGS,
    decided,
    made,
    make_job,
    make_observed,
    make_pod,
    make_state,
    pods,
    seen,
    training_status,
)
from heterotrain_api.conditions import Reason
from heterotrain_api.status import Recovery, Restart
from heterotrain_operator.adaptation import PlaceSeen
from heterotrain_operator.job.placement import Wish, placed
from heterotrain_operator.job.replacing import irreplaceable

SLOW = make_pod("cpu-1", node="node-slow")
ASKED: dict[str, Any] = {"training": seen(make_state()), "replacing": {"cpu-1": PlaceSeen(SLOW.name, "node-slow")}}
RESTARTED = Restart(name="cpu-1", count=3, pod=SLOW.name, reason=Reason.POD_DELETED.value, time=NOW)


def test_its_pod_is_deleted_once() -> None:
    decision = decided(make_job(status=training_status()), pods=pods(SLOW), **ASKED)

    assert [(d.name, d.uid) for d in decision.delete] == [(SLOW.name, SLOW.uid)]
    assert "holds the others up" in decision.delete[0].why


@pytest.mark.parametrize(
    ("found", "status"),
    [
        pytest.param(replace(SLOW, deleting=True), training_status(), id="it is on its way out"),
        pytest.param(make_pod("cpu-1", attempt=2, node="node-1"), training_status(), id="another one has its place"),
        pytest.param(
            SLOW, training_status(recovery=Recovery(restarts=(RESTARTED,))), id="it was started again too often"
        ),
    ],
)
def test_it_is_not_deleted_if(found: Any, status: Any) -> None:
    assert decided(make_job(status=status), pods=pods(found), **ASKED).delete == ()


def test_the_next_pod_prefers_another_node() -> None:
    gone = pods(without=("cpu-1",))
    first = decided(make_job(status=training_status()), pods=gone, **ASKED)

    then = decided(make_job(status=first.status), pods=gone, **ASKED)

    (pod,) = [child.manifest for child in then.make]
    (term,) = pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["node-slow"]}]
    assert set(made(then)) == {"fashion-cpu-1-2"}


def test_who_could_not_be_started_again_is_named_with_the_reason() -> None:
    status = training_status(recovery=Recovery(restarts=(RESTARTED,)))
    observed = make_observed(make_job(status=status), pods(SLOW), training=seen(make_state()))

    assert irreplaceable(observed, SETTINGS, NOW) == {
        "cpu-1": "cpu-1 cannot be replaced: it was started again 3 times before, as often as"
        " spec.runPolicy.backoffLimit allows"
    }


def test_before_training_nobody_is_replaced() -> None:
    found = irreplaceable(make_observed(make_job(), pods(SLOW)), SETTINGS, NOW)

    assert found["cpu-0"] == "cpu-0 cannot be replaced: training has not begun"


def test_what_the_template_prefers_stays() -> None:
    mine = {"weight": 5, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    spec = {"affinity": {"podAffinity": {"a": 1}, "nodeAffinity": {key: [mine]}}, "nodeName": ""}

    there = placed(spec, Wish(avoid="x"))

    assert there["affinity"]["nodeAffinity"][key][0] == mine
    assert there["affinity"]["podAffinity"] == {"a": 1}
    assert len(spec["affinity"]["nodeAffinity"][key]) == 1
    assert placed(spec, Wish()) == spec
