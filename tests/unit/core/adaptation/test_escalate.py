"""What is tried against a straggler, in the declared order, and the way back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heterotrain_core.adaptation.escalate import Ladder, Means, Measure, Signs, Step, climb

ALL = (Step.REBALANCE, Step.RELAX_STALENESS, Step.REPLACE)
HELD = Signs("d", holds_up=True, needed=1)


class Play:
    """Windows one after the other; the bound follows what is asked for."""

    def __init__(self, declared: Sequence[Step] = ALL, means: Means | None = None) -> None:
        self.ladder = Ladder()
        self.declared = declared
        self.means = Means(bound=0, least=0, most=2) if means is None else means
        self.taken: list[Measure] = []

    def windows(self, count: int, signs: Signs) -> Play:
        for _ in range(count):
            self.ladder, measure = climb(self.ladder, self.declared, signs, self.means)
            self.taken.append(measure)
            if measure.bound is not None:
                self.means = self.means._replace(bound=measure.bound)
        return self

    @property
    def steps(self) -> list[tuple[Step, int | None, str]]:
        return [(m.step, m.bound, m.replace) for m in self.taken if m.step is not None]

    @property
    def words(self) -> list[str]:
        return [m.words for m in self.taken]


def test_means_are_tried_in_the_declared_order_each_with_its_turn() -> None:
    play = Play().windows(30, HELD)

    assert play.steps == [
        (Step.RELAX_STALENESS, 1, ""),
        (Step.RELAX_STALENESS, 2, ""),
        (Step.REPLACE, None, "d"),
    ]
    assert [m.step for m in play.taken[:3]] == [None] * 3
    assert play.ladder.step == len(ALL)
    assert play.words[-1] == "Rebalance, RelaxStaleness, Replace did not help against d: given up, training goes on"


def test_the_bound_rises_at_once_to_what_is_needed() -> None:
    play = Play(means=Means(bound=1, least=0, most=8)).windows(4, Signs("d", holds_up=True, needed=5))

    assert play.steps == [(Step.RELAX_STALENESS, 5, "")]
    assert play.words[-1] == "the staleness bound rises from 1 to 5, since the others wait for d"


@pytest.mark.parametrize(
    ("declared", "means", "want", "words"),
    [
        pytest.param(
            ALL[:1], Means(0, 0, 2), [], "Rebalance did not help against d: given up, training goes on", id="one step"
        ),
        pytest.param(
            ALL,
            Means(no_relaxing="the mode is BSP, which has no staleness bound"),
            [(Step.REPLACE, None, "d")],
            "Rebalance, RelaxStaleness, Replace did not help against d: given up, training goes on",
            id="no bound to raise",
        ),
        pytest.param(
            ALL,
            Means(2, 0, 2, no_replacing="this machine is the only one"),
            [],
            "Rebalance, RelaxStaleness, Replace did not help against d (the staleness bound is at its largest, 2; "
            "this machine is the only one): given up, training goes on",
            id="nothing can be used, and why",
        ),
    ],
)
def test_what_is_not_declared_or_not_possible_is_not_done(
    declared: Sequence[Step], means: Means, want: list[tuple[Step, int | None, str]], words: str
) -> None:
    play = Play(declared, means).windows(12, HELD)

    assert play.steps == want
    assert words in play.words


def test_a_straggler_that_nobody_waits_for_any_more_leaves_the_bound_where_it_is() -> None:
    play = Play().windows(4, HELD).windows(30, Signs("d"))

    assert play.steps == [(Step.RELAX_STALENESS, 1, "")]
    assert play.words[-1] == "the others do not wait for d with bound 1"


def test_it_comes_back_down_when_the_cause_is_gone() -> None:
    play = Play().windows(8, HELD)
    assert play.means.bound == 2

    play.windows(12, Signs())

    assert play.steps[-1] == (Step.RELAX_STALENESS, 0, "")
    assert play.ladder == Ladder()


def test_it_never_comes_down_below_the_declared_range() -> None:
    play = Play(means=Means(bound=0, least=1, most=3)).windows(4, HELD).windows(12, Signs())

    assert play.steps == [(Step.RELAX_STALENESS, 1, "")]


def test_after_giving_up_it_begins_anew_once_the_cause_was_gone() -> None:
    play = Play(ALL[:1]).windows(10, HELD).windows(5, Signs()).windows(2, HELD)

    assert play.words[-1] == "Rebalance has its turn against d"


def test_a_passing_straggler_changes_nothing() -> None:
    assert Play().windows(2, HELD).windows(9, Signs()).steps == []


def test_nothing_happens_while_nobody_holds_the_others_up() -> None:
    assert climb(Ladder(), ALL, Signs(), Means()) == (Ladder(), Measure(None))
