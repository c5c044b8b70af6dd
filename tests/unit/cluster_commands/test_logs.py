from __future__ import annotations

from typing import Any

import pytest

from heterotrain_operator.cluster.logs import Mark, Source, fresh_lines, sources

FIRST, SECOND = "2026-01-01T12:00:00.1Z", "2026-01-01T12:00:00.25Z"


def make_pod(name: str, group: str, index: int, attempt: int) -> dict[str, Any]:
    place = {"group": group, "index": str(index), "attempt": str(attempt)}
    return {"metadata": {"name": name, "labels": {f"heterotrain.io/{key}": value for key, value in place.items()}}}


def test_processes_are_found_in_the_newest_pod_of_each() -> None:
    pods = [make_pod("j-cpu-0-10", "cpu", 0, 10), make_pod("j-cpu-0-9", "cpu", 0, 9), make_pod("j-ps-0-0", "ps", 0, 0)]
    assert sources(pods) == {
        "coordinator": Source("coordinator", "j-ps-0-0", "coordinator"),
        "cpu-0": Source("cpu-0", "j-cpu-0-10", "trainer"),
        "ps-0": Source("ps-0", "j-ps-0-0", "trainer"),
    }


@pytest.mark.parametrize(
    ("text", "mark", "want"),
    [
        pytest.param("", Mark(), ([], Mark()), id="nothing yet"),
        pytest.param(f"{FIRST} a b\n{FIRST} \n", Mark(), (["a b", ""], Mark(FIRST, 2)), id="all is new"),
        pytest.param(f"{FIRST} a\n{SECOND} b\n", Mark(FIRST, 1), (["b"], Mark(SECOND, 1)), id="the same second again"),
        pytest.param(f"{FIRST} a\n{FIRST} b\n", Mark(FIRST, 1), (["b"], Mark(FIRST, 2)), id="the same time again"),
        pytest.param(f"{FIRST} a\n{SECOND} b\n", Mark(SECOND, 1), ([], Mark(SECOND, 1)), id="nothing since"),
    ],
)
def test_no_line_is_shown_twice_or_lost(text: str, mark: Mark, want: tuple[list[str], Mark]) -> None:
    assert fresh_lines(text, mark) == want
