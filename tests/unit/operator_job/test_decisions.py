"""What the status keeps of the adaptation's decisions, and how `heterotrain explain` reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest

from builders_adaptation import simulate, steady
from builders_operator import NOW, decided, make_job, make_state, pods, seen, status_of, training_status
from heterotrain_api.crd import job_schema
from heterotrain_api.schema_check import check
from heterotrain_api.status import MAX_DECISIONS, MAX_RECORD, AdaptationDecision
from heterotrain_core.adaptation.values import Action, Answer, Decision
from heterotrain_operator.adaptation import Told, answer_document, brief, decision_document
from heterotrain_operator.explain import chain, explain, records_of
from heterotrain_operator.job.figures import decisions

KEEP = decision_document(Decision(Action.KEEP, "the shares are the best for the present speeds"), seconds=1.0)


@cache
def proposal(workers: int = 4) -> dict[str, Any]:
    """The first plan of a job whose workers are all unlike."""
    job = simulate([steady(0.01 * (1 + n)) for n in range(workers)], batch=32 * workers)
    job.run(12)
    first = next(d for _, d in job.decisions if d.action is Action.PROPOSE)
    return decision_document(replace(first, generation=1), seconds=20.25)


def told(document: dict[str, Any], seconds: int = 0) -> Told:
    return Told(NOW + timedelta(seconds=seconds, milliseconds=250), document)


def test_the_status_keeps_what_was_done_and_explain_shows_the_chain_from_it() -> None:
    agreed = answer_document(Answer(2, effective_round=9), seconds=21.0)

    document = status_of(
        decided(
            make_job(status=training_status()),
            pods=pods(),
            training=seen(make_state()),
            decisions=(told(proposal()), told(agreed, 1), told(KEEP, 5)),
        )
    )

    assert list(check(document.to_document(), job_schema()["properties"]["status"], "status")) == []
    assert [item.action for item in document.decisions] == ["Propose", "Answer", "Keep"]
    lines = explain(chain(records_of(document)))
    assert lines[0].startswith("20.2 s, round 5: plan 2 was proposed: the workers' speeds are known for the first time")
    assert "    w3: 3 steps: 0.0 ms + 40 ms a sample (± 0.6%); share 32→15: 1280.0 ms → 600.0 ms" in lines
    assert "21.0 s: plan 2 is agreed, in force from round 9" in lines
    assert any("the shares are the best for the present speeds" in line for line in lines)


def test_a_look_takes_the_place_of_the_one_before_it_and_deeds_stay() -> None:
    old = decisions([told(proposal()), told(KEEP, 5)], ())

    new = decisions([told(proposal()), told(KEEP, 10)], old)

    assert [(item.action, item.time) for item in new] == [
        ("Propose", NOW.replace(microsecond=0)),
        ("Keep", (NOW + timedelta(seconds=10)).replace(microsecond=0)),
    ]


def test_what_an_operator_before_this_one_told_stays_and_only_the_newest_are_kept() -> None:
    old = tuple(
        AdaptationDecision(time=NOW + timedelta(seconds=n), action="Answer", message=f"plan {n} is agreed")
        for n in range(MAX_DECISIONS)
    )

    assert decisions([], old) == old
    assert [item.message for item in decisions([told(KEEP, 99)], old)][-2:] == [
        f"plan {MAX_DECISIONS - 1} is agreed",
        KEEP["reason"],
    ]
    assert len(decisions([told(KEEP, 99)], old)) == MAX_DECISIONS


@pytest.mark.parametrize("workers", [4, 60])
def test_a_record_always_finds_room(workers: int) -> None:
    record = json.loads(brief(proposal(workers), MAX_RECORD))

    assert record["proposal"]["generation"] == 2
    assert len(record["workers"]) + record.get("workers_left_out", 0) == workers
    assert explain([record])[0].startswith("20.2 s, round 5: plan 2 was proposed")


def test_of_many_workers_those_whose_shares_move_most_are_kept() -> None:
    record = json.loads(brief(proposal(60), 4000))

    moved = [abs(row["wanted"] - row["applied"]) for row in record["workers"]]
    assert record["workers_left_out"] > 30
    assert moved == sorted(moved, reverse=True)
    assert f"    and {record['workers_left_out']} more" in explain([record])


@pytest.mark.parametrize("room", [0, 100, 331, 700, 2000, 9000])
def test_a_record_is_never_longer_than_its_room(room: int) -> None:
    assert len(brief(proposal(), room)) <= room


@pytest.mark.parametrize(
    ("action", "reason"), [("Replace", "StragglerReplaced"), ("GiveUp", "EscalationExhausted")], ids=str
)
def test_an_escalation_that_no_plan_tells_is_an_event_once(action: str, reason: str) -> None:
    done = told(decision_document(Decision(Action(action), "w0 holds the others up"), seconds=1.0))
    running: dict[str, Any] = {"pods": pods(), "training": seen(make_state()), "decisions": (done,)}

    first = decided(make_job(status=training_status()), **running)
    again = decided(make_job(status=first.status), **running)

    assert [(e.reason, e.message, e.warning) for e in first.events if e.reason == reason] == [
        (reason, "w0 holds the others up", True)
    ]
    assert [e for e in again.events if e.reason == reason] == []
