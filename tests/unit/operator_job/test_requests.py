"""What users ask for by annotation: read, sent once it can be, answered for good."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders_operator import (
    decided,
    ended_status,
    make_end,
    make_job,
    make_pod,
    make_state,
    outcome,
    pods,
    seen,
    status_of,
    training_status,
    viewed,
)
from heterotrain_api.contract import Annotation
from heterotrain_api.status import MAX_REQUESTS, RequestAnswer
from heterotrain_core.sync_settings import from_fields
from heterotrain_core.synchronization import Bsp, Delay, Discount, DiscountKind, Dssp, Ssp, Synchronization
from heterotrain_operator.job.asking import as_plan, verdict_answer
from heterotrain_operator.job.decision import ApplyPlan, Decision, SendCommand
from heterotrain_operator.job.observed import Answer
from heterotrain_operator.job.requests import (
    MalformedRequestError,
    command_request,
    desk,
    parse_command,
    parse_plan,
    plan_request,
)
from heterotrain_rpc import control_pb2
from heterotrain_rpc.fields import given_fields

PLAN = plan_request("p1", {"cpu-0": 6, "cpu-1": 2}, reason="by hand", micro_batches={"cpu-0": 3})
STOP = command_request("c1", "stop", reason="enough")


def test_what_the_command_line_writes_is_what_is_read() -> None:
    assert parse_plan(PLAN) == ApplyPlan("p1", {"cpu-0": 6, "cpu-1": 2}, "by hand", {"cpu-0": 3})
    assert parse_command(STOP) == SendCommand("c1", "stop", "", "enough")
    assert parse_command(command_request("c2", "drain", worker="cpu-1")) == SendCommand("c2", "drain", "cpu-1")


MALFORMED_PLANS: list[tuple[str, str, str]] = [
    ("no JSON", "cpu-0=6", "the annotation must be a JSON object"),
    ("a list", "[]", "the annotation must be a JSON object"),
    ("no id", '{"shares": {"cpu-0": 6}}', "id must be a string of 1 to 63 characters"),
    ("no shares", '{"id": "p"}', "shares must name at least one worker"),
    ("shares as a list", '{"id": "p", "shares": ["cpu-0"]}', "shares must be an object"),
    (
        "a share of half a sample",
        '{"id": "p", "shares": {"cpu-0": 0.5}}',
        "shares.cpu-0 must be a whole number of samples",
    ),
    ("a share of true", '{"id": "p", "shares": {"cpu-0": true}}', "shares.cpu-0 must be a whole number of samples"),
    ("a negative share", '{"id": "p", "shares": {"cpu-0": -1}}', "shares.cpu-0 must be a whole number of samples"),
    (
        "a micro-batch of nobody",
        '{"id": "p", "shares": {"cpu-0": 1}, "microBatches": {"cpu-1": 1}}',
        "microBatches: cpu-1 must be in shares too",
    ),
    ("a reason that is no text", '{"id": "p", "shares": {"cpu-0": 1}, "reason": 7}', "reason must be a string"),
]


@pytest.mark.parametrize(("text", "want"), [c[1:] for c in MALFORMED_PLANS], ids=[c[0] for c in MALFORMED_PLANS])
def test_a_plan_that_cannot_be_read_is_answered_with_what_is_wrong(text: str, want: str) -> None:
    job = make_job(annotations={Annotation.PLAN_REQUEST: text}, status=training_status())
    decision = decided(job, pods(), training=seen(make_state()))
    assert decision.requests == ()
    (answer,) = status_of(decision).requests
    assert not answer.accepted
    assert want in answer.message
    again = decided(make_job(annotations={Annotation.PLAN_REQUEST: text}, status=status_of(decision)), pods())
    assert again.status is None, "answered once"


def sync_plan(change: object) -> str:
    return json.dumps({"id": "s1", "synchronization": change, "reason": "by hand"})


def asked(change: object, **fields: Any) -> Decision:
    """What a pass makes of a change while the job trains under Delay, window 0.02 s, at most 3 rounds stale."""
    job = make_job(annotations={Annotation.PLAN_REQUEST: sync_plan(change)}, status=training_status())
    return decided(job, pods(), training=seen(make_state(**fields)))


CHANGES: list[tuple[str, dict[str, Any], Synchronization]] = [
    ("a bound: the window stays", {"stalenessBound": 8}, Delay(0.02, 8)),
    ("no bound", {"stalenessBound": "None"}, Delay(0.02, None)),
    ("a window: the bound stays", {"delayWindowMilliseconds": 40}, Delay(0.04, 3)),
    ("a discount", {"discount": "Inverse"}, Delay(0.02, 3, Discount(DiscountKind.POLYNOMIAL, 1.0))),
    ("another mode has its own defaults", {"mode": "SSP"}, Ssp(3)),
    ("another mode with its bounds", {"mode": "DSSP", "dssp": {"lower": 1, "range": 4}}, Dssp(1, 4)),
    ("a mode without settings", {"mode": "BSP"}, Bsp()),
]


@pytest.mark.parametrize(("change", "want"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_a_change_of_mode_or_bounds_is_completed_by_what_is_in_force(
    change: dict[str, Any], want: Synchronization
) -> None:
    (request,) = asked(change).requests
    assert isinstance(request, ApplyPlan)
    assert request.synchronization is not None
    assert (request.shares, request.synchronization.synchronization()) == ({}, want)
    message = as_plan(request)
    assert from_fields(given_fields(message.synchronization)).synchronization() == want


WRONG_CHANGES: list[tuple[str, object, str]] = [
    ("a list", ["SSP"], "synchronization must be an object with what is to change"),
    ("nothing", {}, "synchronization must be an object with what is to change"),
    ("no such mode", {"mode": "XSP"}, "synchronization.mode: must be one of"),
    ("an unknown field", {"bound": 3}, "synchronization.bound: unknown field"),
    ("what a plan does not carry", {"leaseSeconds": 5}, "synchronization.leaseSeconds: unknown field"),
    ("a negative bound", {"stalenessBound": -1}, "synchronization.stalenessBound: must be"),
    (
        "what means nothing in the mode in force",
        {"dssp": {"lower": 1, "range": 2}},
        "synchronization.dssp: must be left out unless mode is DSSP: it means nothing in other modes; the mode is ",
    ),
    ("what means nothing in the mode asked for", {"mode": "BSP", "stalenessBound": 1}, "the mode is BSP"),
]


@pytest.mark.parametrize(("change", "want"), [c[1:] for c in WRONG_CHANGES], ids=[c[0] for c in WRONG_CHANGES])
def test_a_change_that_does_not_fit_is_refused_with_the_field_and_why(change: object, want: str) -> None:
    decision = asked(change)
    assert decision.requests == ()
    (answer,) = status_of(decision).requests
    assert (answer.id, answer.accepted) == ("s1", False)
    assert want in answer.message
    assert [e.reason for e in decision.events] == ["PlanRefused"]


def test_before_the_coordinator_says_its_mode_a_change_is_over_that_of_the_manifest() -> None:
    job = make_job(
        annotations={Annotation.PLAN_REQUEST: sync_plan({"stalenessBound": 1})},
        synchronization={"mode": "SSP", "stalenessBound": 5, "discount": "StalenessAware"},
    )
    (request,) = desk(viewed(job)).send
    assert isinstance(request, ApplyPlan)
    assert request.synchronization is not None
    assert request.synchronization.synchronization() == Ssp(1, Discount(DiscountKind.STALENESS_AWARE))


def test_shares_and_a_change_may_come_in_one_plan() -> None:
    text = plan_request("p", {"cpu-0": 6}, reason="both", synchronization={"mode": "ASP"})
    assert parse_plan(text) == ApplyPlan("p", {"cpu-0": 6}, "both", change={"mode": "ASP"})


def test_the_answer_to_a_change_says_what_is_agreed() -> None:
    (request,) = asked({"stalenessBound": 1}).requests
    assert isinstance(request, ApplyPlan)
    verdict = control_pb2.PlanVerdict(accepted=True, generation=2, effective_round=41)
    assert verdict_answer(request, verdict) == Answer(
        "s1", True, "plan 2 is in force from round 41: Delay, window 0.02 s, at most 1 rounds stale"
    )


def test_commands_that_cannot_be_read() -> None:
    for text, want in (
        ('{"id": "c", "command": "explode"}', "command must be one of stop, checkpoint, drain, not 'explode'"),
        ('{"id": "c", "command": "drain"}', "worker must be given with the command drain"),
        ('{"id": "c", "command": "stop", "worker": "cpu-0"}', "worker must be given with the command drain"),
    ):
        with pytest.raises(MalformedRequestError, match=want):
            parse_command(text)


def test_a_request_stands_until_it_is_answered_and_then_never_again() -> None:
    job = make_job(annotations={Annotation.PLAN_REQUEST: PLAN}, status=training_status())
    open_ = desk(viewed(job, pods(), training=seen(make_state())))
    assert [request.request_id for request in open_.send] == ["p1"]
    answered = decided(job, pods(), training=seen(make_state()), answers=(Answer("p1", True, "in force\nfrom 9"),))
    assert answered.requests == ()
    assert status_of(answered).requests == (RequestAnswer(id="p1", accepted=True, message="in force from 9"),)
    later = make_job(annotations={Annotation.PLAN_REQUEST: PLAN}, status=status_of(answered))
    assert desk(viewed(later)).send == ()


def test_old_answers_make_room_but_not_those_that_still_stand_in_an_annotation() -> None:
    old = tuple(RequestAnswer(id=name, accepted=True) for name in ["p1", *(f"x{i}" for i in range(MAX_REQUESTS - 1))])
    job = make_job(
        annotations={Annotation.PLAN_REQUEST: PLAN, Annotation.COMMAND: STOP},
        status={"requests": [answer.to_document() for answer in old]},
    )
    answers = desk(viewed(job, answers=(Answer("c1", True, "done"),))).answers
    assert len(answers) == MAX_REQUESTS
    assert [answers[0].id, answers[1].id, answers[-1].id] == ["p1", "x1", "c1"]


def test_the_end_answers_what_is_open() -> None:
    job = make_job(annotations={Annotation.PLAN_REQUEST: PLAN, Annotation.COMMAND: STOP}, status=training_status())
    stopped = make_pod("ps-0", coordinator=make_end(3, message=outcome("Stopped", "Stopped", "enough")))
    assert [(a.id, a.accepted, a.message) for a in status_of(decided(job, pods(stopped))).requests] == [
        ("p1", False, "the job is over"),
        ("c1", True, "the job was stopped"),
    ]


def test_a_request_to_a_job_that_is_over_is_refused() -> None:
    decision = decided(make_job(annotations={Annotation.COMMAND: STOP}, status=ended_status()))
    assert [(a.id, a.accepted, a.message) for a in status_of(decision).requests] == [("c1", False, "the job is over")]
    assert [e.reason for e in decision.events] == ["RequestRefused"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "shares", "command", "worker", "microBatches", "synchronization", "reason"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON.map(json.dumps) | st.text(max_size=30))
def test_any_annotation_is_read_or_refused_with_an_id_that_fits(text: str) -> None:
    for parse in (parse_plan, parse_command):
        try:
            found = parse(text).request_id
        except MalformedRequestError as error:
            found = error.request_id
        assert 0 < len(found) <= 63
