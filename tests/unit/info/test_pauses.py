"""What keeps a serving process from standing still."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from heterotrain_operator.info.pauses import SWITCH_SECONDS, YOUNG_OBJECTS, shorten_pauses


@pytest.fixture
def restored() -> Iterator[None]:
    """The process is afterwards as it was."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


def test_what_is_there_is_not_looked_through_again_and_garbage_rarely(restored: None) -> None:
    kept: list[list[int]] = [[] for _ in range(1000)]
    shorten_pauses()
    assert gc.get_freeze_count() >= len(kept)
    assert gc.get_threshold() == (YOUNG_OBJECTS, 10, 10)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
