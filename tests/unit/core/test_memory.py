"""How many samples a worker can hold at once, from the peaks of its steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.memory import COLD_STEPS, NO_MEMORY_USE, MemoryModel, MemoryUse, Peaks, fit_memory

MIB = 2**20
LIMIT = 8192 * MIB


def peak(samples: int) -> int:
    """Of oracle C-10."""
    return (1200 + 55 * samples) * MIB


def after(*sizes: int, limit: int = LIMIT) -> int | None:
    """What is known after a step with each of `sizes`, the first ones cold."""
    peaks = Peaks()
    for _ in range(COLD_STEPS):
        peaks.add(MemoryUse(1, 10**12, limit))
    return [peaks.add(MemoryUse(size, peak(size), limit)) for size in sizes][-1]


def test_the_memory_ceiling_is_that_of_oracle_c10() -> None:
    model = fit_memory([(b, (1200 + 55 * b) * MIB) for b in (8, 16, 64)])

    assert model is not None
    assert model.ceiling(8192 * MIB) == 112
    assert model.ceiling(8192 * MIB, grain=32) == 96
    assert MemoryModel(1e9, 1e6).ceiling(1e9) == 0


def test_memory_is_not_known_from_one_size_or_when_it_falls() -> None:
    assert fit_memory([(8, 1e9), (8, 1.1e9)]) is None
    assert fit_memory([(8, 2e9), (16, 1e9)]) is None


@pytest.mark.parametrize(
    ("sizes", "want"),
    [
        pytest.param((16, 16, 16, 32, 32, 32), 112, id="two sizes, three steps each: oracle C-10"),
        pytest.param((16, 16, 16, 32, 32), None, id="too few steps with one of them"),
        pytest.param((16,) * 20, None, id="one size"),
        pytest.param((100, 100, 100, 110, 110, 110), None, id="sizes too near each other"),
    ],
)
def test_what_a_worker_can_hold_is_known_from_two_sizes(sizes: tuple[int, ...], want: int | None) -> None:
    assert after(*sizes) == want


def test_what_a_worker_has_held_it_can_hold_however_near_its_limit_it_is() -> None:
    assert after(16, 16, 16, 32, 32, 32, limit=3000 * MIB) == 32


def test_steps_of_which_nothing_is_known_do_not_count() -> None:
    peaks = Peaks()
    for use in (NO_MEMORY_USE, MemoryUse(8, 0, LIMIT), MemoryUse(8, 5, 0), MemoryUse(-1, 5, 5)):
        assert peaks.add(use) is None
    assert peaks == Peaks()


@given(st.lists(st.builds(MemoryUse, *(st.integers(-(2**40), 2**40) for _ in range(3))), max_size=80))
def test_whatever_workers_say_the_ceiling_is_a_number_of_samples_and_the_memory_of_it_is_bounded(
    uses: list[MemoryUse],
) -> None:
    peaks = Peaks()
    for use in uses:
        ceiling = peaks.add(use)
        assert ceiling is None or ceiling >= 1
    assert len(peaks.by_size) <= 16
