"""``heterotrain compare``: which folders it takes, and what it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heterotrain_operator.cli import make_app
from heterotrain_operator.commands.compare import compare
from heterotrain_operator.commands.errors import CommandError


def make_folder(folder: Path, *, seconds: float) -> Path:
    folder.mkdir(parents=True)
    speed = 100 / seconds
    moment = {"seconds": 1.0, "samples": 10, "samples_per_second": speed, "ideal_samples_per_second": 100.0}
    document = {
        "job": "j", "state": "Succeeded", "samples": 100, "training_seconds": seconds, "samples_per_second": speed,
        "ideal_samples_per_second": 100.0, "s_balance": 2.0, "reported": {}, "plan": {"generation": 1}, "workers": [],
        "history": [moment | {"shares": {"a": 1}}],
    }  # fmt: skip
    (folder / "report.json").write_text(json.dumps(document))
    return folder


def test_two_runs_are_printed_and_written(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / "equal", seconds=20.0), make_folder(tmp_path / "adaptation", seconds=10.0)]
    output = tmp_path / "out" / "here"
    result = CliRunner().invoke(make_app(), ["compare", *map(str, folders), "--output", str(output)])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in output.iterdir()) == ["comparison.md", "comparison.png"]
    assert "| times as fast as equal | 1.00 | 2.00 |" in (output / "comparison.md").read_text()
    assert "times as fast as equal" in result.output


def test_folders_of_the_same_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / part / "report", seconds=20.0) for part in "ab"]
    result = CliRunner().invoke(make_app(), ["compare", *map(str, folders), "--output", str(tmp_path)])
    assert (tmp_path / "comparison.md").read_text().startswith(f"# {folders[0]} and {folders[1]}\n"), result.output


def test_one_folder_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="FOLDER: give the report folders of two or more runs"):
        compare([make_folder(tmp_path / "equal", seconds=20.0)])


def test_a_report_that_is_none_is_named(tmp_path: Path) -> None:
    good, broken = make_folder(tmp_path / "good", seconds=20.0), make_folder(tmp_path / "broken", seconds=20.0)
    (broken / "report.json").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match=r"broken/report\.json: is not a text in UTF-8"):
        compare([good, broken])
    (broken / "report.json").write_text("{}")
    with pytest.raises(CommandError, match=r"broken/report\.json: is no report of a run that trained: job: Field"):
        compare([good, broken])
