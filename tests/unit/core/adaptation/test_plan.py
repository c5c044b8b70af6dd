"""The shares that the models ask for (oracles B-4, C-1, C-4, C-5)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain_core.adaptation.plan import (
    Room,
    best_shares,
    faster_unbound,
    faster_without,
    in_corridor,
    micro_batch,
    part_way,
    rooms,
    slowest,
)
from heterotrain_core.adaptation.track import Track, follow
from heterotrain_core.adaptation.values import WorkerSeen
from heterotrain_core.run_values import Timings
from heterotrain_core.telemetry import StepRecord
from heterotrain_core.types import Bounds


def room(name: str, per_sample: float, share: int = 32, low: int = 1, high: int = 128, fixed: float = 0.0) -> Room:
    return Room(name, share, fixed, per_sample, low, high, True)


def tracked(steps: int, samples: int, seconds: float) -> Track:
    """A worker with so many records that count."""
    told = [StepRecord(i + 1, samples, Timings(compute=seconds, step=seconds)) for i in range(steps + 2)]
    return follow(Track(), "w", told, 0.0)[0]


def seen(name: str, share: int, low: int = 1, high: int = 1000) -> WorkerSeen:
    return WorkerSeen(name, True, share, Bounds(low, high))


FOUR = [room("a", 1 / 40), room("b", 1 / 30), room("c", 1 / 20), room("d", 1 / 10)]


def test_the_best_shares_are_those_of_oracle_c1() -> None:
    shares = best_shares(FOUR, 128, 1)

    assert shares == {"a": 52, "b": 39, "c": 25, "d": 12}
    assert slowest(FOUR, shares) == pytest.approx(1.3)
    assert slowest(FOUR, dict.fromkeys("abcd", 32)) == pytest.approx(3.2)


def test_limits_that_leave_no_choice_keep_the_present_shares() -> None:
    assert best_shares([room("a", 1.0, 40, 1, 40), room("b", 1.0, 88, 1, 40)], 128, 1) == {"a": 40, "b": 88}


def test_a_line_moves_a_share_by_half_or_twice_of_what_its_speed_asks_for() -> None:
    """Worker `a` seems to take 0.79 s for anything: by its line the smallest share, or any, were as good for it."""
    flat = Room("a", 32, 0.79, 1e-4, 1, 128, True)
    found = in_corridor([flat, *FOUR[1:]], 128, 1)

    a, b = found[0], found[1]

    assert (a.low, a.high, a.limit) == (26, 104, "trust")
    assert (b.low, b.high) == (19, 78)
    assert best_shares(found, 128, 1)["a"] >= 26


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1e-3, 0.1)), min_size=2, max_size=6), st.integers(1, 4))
def test_the_corridor_always_has_room_for_the_whole_batch(lines: list[tuple[float, float]], grain: int) -> None:
    found = [Room(f"w{i}", 8 * grain, a, c, grain, 40 * grain, True) for i, (a, c) in enumerate(lines)]
    total = 8 * grain * len(found)

    narrowed = in_corridor(found, total, grain)

    assert all(old.low <= new.low <= new.high <= old.high for old, new in zip(found, narrowed, strict=True))
    assert sum(new.low for new in narrowed) <= total <= sum(new.high for new in narrowed)
    assert all(new.low % grain == new.high % grain == 0 for new in narrowed)


@pytest.mark.parametrize(
    ("steps", "want"),
    [
        pytest.param(2, (32, 32, "too few records"), id="with 2 records it is not resized"),
        pytest.param(3, (1, 64, "trust"), id="with 3 it may double"),
    ],
)
def test_trust_grows_with_records_oracle_b4(steps: int, want: tuple[int, int, str]) -> None:
    (found,) = rooms([seen("w", 32)], {"w": tracked(steps, 32, 1.0)}, {}, frozenset(), 1)

    assert (found.low, found.high, found.limit) == want


def test_a_worker_whose_metrics_are_lost_keeps_its_share() -> None:
    (found,) = rooms([seen("w", 32)], {"w": tracked(9, 32, 1.0)}, {}, frozenset({"w"}), 1)

    assert (found.low, found.high, found.limit) == (32, 32, "metrics lost")


def test_lost_metrics_do_not_straighten_what_is_known_of_a_worker() -> None:
    track = tracked(9, 10, 1.0)
    told = [StepRecord(track.seen + i, 20, Timings(compute=10.0, step=10.0)) for i in range(1, 6)]
    track, _ = follow(track, "w", told, 1.0)

    (found,) = rooms([seen("w", 20)], {"w": track}, {}, frozenset({"w"}), 1)

    assert found.seconds(20) == pytest.approx(10.0)


def test_what_did_not_fit_the_memory_is_a_ceiling_on_the_grid() -> None:
    (found,) = rooms([seen("w", 36, low=4)], {"w": tracked(9, 36, 1.0)}, {"w": 50}, frozenset(), 8)

    assert (found.low, found.high, found.limit) == (4, 44, "memory")


def test_a_share_may_return_to_the_largest_that_was_computed() -> None:
    track = follow(tracked(9, 60, 1.0), "w", [StepRecord(12 + i, 8, Timings(compute=0.1)) for i in range(9)], 1.0)[0]

    (found,) = rooms([seen("w", 8)], {"w": track}, {}, frozenset(), 1)

    assert found.high == 120


def test_dropping_a_worker_is_advised_as_in_oracle_c5() -> None:
    found = [room(name, 0.01, low=4) for name in "abc"] + [room("d", 0.5, low=4)]
    bounds = {r.name: Bounds(4, 128) for r in found}

    advice = faster_without(found, bounds, 128, 1)

    assert advice is not None
    assert advice == ("d", pytest.approx(2.0 / 0.43))
    assert faster_without(FOUR, {r.name: Bounds(1, 128) for r in FOUR}, 128, 1) is None


def test_a_worker_that_the_others_cannot_stand_in_for_is_not_to_be_dropped() -> None:
    found = [room("a", 0.01, low=4, high=124), room("d", 0.5, low=4)]

    assert faster_without(found, {"a": Bounds(4, 124), "d": Bounds(4, 128)}, 128, 1) is None


def test_a_higher_maximum_would_help_so_much_oracle_c4() -> None:
    found = [room("a", 1 / 40, low=4, high=40)] + [
        room(n, c, low=4) for n, c in zip("bcd", (1 / 30, 1 / 20, 0.1), strict=True)
    ]
    best = best_shares(found, 128, 1)

    assert slowest(found, best) == pytest.approx(1.5)
    assert faster_unbound(found, best, 128, 1) == pytest.approx(1.5 / 1.3)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=6), st.floats(0.05, 1.0))
def test_part_of_the_way_keeps_the_sum_and_lies_between(pairs: list[tuple[int, int]], part: float) -> None:
    total = sum(a for a, _ in pairs)
    found = [room(str(i), 1.0, share, 1, total) for i, (share, _) in enumerate(pairs)]
    present = {r.name: r.share for r in found}
    wanted = best_shares([room(str(i), 1 / w, 1, 1, total) for i, (_, w) in enumerate(pairs)], total, 1)

    between = part_way(present, wanted, part=part, found=found, grain=1)

    assert sum(between.values()) == total
    for name, share in between.items():
        low, high = sorted((present[name], wanted[name]))
        assert low - 1 <= share <= high + 1


@pytest.mark.parametrize(
    ("share", "ceiling", "want"),
    [(64, 64, (64, 1)), (65, 64, (33, 2)), (566, 256, (189, 3)), (10, 3, (3, 4)), (0, 4, (0, 1))],
)
def test_a_share_beyond_the_ceiling_is_computed_in_even_parts(share: int, ceiling: int, want: tuple[int, int]) -> None:
    assert micro_batch(share, ceiling) == want
