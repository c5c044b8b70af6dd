from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from heterotrain_operator.local.registry import (
    Entry,
    HomeError,
    JobNotFoundError,
    JobRunningError,
    Registry,
    home,
    same_process,
)

OWN_START = psutil.Process().create_time()
ENTRY = Entry(
    job="tiny",
    uid="u",
    manifest="/j.yaml",
    pid=os.getpid(),
    started=OWN_START,
    report="/r",
    processes=("ps-0", "cpu-0"),
)


def test_entries_are_kept_and_found_by_name(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    assert registry.jobs() == ()
    for name in ("b", "a"):
        with registry.claim(name):
            registry.write(replace(ENTRY, job=name))
    assert [job.entry.job for job in registry.jobs()] == ["a", "b"]
    found = registry.find("b")
    assert (found.entry, found.alive, found.state) == (replace(ENTRY, job="b"), True, "Running")
    assert (found.logs, found.credentials) == (Path("/r/logs"), tmp_path / "jobs" / "b" / "certificates" / "operator")


@pytest.mark.parametrize(
    ("entry", "want"),
    [
        pytest.param(ENTRY, "Running", id="its runner lives"),
        pytest.param(replace(ENTRY, pid=2**22 + 1), "Lost", id="its runner is gone"),
        pytest.param(replace(ENTRY, started=OWN_START - 60), "Lost", id="its pid belongs to a younger process"),
        pytest.param(replace(ENTRY, pid=2**22 + 1, state="Failed"), "Failed", id="over"),
    ],
)
def test_a_runner_that_is_gone_is_told_from_one_that_lives(tmp_path: Path, entry: Entry, want: str) -> None:
    registry = Registry(tmp_path)
    with registry.claim("tiny"):
        registry.write(entry)
    assert registry.find("tiny").state == want


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b"{}", id="an object without fields"),
        pytest.param(ENTRY.to_json().replace(f'"pid": {ENTRY.pid}', '"pid": -5').encode(), id="no process"),
        pytest.param(ENTRY.to_json().replace('"/r"', "null").encode(), id="no report"),
    ],
)
def test_an_entry_that_is_damaged_is_none_and_harms_no_other(tmp_path: Path, content: bytes) -> None:
    registry = Registry(tmp_path)
    with registry.claim("tiny"), registry.claim("other"):
        registry.write(replace(ENTRY, job="other"))
    (registry.folder("tiny") / "runner.json").write_bytes(content)
    assert [job.entry.job for job in registry.jobs()] == ["other"]
    with pytest.raises(JobNotFoundError, match="no local job is named tiny; there are: other"):
        registry.find("tiny")


@pytest.mark.parametrize("name", ["", ".", "..", "../jobs/tiny", "/etc", "x" * 300, "é"], ids=repr)
def test_a_name_that_no_job_can_have_is_no_path(tmp_path: Path, name: str) -> None:
    registry = Registry(tmp_path)
    with registry.claim("tiny"):
        registry.write(ENTRY)
    with pytest.raises(JobNotFoundError, match="no local job is named"):
        registry.find(name)


def test_a_home_that_cannot_be_one_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refusal = pytest.raises(
        HomeError, match=r"file: jobs cannot be kept there: .*; name another folder in HETEROTRAIN_"
    )
    with refusal, Registry(tmp_path / "file").claim("tiny"):
        pass


def test_a_name_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with Registry(tmp_path).claim("tiny"):
        with (
            pytest.raises(JobRunningError, match="a job named tiny is running already"),
            Registry(tmp_path).claim("tiny"),
        ):
            pass
        with Registry(tmp_path).claim("other"):
            pass
    with Registry(tmp_path).claim("tiny") as folder:
        assert folder == tmp_path / "jobs" / "tiny"


def test_an_unknown_job_is_told_with_the_known_ones(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    with pytest.raises(JobNotFoundError, match="no local job is named x; there are none"):
        registry.find("x")
    with registry.claim("tiny"):
        registry.write(ENTRY)
    with pytest.raises(JobNotFoundError, match="no local job is named x; there are: tiny"):
        registry.find("x")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"job": "tiny"}', "nonsense"])
def test_a_broken_entry_is_no_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "jobs" / "tiny").mkdir(parents=True)
    (tmp_path / "jobs" / "tiny" / "runner.json").write_text(text)
    assert Registry(tmp_path).jobs() == ()


def test_an_entry_of_a_later_version_is_read() -> None:
    text = ENTRY.to_json().replace('"job"', '"later": 1, "job"')
    assert Entry.from_json(text) == ENTRY


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        ({"HETEROTRAIN_HOME": "/h", "XDG_STATE_HOME": "/s"}, Path("/h")),
        ({"XDG_STATE_HOME": "/s"}, Path("/s/heterotrain")),
        ({}, Path.home() / ".local" / "state" / "heterotrain"),
    ],
)
def test_home(environment: dict[str, str], want: Path) -> None:
    assert home(environment) == want


def test_processes_are_known_by_pid_and_start() -> None:
    assert same_process(os.getpid(), OWN_START)
    assert not same_process(os.getpid(), OWN_START + 30)
    assert not same_process(2**22 + 1, OWN_START)
