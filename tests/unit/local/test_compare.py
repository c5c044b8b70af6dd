from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.local.compare import (
    CompareError,
    Comparison,
    Row,
    Run,
    RunReport,
    compare,
    doubts,
    markdown,
    read_report,
    seconds_until,
)


def make_document(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = {
        "job": "fashion",
        "state": "Succeeded",
        "samples": 400,
        "training_seconds": 8.0,
        "samples_per_second": 50.0,
        "ideal_samples_per_second": 125.0,
        "s_balance": 2.5,
        "reported": {"accuracy": 0.875},
        "plan": {"generation": 1},
        "workers": [{"stretch": None}, {"stretch": None}],
        "history": [make_moment(2.0, 100, a=5, b=5), make_moment(4.0, 200, a=5, b=5)],
        "something of a later version": [],
    }
    return document | changes


def make_moment(seconds: float, samples: int, **shares: int) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "samples": samples,
        "samples_per_second": 50.0,
        "ideal_samples_per_second": 125.0,
        "shares": shares,
    }


def make_report(**changes: Any) -> RunReport:
    return read_report(json.dumps(make_document(**changes)))


EQUAL = Run("equal", make_report())
ADAPTED = Run(
    "adaptation",
    make_report(
        samples=800,
        training_seconds=8.0,
        samples_per_second=100.0,
        plan={"generation": 3},
        reported={"loss": None},
        history=[make_moment(1.0, 100, a=5, b=5), make_moment(4.0, 400, a=8, b=2)],
    ),
)


def test_runs_side_by_side_are_held_at_the_samples_that_the_shorter_one_trained() -> None:
    assert compare([EQUAL, ADAPTED]) == Comparison(
        400,
        (
            Row(
                name="equal", state="Succeeded", first_shares=(5, 5), last_shares=(5, 5), plans=0,
                samples_per_second=50.0, ideal=125.0, s_balance=2.5, paced_balance=None, seconds=8.0, speed_up=1.0,
                reported={"accuracy": 0.875},
            ),
            Row(
                name="adaptation", state="Succeeded", first_shares=(5, 5), last_shares=(8, 2), plans=2,
                samples_per_second=100.0, ideal=125.0, s_balance=2.5, paced_balance=None, seconds=4.0, speed_up=2.0,
                reported={"loss": None},
            ),
        ),
    )  # fmt: skip


def test_the_table_has_a_column_a_run_and_says_what_was_not_reported() -> None:
    assert markdown(compare([EQUAL, ADAPTED]), ["comparison.png"]) == (
        "# equal and adaptation\n"
        "\n"
        "|  | equal | adaptation |\n"
        "| --- | --- | --- |\n"
        "| state | Succeeded | Succeeded |\n"
        "| shares at first | 5/5 | 5/5 |\n"
        "| shares at last | 5/5 | 8/2 |\n"
        "| changes of the plan | 0 | 2 |\n"
        "| samples/s | 50 | 100 |\n"
        "| ideal: sum of own speeds, samples/s | 125 | 125 |\n"
        "| share of ideal | 40.0% | 80.0% |\n"
        "| S_balance: what balance alone can give | 2.50 | 2.50 |\n"
        "| seconds for 400 samples | 8.0 | 4.0 |\n"
        "| times as fast as equal | 1.00 | 2.00 |\n"
        "| accuracy | 0.875 | – |\n"
        "| loss | – | – |\n"
        "\n"
        "## Plots\n"
        "\n"
        "![comparison](comparison.png)\n"
    )


def test_what_is_not_known_is_called_unknown() -> None:
    run = Run("stopped", make_report(ideal_samples_per_second=0.0, s_balance=None))
    table = markdown(compare([run, run]))
    assert "| share of ideal | unknown | unknown |\n" in table
    assert "| S_balance: what balance alone can give | unknown | unknown |\n" in table


PACED = [{"stretch": 1.0}, {"stretch": 4.0}]
"""Speeds of 4:1: S_balance 2.5."""


@pytest.mark.parametrize(
    ("s_balance", "doubtful"),
    [
        pytest.param(2.5, False, id="the speeds held"),
        pytest.param(2.0, False, id="a fifth off, as on any machine that also serves the job"),
        pytest.param(1.1, True, id="the workers were nearly equal: the machine was busy"),
        pytest.param(3.5, True, id="the slow worker was slowed down by something else too"),
        pytest.param(None, False, id="nobody knows"),
    ],
)
def test_a_run_whose_paced_speeds_did_not_hold_is_doubted(s_balance: float | None, doubtful: bool) -> None:
    run = Run("equal", make_report(workers=PACED, s_balance=s_balance))
    words = list(doubts(compare([run, ADAPTED])))
    assert [word.partition(":")[0] for word in words] == ["equal"] * doubtful
    assert all(word in markdown(compare([run, ADAPTED])) for word in words)


@pytest.mark.parametrize(
    ("samples", "seconds"),
    [
        pytest.param(0, 0.0, id="nothing takes no time"),
        pytest.param(50, 1.0, id="half of the first point's samples, half of its time"),
        pytest.param(100, 2.0, id="a point's samples, its time"),
        pytest.param(300, 6.0, id="after the last point on the way to the end"),
        pytest.param(400, 8.0, id="all samples, the whole training"),
    ],
)
def test_seconds_until(samples: float, seconds: float) -> None:
    assert seconds_until(make_report(), samples) == seconds


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.data())
def test_more_samples_never_take_less_time(steps: list[int], data: st.DataObject) -> None:
    history, samples = [], 0
    for number, step in enumerate(steps, start=1):
        samples += step
        history.append(make_moment(float(number), samples, a=1))
    report = make_report(history=history, samples=samples, training_seconds=float(len(steps)))
    few, many = sorted(data.draw(st.tuples(st.integers(0, samples), st.integers(0, samples))))
    assert 0 <= seconds_until(report, few) <= seconds_until(report, many) <= len(steps)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("", "Invalid JSON", id="an empty file"),
        pytest.param("[1]", "object", id="a list"),
        pytest.param("{}", "job: Field required", id="another document"),
        pytest.param(json.dumps(make_document(samples=-1)), "samples: Input should be greater", id="below nothing"),
        pytest.param(json.dumps(make_document(s_balance=float("inf"))), "s_balance: Input should be", id="infinite"),
        pytest.param(json.dumps(make_document(history=[])), "has trained nothing", id="a run that never trained"),
        pytest.param(json.dumps(make_document(history=[{}])), "history.0.seconds: Field", id="a broken history"),
    ],
)
def test_what_cannot_be_compared_says_why(text: str, words: str) -> None:
    with pytest.raises(CompareError, match=words):
        read_report(text)
