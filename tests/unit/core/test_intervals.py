from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.intervals import Intervals

RANGE = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda r: (min(r), max(r)))


@given(st.lists(RANGE), RANGE)
def test_what_was_added_is_in_the_set_once(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    intervals, expected = Intervals(), set[int]()
    for start, stop in added:
        intervals.add(start, stop)
        expected |= set(range(start, stop))
        assert intervals.total == len(expected)
    assert intervals.covers(*asked) == (set(range(*asked)) <= expected)


@given(st.lists(RANGE), st.lists(st.one_of(RANGE, st.integers(0, 8)), max_size=8))
def test_what_is_removed_or_popped_is_gone(added: list[tuple[int, int]], taken: list[tuple[int, int] | int]) -> None:
    intervals, expected = Intervals([(100, 110)]), set(range(100, 110))
    for start, stop in added:
        intervals.add(start, stop)
        expected |= set(range(start, stop))
    for what in taken:
        if isinstance(what, int):
            count = min(what, intervals.total)
            popped = [i for start, stop in intervals.pop_lowest(count) for i in range(start, stop)]
            assert popped == sorted(expected)[:count]
            expected -= set(popped)
        elif what[0] < what[1] and intervals.covers(*what):
            intervals.remove(*what)
            expected -= set(range(*what))
        assert intervals.total == len(expected)
    assert [i for i in range(120) if intervals.covers(i, i + 1)] == sorted(expected)
