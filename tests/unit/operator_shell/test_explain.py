"""The chain from samples to decision, from the records of a simulated job."""

from __future__ import annotations

import json
import re

import pytest

from builders_adaptation import Simulation, simulate, steady
from builders_throttled import held
from heterotrain_core.adaptation.values import Action, Answer, Mode
from heterotrain_operator.adaptation import answer_document, decision_document
from heterotrain_operator.explain import NothingToExplainError, Record, chain, explain, generations, read_records


def records(job: Simulation) -> list[Record]:
    """What the local loop would have recorded."""
    lines = []
    for version, decision in job.decisions:
        if decision.action is Action.NONE:
            continue
        lines.append(json.dumps(decision_document(decision, seconds=decision.time)) + "\n")
        if decision.proposal is not None:
            answer = Answer(decision.proposal.generation, version + 2)
            lines.append(json.dumps(answer_document(answer, seconds=decision.time)) + "\n")
    return read_records(lines)


@pytest.fixture(scope="module")
def adapted() -> list[Record]:
    job = simulate([steady(1 / 40), steady(1 / 30), steady(1 / 20), steady(1 / 10)])
    job.run(60)
    return records(job)


def test_a_plan_is_explained_from_samples_to_outcome(adapted: list[Record]) -> None:
    assert generations(adapted) == [2]

    lines = explain(chain(adapted, 2))

    text = "\n".join(lines)
    assert "plan 2 was proposed: the workers' speeds are known for the first time; a round takes" in text
    assert "w0: 3 steps: 0.0 ms + 25 ms a sample (± 0.6%); share 32→52: 800.0 ms → 1300.0 ms" in text
    assert "plan 2 is agreed, in force from round 7" in text
    assert "verified: plan 2: predicted" in text


def test_a_worker_that_no_line_fits_is_explained_by_what_it_took() -> None:
    job = held((0.8, 0.4, 0.2, 0.1), (125,) * 4)
    job.run(40)

    text = "\n".join(explain(chain(records(job), job.generation)))

    assert re.search(r"w3: \d+ steps: no line: \d+ in [0-9.]+ ms, \d+ in [0-9.]+ ms, 125 in [0-9.]+ ms \(± ", text), (
        text
    )


def test_how_much_steps_vary_is_explained_where_it_moves_shares() -> None:
    job = simulate([steady(1 / 40), steady(1 / 30), steady(1 / 20), steady(1 / 10)], noise=0.1)
    job.run(60)

    text = "\n".join(explain([record for record in records(job) if record.get("workers")][-1:]))

    assert len(re.findall(r"w\d: \d+ steps.* \(± [0-9.]+%, single steps vary by (?:[789]|1[0-3])%\);", text)) == 4, text


def test_without_a_number_the_newest_plan_and_the_present_are_explained(adapted: list[Record]) -> None:
    lines = explain(chain(adapted))

    assert any("plan 2 was proposed" in line for line in lines)
    assert "the shares stay" in next(line for line in lines if "the shares stay" in line)


@pytest.mark.parametrize("generation", [1, 9])
def test_a_plan_that_the_loop_did_not_make_is_named_with_those_it_made(adapted: list[Record], generation: int) -> None:
    with pytest.raises(NothingToExplainError, match=rf"has not made plan {generation}; it made: 2"):
        chain(adapted, generation)


def test_nothing_decided_yet() -> None:
    with pytest.raises(NothingToExplainError, match="needs a few rounds"):
        chain([])


def test_a_recommendation_is_explained_as_such() -> None:
    job = simulate([steady(1 / 40), steady(1 / 10)], mode=Mode.RECOMMEND)
    job.run(30)
    told = [r for r in records(job) if r["action"] == "Recommend"]

    assert "a change is recommended: recommended, not applied" in explain(told[:1])[0]


def test_half_a_line_is_passed_over() -> None:
    assert read_records(['{"action": "Keep"}\n', '{"action": "Ke']) == [{"action": "Keep"}]
