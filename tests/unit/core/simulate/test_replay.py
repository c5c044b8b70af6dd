"""``heterotrain simulate --replay``: a recorded job told again, and another mode with its step times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heterotrain_core.recording import read_recording
from heterotrain_core.replay import replay, simulated_workers
from heterotrain_core.simulate_times import Constant, Trace
from heterotrain_core.simulate_values import SimulatedWorker
from heterotrain_operator.cli import make_app
from heterotrain_operator.commands.errors import CommandError

SSP = {"mode": "SSP", "staleness_bound": 1, "discount_exponent": 1.0, "normalization": "Target"}
BEGINS = {
    "begins": {
        "format": 1, "term": 1, "synchronization": SSP, "names": ["a", "b"], "dataset_size": 6, "epochs": 1, "epoch": 0,
        "used": [], "max_rounds": None, "version": 0, "least": 1,
        "plan": {"generation": 1, "reason": "", "derived": False, "synchronization": None,
                 "shares": {"a": [2, None], "b": [2, None]}},
    }
}  # fmt: skip


def done(seconds: float, worker: int, at: int) -> dict[str, Any]:
    return {"t": seconds, "told": "done", "worker": worker, "at": at, "base": at, "samples": 2, "refused": False}


TOLD = [
    {"t": 10.0, "told": "join", "worker": 0},
    {"t": 10.0, "told": "join", "worker": 1},
    done(11.0, 0, 0),
    done(12.0, 0, 1),
    done(13.0, 1, 0),
]
"""Worker a is two iterations ahead after 2 s, and may not go on; worker b's gradient is two versions old."""


def text(*lines: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def document(*options: str) -> dict[str, Any]:
    result = CliRunner().invoke(make_app(), ["simulate", *options, "--json"])
    if result.exception is not None:
        raise result.exception
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


@pytest.fixture
def report(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "recording.jsonl").write_text(text(BEGINS, *TOLD))
    return tmp_path


def test_a_recording_told_again_decides_the_same(report: Path) -> None:
    result = document("--replay", str(report))
    cost = result.pop("cost")
    assert result == {
        "mode": "replay of SSP", "seconds": 3.0, "end_reason": "all epochs are over", "rounds": 3, "gradients": 3,
        "dropped": 0, "samples": 6, "largest_staleness": 2, "staleness_histogram": {"0": 2, "2": 1},
        "workers": [
            {"name": "a", "iterations": 2, "waiting_seconds": 1.0},
            {"name": "b", "iterations": 1, "waiting_seconds": 0.0},
        ],
    }  # fmt: skip
    assert cost["arrivals_per_second"] > 0


def test_another_mode_has_the_recorded_step_times_and_shares(report: Path) -> None:
    (recording,) = read_recording((report / "logs" / "recording.jsonl").read_text().splitlines(keepends=True))
    assert simulated_workers(recording) == (
        SimulatedWorker("a", Trace((1.0, 1.0)), 2),
        SimulatedWorker("b", Constant(3.0), 2),
    )
    result = document("--replay", str(report / "logs" / "recording.jsonl"), "--mode", "BSP")
    assert (result["seconds"], result["rounds"], result["samples"]) == (4.5, 2, 6)
    assert [w["waiting_seconds"] for w in result["workers"]] == [3.0, 0.0]


def test_the_newest_term_is_told_and_a_line_that_is_not_whole_is_passed_over() -> None:
    lines = [*text(BEGINS, *TOLD[:2], BEGINS, *TOLD).splitlines(keepends=True), '{"t": 15.0, "told": "do']
    terms = read_recording(lines)
    assert [len(term.told) for term in terms] == [2, len(TOLD)]
    assert replay(terms[1]).rounds == 3


@pytest.mark.parametrize(
    ("content", "options", "want"),
    [
        pytest.param(None, [], "cannot be read: No such file.*heterotrain run --record", id="no recording"),
        pytest.param("", [], "it holds no training", id="a job that never began"),
        pytest.param("{}\n", [], "line 1 is no line of a recording", id="another file"),
        pytest.param(text(BEGINS, {"t": 1.0, "told": "dance"}), [], "not known here: 'dance'", id="an unknown call"),
        pytest.param(
            text(BEGINS, done(1.0, 0, 0)), [], "cannot tell it again: .*not granted", id="a call out of order"
        ),
        pytest.param(text(BEGINS), ["--until", "9"], "leave --until out, or give --mode", id="an end of another's"),
        pytest.param(text(BEGINS), ["--delay-window", "1"], "leave --delay-window out", id="a window without a mode"),
        pytest.param(text(BEGINS), ["--step-times", "1"], "leave --step-times and --trace out", id="two sources"),
        pytest.param(text(BEGINS, *TOLD), ["--mode", "ASP", "--shares", "1,1"], "leave --shares", id="other shares"),
        pytest.param(text(BEGINS), ["--mode", "ASP"], "no worker finished a step", id="nothing to simulate with"),
    ],
)
def test_what_cannot_be_told_again_is_refused_by_name(
    tmp_path: Path, content: str | None, options: list[str], want: str
) -> None:
    file = tmp_path / "recording.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CommandError, match=want):
        document("--replay", str(file), *options)
