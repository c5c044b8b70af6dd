"""What is tried against a straggler, in the declared order, and the way back."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_core.adaptation.escalate import Ladder, Measure, Step, climb

ALL = (Step.REBALANCE, Step.RELAX_STALENESS, Step.REPLACE)


def play(windows: int, declared: Sequence[Step] = ALL, reserve: int = 2) -> tuple[Ladder, list[Measure]]:
    """The measures taken while worker `d` holds the others up for so many windows."""
    state, taken = Ladder(), []
    for _ in range(windows):
        state, measure = climb(state, declared, straggler="d", reserve=reserve - state.bound)
        taken.append(measure)
    return state, taken


def steps(measures: Sequence[Measure]) -> list[tuple[Step, int, str]]:
    return [(m.step, m.relax_by, m.replace) for m in measures if m.step is not None]


def test_means_are_tried_in_the_declared_order_each_with_its_turn() -> None:
    ladder, taken = play(30)

    assert steps(taken) == [
        (Step.RELAX_STALENESS, 1, ""),
        (Step.RELAX_STALENESS, 1, ""),
        (Step.REPLACE, 0, "d"),
    ]
    assert [m.step for m in taken[:3]] == [None] * 3
    assert ladder.step == len(ALL)
    assert "given up, training goes on" in " ".join(m.words for m in taken)


def test_what_is_not_declared_is_not_done() -> None:
    _, taken = play(30, declared=[Step.REBALANCE])

    assert steps(taken) == []
    assert any("nothing of Rebalance helps against d" in m.words for m in taken)


def test_without_reserve_the_bound_stays() -> None:
    _, taken = play(30, reserve=0)

    assert steps(taken) == [(Step.REPLACE, 0, "d")]


def test_it_comes_back_down_when_the_cause_is_gone() -> None:
    ladder, _ = play(12)
    assert ladder.bound == 2

    taken = []
    for _ in range(12):
        ladder, measure = climb(ladder, ALL, straggler="", reserve=0)
        taken.append(measure)

    assert steps(taken) == [(Step.RELAX_STALENESS, -1, ""), (Step.RELAX_STALENESS, -1, "")]
    assert ladder == Ladder()


def test_a_passing_straggler_changes_nothing() -> None:
    ladder, taken = play(2)

    ladder, measure = climb(ladder, ALL, straggler="", reserve=2)

    assert steps([*taken, measure]) == []


def test_nothing_happens_while_nobody_holds_the_others_up() -> None:
    assert climb(Ladder(), ALL, straggler="", reserve=2) == (Ladder(), Measure(None, ""))
