import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from heterotrain_core.cursor import DataCursor, merge_ranges
from heterotrain_core.types import SampleRange, SampleSource


def positions(ranges: tuple[SampleRange, ...]) -> list[int]:
    return [p for r in ranges for p in range(r.start, r.stop)]


def test_the_cursor_is_the_sample_source_that_policies_see() -> None:
    source: SampleSource = DataCursor(10, 1)

    assert (source.epoch, source.remaining, source.outstanding, source.committed) == (0, 10, 0, 0)


def test_given_back_samples_go_first_lowest_first_and_join_with_what_follows() -> None:
    cursor = DataCursor(10, 1)
    first, second, third = cursor.take(2), cursor.take(2), cursor.take(2)
    cursor.commit(second)
    cursor.give_back(third)
    cursor.give_back(first)

    assert cursor.take(3) == (SampleRange(0, 0, 2), SampleRange(0, 4, 5))
    assert cursor.take(3) == (SampleRange(0, 5, 8),)
    assert (cursor.remaining, cursor.outstanding, cursor.committed) == (2, 6, 2)


def test_a_part_of_what_was_taken_and_several_grants_at_once_can_be_committed() -> None:
    cursor = DataCursor(10, 1)
    cursor.take(3)
    cursor.take(4)
    cursor.commit([SampleRange(0, 5, 7), SampleRange(0, 1, 2), SampleRange(0, 2, 4)])
    cursor.give_back([SampleRange(0, 0, 1), SampleRange(0, 4, 5)])

    assert cursor.take(3) == (SampleRange(0, 0, 1), SampleRange(0, 4, 5), SampleRange(0, 7, 8))


@pytest.mark.parametrize(
    ("ranges", "want_message"),
    [
        pytest.param([SampleRange(0, 3, 5)], r"\[3, 5\) of epoch 0 is not held", id="reaches beyond what was taken"),
        pytest.param([SampleRange(0, 0, 1)], r"\[0, 1\) of epoch 0 is not held", id="was committed before"),
        pytest.param([SampleRange(1, 2, 3)], r"\[2, 3\) of epoch 1 is not of the present epoch 0", id="another epoch"),
        pytest.param([SampleRange(0, 1, 3), SampleRange(0, 2, 4)], "overlap", id="overlaps with itself"),
        pytest.param([SampleRange(0, 2, 3), SampleRange(0, 9, 10)], "not held", id="one good and one bad range"),
    ],
)
def test_what_is_not_held_is_refused_whole(ranges: list[SampleRange], want_message: str) -> None:
    cursor = DataCursor(10, 2)
    cursor.take(4)
    cursor.commit([SampleRange(0, 0, 1)])

    with pytest.raises(ValueError, match=want_message):
        cursor.commit(ranges)
    with pytest.raises(ValueError, match=want_message):
        cursor.give_back(ranges)

    assert (cursor.remaining, cursor.outstanding, cursor.committed) == (6, 3, 1)


def test_epochs_follow_each_other_and_the_last_one_stays() -> None:
    cursor = DataCursor(3, 2)
    with pytest.raises(ValueError, match="epoch 0 is not over: 3 samples are free, 0 are held"):
        cursor.next_epoch()
    cursor.commit(cursor.take(3))

    assert cursor.next_epoch() is True
    assert (cursor.epoch, cursor.remaining) == (1, 3)
    cursor.commit(cursor.take(3))
    assert cursor.next_epoch() is False
    assert (cursor.epoch, cursor.committed, cursor.is_epoch_over) == (1, 3, True)


@pytest.mark.parametrize("count", [-1, 4])
def test_taking_more_than_is_free_or_less_than_nothing_is_refused(count: int) -> None:
    cursor = DataCursor(3, 1)

    with pytest.raises(ValueError, match=f"cannot take {count} samples of epoch 0: 3 are free"):
        cursor.take(count)


@pytest.mark.parametrize(
    ("size", "epochs", "want_message"), [(0, 1, "dataset_size must be at least 1, not 0"), (1, 0, "epochs must be")]
)
def test_an_empty_dataset_and_no_epoch_are_refused(size: int, epochs: int, want_message: str) -> None:
    with pytest.raises(ValueError, match=want_message):
        DataCursor(size, epochs)


def test_merged_ranges_are_sorted_joined_per_epoch_and_without_empty_ones() -> None:
    ranges = [SampleRange(1, 0, 2), SampleRange(0, 4, 6), SampleRange(0, 2, 4), SampleRange(0, 8, 8)]

    assert merge_ranges(ranges) == (SampleRange(0, 2, 6), SampleRange(1, 0, 2))


class CursorMachine(RuleBasedStateMachine):
    """The cursor against three plain sets."""

    grants: Bundle[tuple[SampleRange, ...]] = Bundle("grants")

    @initialize(size=st.integers(1, 40))
    def start(self, size: int) -> None:
        self.size = size
        self.cursor = DataCursor(size, 3)
        self.free, self.held, self.used = set(range(size)), set[int](), set[int]()

    @rule(target=grants, part=st.floats(0, 1))
    def take(self, part: float) -> tuple[SampleRange, ...]:
        count = round(part * len(self.free))
        ranges = self.cursor.take(count)
        taken = positions(ranges)
        assert taken == sorted(self.free)[:count]
        assert ranges == merge_ranges(ranges)
        self.free -= set(taken)
        self.held |= set(taken)
        return ranges

    @rule(ranges=consumes(grants))
    def commit(self, ranges: tuple[SampleRange, ...]) -> None:
        self.cursor.commit(ranges)
        self.held -= set(positions(ranges))
        self.used |= set(positions(ranges))
        with pytest.raises(ValueError, match="not held") if ranges else pytest.raises(ValueError):
            self.cursor.commit(ranges or [SampleRange(9, 0, 1)])

    @rule(ranges=consumes(grants))
    def give_back(self, ranges: tuple[SampleRange, ...]) -> None:
        self.cursor.give_back(ranges)
        self.held -= set(positions(ranges))
        self.free |= set(positions(ranges))

    @precondition(lambda self: not self.free and not self.held and self.cursor.epoch < 2)
    @rule()
    def next_epoch(self) -> None:
        assert self.used == set(range(self.size))
        assert self.cursor.next_epoch()
        self.free, self.used = set(range(self.size)), set()

    @invariant()
    def counts_agree(self) -> None:
        cursor = self.cursor
        assert (cursor.remaining, cursor.outstanding, cursor.committed) == (
            len(self.free), len(self.held), len(self.used),
        )  # fmt: skip
        assert cursor.is_epoch_over == (len(self.used) == self.size)


TestCursorMachine = CursorMachine.TestCase
TestCursorMachine.settings = settings(max_examples=40, stateful_step_count=30)
