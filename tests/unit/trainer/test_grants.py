from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterotrain.grants import MicroBatch, micro_batches
from heterotrain_core.types import Grant, SampleRange


def make_grant(*lengths: int, micro_batch: int | None = None) -> Grant:
    """Ranges of these lengths, with gaps of one between them."""
    ranges, start = [], 10
    for length in lengths:
        ranges.append(SampleRange(2, start, start + length))
        start += length + 1
    return Grant(0, 5, 5, tuple(ranges), micro_batch, 0)


def test_a_grant_without_micro_batch_is_computed_at_once() -> None:
    grant = make_grant(3, 2)
    assert micro_batches(grant) == (MicroBatch(5, 0, grant.ranges, 1.0, last=True),)


def test_a_micro_batch_may_span_ranges_and_all_are_nearly_even() -> None:
    assert micro_batches(make_grant(3, 2, micro_batch=2)) == (
        MicroBatch(5, 0, (SampleRange(2, 10, 11),), 0.2, last=False),
        MicroBatch(5, 1, (SampleRange(2, 11, 13),), 0.4, last=False),
        MicroBatch(5, 2, (SampleRange(2, 14, 16),), 0.4, last=True),
    )


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 30))
def test_micro_batches_cover_the_grant_in_order_within_the_limit(lengths: list[int], limit: int) -> None:
    grant = make_grant(*lengths, micro_batch=limit)
    cut = micro_batches(grant)
    positions = [p for batch in cut for r in batch.ranges for p in range(r.start, r.stop)]
    assert positions == [p for r in grant.ranges for p in range(r.start, r.stop)]
    sizes = [batch.samples for batch in cut]
    assert max(sizes) <= limit
    assert max(sizes) - min(sizes) <= 1
    assert abs(sum(batch.weight for batch in cut) - 1.0) < 1e-12
    assert [batch.last for batch in cut] == [False] * (len(cut) - 1) + [True]
    assert len(cut) == -(-grant.samples // limit)


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 3))
def test_no_micro_batch_is_too_small_for_the_model(samples: int, limit: int, least: int) -> None:
    sizes = [batch.samples for batch in micro_batches(make_grant(samples, micro_batch=limit), least)]
    assert sum(sizes) == samples
    assert min(sizes) >= min(least, samples)
    # As small as that allows.
    assert max(sizes) <= max(limit, least) + least - 1


def test_a_rest_of_one_goes_to_the_micro_batch_before() -> None:
    sizes = [batch.samples for batch in micro_batches(make_grant(5, micro_batch=2), 2)]
    assert sizes == [2, 3]
