from __future__ import annotations

import errno
import json
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from heterotrain_operator.local.decide import Limits
from heterotrain_operator.local.job_folder import JobFolder
from heterotrain_operator.local.manifest import load_job
from heterotrain_operator.local.process_plan import ProcessPlan
from heterotrain_operator.local.progress import Style, make_console, make_display
from heterotrain_operator.local.registry import Registry
from heterotrain_operator.local.runner import run_job
from support.local_jobs import heterotrain, start, write_job

pytestmark = pytest.mark.timeout(240)
"""A run is half a dozen interpreters that start: slow where many tests share a machine."""

MEMORY = [{"name": "cpu", "replicas": 2, "resources": {"limits": {"memory": "200Mi"}}}]


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def report_of(folder: Path, name: str = "tiny") -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "heterotrain-report" / name / "report.json").read_text())
    return found


def test_a_job_that_succeeds_leaves_a_model_and_a_report(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    stale = tmp_path / "out" / "model.json"
    stale.parent.mkdir()
    stale.write_text("of an earlier job")
    (tmp_path / "out" / "mine.txt").write_text("the user's")

    code, output = heterotrain(
        tmp_path, "run", str(job), "--report", "out", "--speeds", "2:1", "--set", "spec.workers.cpu.batch.min=2"
    )

    assert code == 0, output
    assert output.splitlines()[0] == "tiny: 2 parameter servers, 2 workers, global batch 8: cpu-0=4 cpu-1=4"
    assert "Job succeeded: all epochs are over" in output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["state"], report["rounds"], report["samples"], report["accuracy"]) == ("Succeeded", 3, 24, 0.75)
    assert [(w["name"], w["share"], w["samples_per_second"]) for w in report["workers"]] == [
        ("cpu-0", 4, 50.0),
        ("cpu-1", 4, 50.0),
    ]
    slow, fast = (w["stretch"] for w in reversed(report["workers"]))
    assert slow == pytest.approx(2 * fast)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "report.md", "throughput.png", "shares.png", "logs", "mine.txt"} <= files
    assert "model.json" not in files, "what an earlier job left must not pass for this one's"
    assert "does work, stretch" in (tmp_path / "out" / "logs" / "cpu-0.log").read_text()
    folder = tmp_path / "home" / "jobs" / "tiny"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not (folder / "certificates").exists(), "no key outlives the job"


@pytest.mark.parametrize(
    ("args", "want"),
    [
        pytest.param(
            ["raise", "cpu-1"],
            "worker cpu-1 exited with code 1: ValueError: no such column: price",
            id="a script raises",
        ),
        pytest.param(["exit", "cpu-0"], "worker cpu-0 exited with code 1: giving up", id="a script exits with 1"),
        pytest.param(["die", "cpu-1"], "worker cpu-1 was killed by SIGKILL", id="a worker is killed"),
        pytest.param(["grow", "cpu-1"], "worker cpu-1 ran out of memory (OOMKilled): it held ", id="memory runs out"),
        pytest.param(
            ["lost", "cpu-1"],
            "worker cpu-1 exited with code 1: KeyError: 'after the coordinator noticed'",
            id="the worker's own words count though the coordinator knew first",
        ),
        pytest.param(
            ["never-join", "cpu-0"], "worker cpu-0 ended without joining the job", id="a script that does not train"
        ),
    ],
)
def test_a_job_that_fails_names_worker_cause_and_log(tmp_path: Path, args: list[str], want: str) -> None:
    job = write_job(tmp_path, args=args, workers=MEMORY)
    code, output = heterotrain(tmp_path, "run", str(job))
    assert code == 1, output
    assert f"Job failed: {want}" in output
    report = report_of(tmp_path)
    assert (report["state"], report["process"]) == ("Failed", args[1])
    assert str(report["message"]).startswith(want)
    assert f"log: {tmp_path}/heterotrain-report/tiny/logs/{args[1]}.log" in output


@pytest.mark.parametrize(
    ("command", "want"),
    [
        pytest.param(
            ["no-such-program"],
            "could not be started: no-such-program: No such file or directory",
            id="no such program",
        ),
        pytest.param(["python", "gone.py"], "exited with code 2: ", id="no such script"),
        pytest.param(["python", "-m", "gone"], "exited with code 1: ", id="no such module"),
    ],
)
def test_a_command_that_cannot_run_is_told(tmp_path: Path, command: list[str], want: str) -> None:
    job = write_job(tmp_path, command=command, args=[], workers=[{"name": "cpu"}])
    code, output = heterotrain(tmp_path, "run", str(job))
    assert code == 1, output
    assert f"Job failed: worker cpu-0 {want}" in output
    assert command[-1] in output.split("Job failed: ")[1].splitlines()[0]


def test_workers_that_never_get_ready_end_the_job(tmp_path: Path) -> None:
    job = write_job(tmp_path, args=["hang-before", "cpu-1"])
    code, output = heterotrain(tmp_path, "run", str(job), "--startup-seconds", "3")
    assert code == 1, output
    assert "Job failed: the workers were not ready within 3 s (not joined: cpu-1)" in output


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param(["gone.yaml"], "gone.yaml: there is no such file", id="no such file"),
        pytest.param(["job.yaml", "--set", "spec.workers=[]"], "spec.workers: ", id="a fault is told with its field"),
        pytest.param(
            ["job.yaml", "--set", "spec.sead=3"], "spec has no field 'sead'; did you mean seed?", id="a slip in --set"
        ),
        pytest.param(["job.yaml", "--report", "job.yaml"], "cannot be written to", id="a report where a file is"),
        pytest.param(["job.yaml", "--speeds", "1:2:3"], "--speeds 1:2:3: names 3 speeds", id="a speed too many"),
    ],
)
def test_wrong_input_starts_nothing_and_ends_with_2(tmp_path: Path, arguments: list[str], want: str) -> None:
    write_job(tmp_path)
    code, output = heterotrain(tmp_path, "run", *arguments)
    assert (code, want in output) == (2, True), output
    assert not (tmp_path / "heterotrain-report").exists()


def test_the_first_interrupt_saves_the_model(tmp_path: Path) -> None:
    job = write_job(tmp_path, args=["wait"])
    runner = start(tmp_path, "run", str(job))
    wait_until(lambda: "training" in (runner.stdout.readline() if runner.stdout else ""), "training began")
    runner.send_signal(signal.SIGINT)
    output, _ = runner.communicate(timeout=40)
    assert runner.returncode == 3, output
    assert "stopping: the round is finished and the model saved" in output
    assert report_of(tmp_path)["message"] == "stopped by the user, model saved"
    assert (tmp_path / "heterotrain-report" / "tiny" / "model.safetensors").exists()


def test_the_second_interrupt_ends_at_once_whoever_does_not_listen(tmp_path: Path) -> None:
    job = write_job(tmp_path, args=["ignore-sigterm"])
    runner = start(tmp_path, "run", str(job))
    wait_until(lambda: "training" in (runner.stdout.readline() if runner.stdout else ""), "training began")
    children = psutil.Process(runner.pid).children(recursive=True)
    runner.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    runner.send_signal(signal.SIGTERM)
    output, _ = runner.communicate(timeout=40)
    assert runner.returncode == 3, output
    assert len(children) >= 6
    assert not any(alive(child.pid) for child in children)


def test_nothing_outlives_a_runner_that_is_killed(tmp_path: Path) -> None:
    grandchild = tmp_path / "grandchild"
    job = write_job(tmp_path, args=["wait", "cpu-1", str(grandchild)])
    runner = start(tmp_path, "run", str(job))
    wait_until(
        lambda: grandchild.exists() and grandchild.read_text() != "", "a worker has started a process of its own"
    )
    children = {child.pid for child in psutil.Process(runner.pid).children(recursive=True)}
    assert int(grandchild.read_text()) in children
    runner.kill()
    runner.communicate(timeout=40)
    wait_until(lambda: not any(alive(pid) for pid in children), "all processes of the job are gone")
    assert heterotrain(tmp_path, "list", "--json")[1].count('"Lost"') == 1


def test_a_running_job_is_found_and_led_by_name(tmp_path: Path) -> None:
    job = write_job(tmp_path, args=["wait"])
    runner = start(tmp_path, "run", str(job), "--plain")
    wait_until(lambda: "training" in (runner.stdout.readline() if runner.stdout else ""), "training began")

    code, output = heterotrain(tmp_path, "run", str(job))
    assert (code, "a job named tiny is running already" in output) == (2, True), output
    code, output = heterotrain(tmp_path, "plan", "set", "tiny", "cpu-0=6", "cpu-1=2", "--reason", "by hand")
    assert (code, "plan 2 is in force from round " in output) == (0, True), output
    code, output = heterotrain(tmp_path, "plan", "set", "tiny", "cpu-0=7")
    assert (code, output.splitlines()) == (
        1,
        ["the plan was refused; nothing changed", "the coordinator: the shares sum to 9"],
    )
    code, output = heterotrain(tmp_path, "plan", "show", "tiny", "--json")
    assert [w["share_applied"] for w in json.loads(output)["workers"]] == [6, 2]
    code, output = heterotrain(tmp_path, "drain", "tiny", "tpu-0")
    assert (code, output) == (1, "refused: there is no such worker\n")
    assert heterotrain(tmp_path, "checkpoint", "tiny") == (0, "/somewhere/model-3.safetensors\n")
    code, output = heterotrain(tmp_path, "logs", "tiny", "cpu-1")
    assert (code, output) == (0, "cpu-1 does wait, stretch None\n")
    code, output = heterotrain(tmp_path, "stop", "tiny")
    assert (code, output) == (0, "job tiny: Stopped: stopped by the user, model saved\n")
    runner.communicate(timeout=40)
    assert runner.returncode == 3
    code, output = heterotrain(tmp_path, "plan", "show", "tiny")
    assert (code, output) == (1, "job tiny does not run: it is Stopped\n")
    code, output = heterotrain(tmp_path, "logs", "other")
    words = "no local job is named other; there are: tiny; a job on a cluster is named with -n NAMESPACE\n"
    assert (code, output) == (1, words)


def test_no_key_outlives_a_job_that_the_runner_cannot_bring_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("heterotrain_operator.local.runner.write_report", full)
    loaded, registry = load_job(write_job(tmp_path)), Registry(tmp_path / "home")
    with registry.claim("tiny") as root:
        plan = ProcessPlan(
            job=loaded.job, uid="u-1", folder=JobFolder(root, tmp_path / "out"), source=tmp_path,
            python="/no/such/python", environment={}, stretches={},
        )  # fmt: skip
        plan.folder.prepare(loaded.document)
        display, limits = make_display(Style.QUIET, make_console()), Limits(collect_seconds=0.0)
        with pytest.raises(OSError, match="No space left"):
            run_job(plan, tmp_path / "job.yaml", registry=registry, display=display, limits=limits)
        assert not (root / "certificates").exists()
