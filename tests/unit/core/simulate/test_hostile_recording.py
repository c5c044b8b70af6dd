"""Recordings with values that no recording has: refused with words, whatever is asked of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterotrain_api.contract import ExitCode
from heterotrain_core.cursor import DataCursor
from heterotrain_core.recording import Beginning, make_policy
from heterotrain_core.synchronization import Asp
from heterotrain_core.types import Plan, Share
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.replay import read_terms, recorded_workers, replayed


def recorded(tmp_path: Path, line: int, **changes: Any) -> Path:
    """A recording of one worker that joins, with other values in one of its lines."""
    lines: list[str] = []
    beginning = Beginning(
        term=1, synchronization=Asp(), plan=Plan(1, {"w": Share(2)}), names=("w",), dataset_size=4, epochs=1
    )
    make_policy(beginning, DataCursor(4, 1), lines.append).on_join(0, 1.0)
    document = json.loads(lines[line])
    document.get("begins", document).update(changes)
    lines[line] = json.dumps(document)
    path = tmp_path / "recording.jsonl"
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


@pytest.mark.parametrize("changes", [{"dataset_size": float("inf")}, {"names": 5}, {"used": [[1]]}])
def test_a_beginning_that_cannot_be_is_refused_by_its_line(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="line 1 is no line of a recording") as refusal:
        read_terms(recorded(tmp_path, 0, **changes))
    assert refusal.value.code == ExitCode.INVALID


@pytest.mark.parametrize("worker", ["x", 77, None])
def test_a_worker_that_is_none_is_refused_in_a_replay_and_in_another_mode(worker: Any, tmp_path: Path) -> None:
    (term,) = read_terms(recorded(tmp_path, 1, worker=worker))
    for told in (replayed, recorded_workers):
        with pytest.raises(CommandError, match="--replay: ") as refusal:
            told(term)
        assert refusal.value.code == ExitCode.INVALID
