"""What the operator keeps of a job between passes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from heterotrain_operator.job.event_log import EventLog
from heterotrain_operator.job.memory import MADE_KEPT, Memory, worth_saying

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + MADE_KEPT


def test_when_pods_were_made_is_kept_for_a_while() -> None:
    memory = Memory("uid", EventLog(timedelta(minutes=10)))
    soon = NOW + timedelta(seconds=20)
    memory.remember_made(["cpu-0", "cpu-1"], NOW)
    memory.remember_made(["cpu-0"], soon)
    assert memory.made == {"cpu-0": (NOW, soon), "cpu-1": (NOW,)}
    memory.remember_made([], LATER)
    assert memory.made == {"cpu-0": (soon,)}


@pytest.mark.parametrize(
    ("passing", "failed", "want"),
    [
        pytest.param(set(), set(), {"cpu-0": "no"}, id="a refusal is said at once"),
        pytest.param({"cpu-0"}, set(), {}, id="trouble that may pass is not"),
        pytest.param({"cpu-0"}, {"cpu-1"}, {}, id="nor is trouble that passed and met another pod"),
        pytest.param({"cpu-0"}, {"cpu-0"}, {"cpu-0": "no"}, id="trouble that lasts is said"),
    ],
)
def test_what_is_worth_saying(passing: set[str], failed: set[str], want: dict[str, str]) -> None:
    assert worth_saying({"cpu-0": "no"}, passing, failed) == want
