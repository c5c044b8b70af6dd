from __future__ import annotations

import os
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
import yaml
from typer.testing import CliRunner

from heterotrain_operator.cli import main, make_app
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.plan import parse_shares
from heterotrain_operator.commands.plugins import wanted
from heterotrain_operator.local.manifest import ManifestError, load_job
from heterotrain_operator.local.registry import Entry, Registry
from heterotrain_rpc import control_pb2
from support.local_jobs import write_job


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out + captured.err


def broken_job(folder: Path, **changes: Any) -> Path:
    path = write_job(folder)
    document = yaml.safe_load(path.read_text())
    for dotted, value in changes.items():
        node = document
        *parents, last = dotted.split("__")
        for part in parents:
            node = node[int(part) if part.isdigit() else part]
        node[last] = value
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_valid_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_job(tmp_path)
    assert call(capsys, "validate", str(path)) == (0, f"{path}: valid\n")


def test_ports_of_metrics_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = call(capsys, "run", str(write_job(tmp_path)), "--metrics-port", "65535")
    assert code == 2
    assert "--metrics-port must be at most 6553" in output


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "Job"}, "kind"),
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"metadata__name": "No Good"}, "metadata.name"),
        ({"spec__globalBatchSize": 0}, "spec.globalBatchSize"),
        ({"spec__globalBatchSize": "many"}, "spec.globalBatchSize"),
        ({"spec__workers": []}, "spec.workers"),
        ({"spec__workers__0__batch": {"min": 5, "max": 3}}, "spec.workers[0].batch"),
        ({"spec__workers__0__name": "ps"}, "spec.workers[0]"),
        ({"spec__command": []}, "spec.command"),
        ({"spec__sead": 3}, "spec.sead"),
        ({"spec__workers__0__device": "TPU"}, "spec.workers[0].device"),
        ({"spec__parameterServers__replicas": 0}, "spec.parameterServers.replicas"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_a_faulty_manifest_is_refused_at_once_with_the_fields_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], field: str
) -> None:
    path = broken_job(tmp_path, **changes)
    code, output = call(capsys, "validate", str(path))
    assert code == 1
    assert any(line.startswith(field) and ": " in line for line in output.splitlines()), output
    assert call(capsys, "run", str(path)) == (2, output), "run refuses for the same reasons, before it starts anything"


def test_every_fault_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = broken_job(tmp_path, spec__globalBatchSize=0, spec__seed=-1)
    code, output = call(capsys, "validate", str(path))
    assert (code, [line.split(":")[0] for line in output.splitlines()]) == (1, ["spec.globalBatchSize", "spec.seed"])


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("a: 1\n---\nb: 2\n", "holds 2 documents", id="two documents"),
        pytest.param("---\n", "holds no document", id="none"),
        pytest.param("a: [1", "is not YAML", id="no YAML"),
        pytest.param("- 1\n", "must be a mapping", id="a list"),
        pytest.param("a: !!python/object:os.system {}\n", "is not YAML", id="an object of Python is not made"),
    ],
)
def test_a_file_that_holds_no_manifest(tmp_path: Path, text: str, want: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ManifestError) as caught:
        load_job(path)
    (fault,) = caught.value.faults
    assert (fault.field, want in fault.message) == (str(path), True), fault


def test_overrides_come_before_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = broken_job(tmp_path, spec__globalBatchSize=0)
    assert call(capsys, "validate", str(path), "--set", "spec.globalBatchSize=16")[0] == 0
    assert load_job(path, ["spec.globalBatchSize=16", "spec.workers.cpu.replicas=3"]).job.spec.workers[0].replicas == 3


def test_a_run_without_the_trainers_packages_starts_nothing_and_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("heterotrain_operator.local.packages.TRAINER_PACKAGES", ("numpy", "no_such_torch"))
    job = write_job(tmp_path)
    words = (
        "running a job on this machine needs the package no_such_torch, which is not installed: "
        "pip install 'heterotrain[trainer]'\n"
    )
    assert call(capsys, "run", str(job)) == (1, words)
    assert list(tmp_path.iterdir()) == [job]
    assert call(capsys, "validate", str(job))[0] == 0, "a check needs none of them"


def test_the_version_is_an_option_and_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"heterotrain {version('heterotrain')}\n"
    assert (call(capsys, "--version"), call(capsys, "version")) == ((0, words), (0, words))


def test_the_help_of_checkpoint_says_that_the_whole_state_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = call(capsys, "checkpoint", "--help")
    assert code == 0
    assert "Parameters, optimizer, place in the data and plan" in " ".join(output.split())


@pytest.mark.parametrize(
    ("texts", "want"),
    [
        (["cpu-0=6"], [control_pb2.PlanShare(worker="cpu-0", samples=6)]),
        (["cpu-0=6/2"], [control_pb2.PlanShare(worker="cpu-0", samples=6, micro_batch=2)]),
    ],
)
def test_shares_are_read(texts: list[str], want: list[control_pb2.PlanShare]) -> None:
    assert parse_shares(texts) == want


@pytest.mark.parametrize(
    "texts",
    [
        ["cpu-0"],
        ["cpu-0=-1"],
        ["cpu-0=6/"],
        ["=3"],
        ["a=1", "a=2"],
        ["a=1.5"],
        ["a=4294967296"],
        ["a=٣"],
        ["a=" + "9" * 5000],
    ],
    ids=lambda texts: " ".join(texts)[:20],
)
def test_what_is_no_share_is_refused(texts: list[str]) -> None:
    with pytest.raises(CommandError):
        parse_shares(texts)


@pytest.mark.parametrize(
    "arguments", [("plan", "show", "x"), ("stop", "x"), ("logs", "x"), ("drain", "x", "cpu-0"), ("checkpoint", "x")]
)
def test_a_command_for_an_unknown_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    words = "no local job is named x; there are none; a job on a cluster is named with -n NAMESPACE\n"
    assert call(capsys, *arguments) == (1, words)


def finished(home: Path, report: Path) -> None:
    """Leave what a job named over leaves."""
    registry = Registry(home)
    with registry.claim("over"):
        registry.write(
            Entry(job="over", uid="u", manifest="", pid=2**22 + 1, started=0.0, report=str(report), state="Succeeded")
        )


def test_a_job_whose_logs_are_gone_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    finished(tmp_path, tmp_path / "report")
    words = f"job over has no logs in {tmp_path}/report/logs: it is just starting, or the folder was removed\n"
    assert call(capsys, "logs", "over") == (1, words)


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(b"no JSON\n", "is damaged: Expecting value", id="no JSON"),
        pytest.param(b"[]\n", "is damaged: line 1 is no decision", id="no object"),
        pytest.param(b"\xff\n", "is damaged: 'utf-8' codec can't decode", id="no text"),
    ],
)
def test_a_record_of_decisions_that_is_damaged_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    want: str,
) -> None:
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    finished(tmp_path, tmp_path)
    (tmp_path / "decisions.jsonl").write_bytes(content)
    code, output = call(capsys, "explain", "over")
    assert (code, output.startswith(f"{tmp_path}/decisions.jsonl: "), want in output) == (1, True, True), output


def test_a_file_that_no_command_foresaw_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    finished(tmp_path, tmp_path)
    (tmp_path / "decisions.jsonl").mkdir()
    assert call(capsys, "explain", "over") == (1, f"{tmp_path}/decisions.jsonl: Is a directory\n")


@pytest.mark.parametrize(
    ("content", "want"),
    [
        pytest.param(b"", "it must be one object", id="nothing"),
        pytest.param(b"- a\n", "it must be one object", id="a list"),
        pytest.param(b"a: &a [*a]\n", "line 1, column 8: *a stands inside what it names", id="a list in itself"),
        pytest.param(b"\xff\n", "is not a text in UTF-8 (byte 1)", id="no text"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, content: bytes, want: str
) -> None:
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (tmp_path / "config").write_bytes(content)
    code, output = call(capsys, "list", "-A")
    words = f"no cluster is configured: {tmp_path}/config is no kubeconfig: {want}"
    assert (code, output.startswith(words)) == (2, True), output


def test_words_that_are_no_text_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = call(capsys, "plan", "set", "tiny", "a\udcff=1")
    assert (code, output.startswith("'a\\udcff=1': is no text in ")) == (2, True), output


def test_texts_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    registry = Registry(tmp_path)
    with registry.claim("odd"):
        registry.write(Entry(job="odd", uid="u", manifest="", pid=2**22 + 1, started=0.0, report="/r/[red]x[/y]"))
    code, output = call(capsys, "list")
    assert (code, output.split()[-3:]) == (0, ["odd", "Lost", "/r/[red]x[/y]"])


def test_a_job_that_ends_meanwhile_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    registry, started = Registry(tmp_path), psutil.Process().create_time()
    with registry.claim("brief"):
        registry.write(
            Entry(job="brief", uid="u", manifest="", pid=os.getpid(), started=started, report="", coordinator="h:1")
        )
        assert call(capsys, "plan", "show", "brief") == (1, "job brief has just ended\n")


@pytest.mark.parametrize("words", [["stop", "brief"], ["stop", "brief", "--now"]])
def test_a_runner_that_ends_before_it_is_told_to_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    registry = Registry(tmp_path)
    alive = iter([True])
    monkeypatch.setattr("heterotrain_operator.local.registry.same_process", lambda *_: next(alive, False))
    entry = Entry(job="brief", uid="u", manifest="", pid=2**22 + 1, started=0.0, report="", state="Succeeded")
    with registry.claim("brief"):
        registry.write(entry)
        assert call(capsys, *words) == (0, "job brief: Succeeded: \n")


def hello() -> None:
    """Say hello."""
    typer.echo("hello")


def entry_point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group="heterotrain.commands")


GOOD = entry_point("hello", f"{__name__}:hello")
BROKEN = entry_point("odd", "no_such_package:app")


def test_only_the_plugin_that_is_called_is_loaded() -> None:
    assert wanted([GOOD, BROKEN], ["hello", "--odd"]) == (GOOD,)
    assert wanted([GOOD, BROKEN], ["list"]) == ()
    assert wanted([GOOD, BROKEN], ["--help"]) == (GOOD, BROKEN)


def test_a_plugin_that_cannot_be_loaded_is_named_and_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda self: hello if self is GOOD else __import__("no_such_package"))
    app = make_app([BROKEN, GOOD])
    assert CliRunner().invoke(app, ["hello"]).output == "hello\n"
    failed = CliRunner().invoke(app, ["odd", "--any", "thing"])
    assert isinstance(failed.exception, CommandError)
    assert "the command odd of no_such_package:app cannot be loaded: ModuleNotFoundError" in str(failed.exception)
    assert "hello" in CliRunner().invoke(app, ["--help"]).output


def test_a_plugin_does_not_take_the_place_of_our_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EntryPoint, "load", lambda self: hello)
    app = make_app([entry_point("version", "x:y"), entry_point("run", "x:y")])
    assert CliRunner().invoke(app, ["version"]).output.startswith("heterotrain 0.")
    assert CliRunner().invoke(app, ["run"]).exit_code == 2
