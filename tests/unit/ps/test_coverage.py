from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterotrain.ps.coverage import Coverage

RANGE = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda r: (min(r), max(r)))


@given(st.lists(RANGE), RANGE)
def test_a_coverage_is_the_set_of_bytes_added(added: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    coverage, expected = Coverage(), set[int]()
    for start, stop in added:
        coverage.add(start, stop)
        expected |= set(range(start, stop))
        assert coverage.num_bytes == len(expected)
    assert coverage.contains(*asked) == (set(range(*asked)) <= expected)
