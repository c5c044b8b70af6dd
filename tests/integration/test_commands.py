"""The command line for jobs on a cluster: a process with a kubeconfig, the operator, and a coordinator on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from heterotrain_api.contract import ExitCode
from heterotrain_rpc import control_pb2
from support.control_plane import ADMIN, OPERATOR, ControlPlane, Namespace, write_kubeconfig
from support.operator_process import OperatorProcess
from support.play import condition, end, job, run, until, until_complete, wait_for
from support.trained_job import Running, coordinator_of

Start = Callable[..., OperatorProcess]
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(plane: ControlPlane, namespace: Namespace, tmp_path: Path) -> Call:
    """Run `heterotrain` for the test's namespace; gives the exit code and all that it said, which `told` takes too."""

    def run(
        *words: str, user: str = ADMIN, place: tuple[str, ...] = ("-n", namespace.name), told: Path | None = None
    ) -> tuple[int, str]:
        kubeconfig = write_kubeconfig(tmp_path / f"{user}.yaml", plane.url, user, plane.ca)
        env = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
        env |= {"KUBECONFIG": str(kubeconfig), "HETEROTRAIN_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
        command = [sys.executable, "-u", "-c", "from heterotrain_operator.cli import main; main()", *words, *place]
        if told is None:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode, done.stdout + done.stderr
        with told.open("w") as file:
            code = subprocess.run(command, env=env, stdout=file, stderr=file, timeout=120, check=False).returncode
        return code, told.read_text()

    return run


@pytest.mark.timeout(150)
def test_a_training_job_is_listed_shown_and_given_new_shares(
    call: Call, namespace: Namespace, start_operator: Start
) -> None:
    start_operator()
    with _training(namespace) as running:
        assert running.coordinator is not None
        code, listed = call("list", "--json")
        assert (code, [(j["name"], j["where"], j["state"]) for j in json.loads(listed)]) == (
            0,
            [("fashion", f"namespace {namespace.name}", "Training")],
        )
        code, shown = call("plan", "show", "fashion")
        assert code == 0
        assert [line.split()[0] for line in shown.splitlines()[1:]] == ["worker", "cpu-0", "cpu-1", "cpu-2", "plan"]

        running.coordinator.verdict = control_pb2.PlanVerdict(accepted=True, generation=2, effective_round=40)
        assert call("plan", "set", "fashion", "cpu-0=9", "cpu-1=33/3") == (0, "plan 2 is in force from round 40\n")
        running.coordinator.verdict = control_pb2.PlanVerdict(refusals=[control_pb2.Refusal(reason="the sum is 9")])
        code, words = call("plan", "set", "fashion", "cpu-0=9")
        assert (code, words) == (1, "the plan was refused; nothing changed\nthe coordinator: the sum is 9\n")

        assert [list(plan.shares) for plan in running.coordinator.plans[:2]] == [
            [
                control_pb2.PlanShare(worker="cpu-0", samples=9),
                control_pb2.PlanShare(worker="cpu-1", samples=33, micro_batch=3),
            ],
            [control_pb2.PlanShare(worker="cpu-0", samples=9)],
        ]

        running.coordinator.verdict = control_pb2.PlanVerdict(accepted=True, generation=3, effective_round=41)
        assert call("sync", "set", "fashion", "--mode", "SSP", "--staleness-bound", "8") == (
            0,
            "plan 3 is in force from round 41: SSP, at most 8 iterations ahead\n",
        )
        wanted = running.coordinator.plans[-1].synchronization
        assert (wanted.mode, wanted.staleness_bound) == ("SSP", 8)
        code, words = call("sync", "set", "fashion", "--dssp", "1,2")
        assert code == 1
        assert words.startswith(
            "the change was refused; nothing changed\nsynchronization.dssp: must be left out unless mode is DSSP"
        )
        code, words = call("sync", "show", "fashion")
        assert (code, words.startswith("BSP\nbound in force: 0; ")) == (0, True), words

        running.coordinator.reply = control_pb2.CommandReply(accepted=True, path="/output/c-1")
        assert call("checkpoint", "fashion") == (0, "checkpoint was accepted: /output/c-1\n")


@pytest.mark.timeout(150)
def test_a_waiting_job_is_stopped_and_then_takes_no_plan(
    call: Call, namespace: Namespace, start_operator: Start
) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)

    code, words = call("stop", "fashion")

    assert (code, words.startswith("job fashion: Stopped: ")) == (0, True), words
    assert call("plan", "set", "fashion", "cpu-0=9") == (1, "job fashion does not run: it is Stopped\n")


def test_what_cannot_be_done_is_said_in_words(call: Call, namespace: Namespace, tmp_path: Path) -> None:
    assert call("plan", "show", "x") == (1, f"no job is named x in namespace {namespace.name}; there are none\n")
    assert call("plan", "show", "x", place=()) == (
        1,
        "no local job is named x; there are none; a job on a cluster is named with -n NAMESPACE\n",
    )
    code, words = call("list", place=("--context", "nowhere"))
    assert (code, words.startswith("no cluster is configured: ")) == (2, True), words


def test_a_right_that_is_missing_is_named(call: Call, namespace: Namespace) -> None:
    """The operator's own rights do not include writing a job's annotations."""
    namespace.create("heterotrainjobs", job())
    code, words = call("plan", "set", "fashion", "cpu-0=9", user=OPERATOR)
    assert code == 1
    assert "a right is missing, ask whoever runs the cluster for it: " in words
    assert 'cannot patch resource "heterotrainjobs"' in words


def test_an_operator_that_does_not_answer_is_named(call: Call, namespace: Namespace) -> None:
    namespace.create("heterotrainjobs", job())
    code, words = call("plan", "set", "fashion", "cpu-0=9", "--timeout", "1")
    assert (code, words.startswith("the operator has not answered within 1 s; the request stays with ")) == (1, True), (
        words
    )


@pytest.mark.parametrize(
    "command", [("drain", "fashion", "cpu-0"), ("checkpoint", "fashion")], ids=["drain", "checkpoint"]
)
def test_a_command_waits_as_long_as_it_is_told_to(call: Call, namespace: Namespace, command: tuple[str, ...]) -> None:
    namespace.create("heterotrainjobs", job())
    code, words = call(*command, "--timeout", "1")
    assert (code, words.startswith("the operator has not answered within 1 s; the request stays with ")) == (1, True), (
        words
    )
    taken_back = f"kubectl annotate htj fashion -n {namespace.name} heterotrain.io/command-"
    assert taken_back in words
    stored = namespace.get("heterotrainjobs", "fashion")
    assert stored is not None
    assert json.loads(stored["metadata"]["annotations"]["heterotrain.io/command"])["command"] == command[0]


@pytest.mark.timeout(150)
def test_a_drain_is_accepted_and_told_of_in_status_and_event(
    call: Call, namespace: Namespace, start_operator: Start
) -> None:
    start_operator()
    with _training(namespace) as running:
        assert running.coordinator is not None
        assert call("drain", "fashion", "cpu-1") == (0, "drain was accepted\n")
        assert running.coordinator.commands == [control_pb2.CommandRequest(drain=control_pb2.Drain(worker="cpu-1"))]
        assert _told(namespace, "RequestAccepted") == [(True, "drain was accepted")]


@pytest.mark.timeout(150)
def test_a_drain_that_the_coordinator_refuses_is_told_of_in_status_and_event(
    call: Call, namespace: Namespace, start_operator: Start
) -> None:
    start_operator()
    with _training(namespace) as running:
        assert running.coordinator is not None
        running.coordinator.reply = control_pb2.CommandReply(reason="cpu-1 is the last worker")
        assert call("drain", "fashion", "cpu-1") == (1, "refused: cpu-1 is the last worker\n")
        assert _told(namespace, "RequestRefused") == [(False, "cpu-1 is the last worker")]


@pytest.mark.timeout(150)
def test_a_training_job_is_stopped_by_its_coordinator(call: Call, namespace: Namespace, start_operator: Start) -> None:
    start_operator()
    with _training(namespace) as running, ThreadPoolExecutor(1) as pool:
        assert running.coordinator is not None
        stopping = pool.submit(call, "stop", "fashion", "--timeout", "40")
        assert until("the answer", lambda: _told(namespace, "RequestAccepted")) == [(True, "stop was accepted")]
        assert [(c.WhichOneof("command"), c.stop.reason) for c in running.coordinator.commands] == [
            ("stop", "stopped by the user")
        ]
        assert not stopping.done()  # it waits for the end, not for the answer

        end(namespace, "fashion-ps-0-1", "coordinator", ExitCode.STOPPED, '{"state": "Stopped", "reason": "Stopped", '
            '"message": "stopped by the user, model saved", "rounds": 9, "samples": 576}')  # fmt: skip

        assert stopping.result(60) == (0, "job fashion: Stopped: stopped by the user, model saved\n")
    stored = namespace.get("heterotrainjobs", "fashion")
    assert stored is not None
    assert (stored["status"]["state"], condition(stored, "Succeeded")["status"]) == ("Stopped", "False")


def test_logs_say_what_pods_without_a_log_wait_for(call: Call, namespace: Namespace, start_operator: Start) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    wait_for(namespace, "fashion-cpu-0-1", "ImagePullBackOff", "Back-off pulling image")
    run(namespace, "fashion-cpu-2-1")

    pod = "pod fashion-cpu-0-1 waits to start container trainer"
    waits = f"cpu-0 has no log yet: {pod}: ImagePullBackOff: Back-off pulling image"
    unscheduled = "cpu-1 has no log yet: pod fashion-cpu-1-1 is not scheduled to a node yet"
    code, words = call("logs", "fashion")
    assert (code, {waits, unscheduled} <= set(words.splitlines())) == (0, True), words
    assert "cpu-2" not in words
    assert call("logs", "fashion", "cpu-0") == (1, f"{waits}\nthere is no log of cpu-0; --follow waits for it\n")
    code, words = call("logs", "fashion", "gpu-0")
    assert (code, words) == (1, "job fashion has no pod of gpu-0; there are: coordinator, cpu-0, cpu-1, cpu-2, ps-0\n")


def test_following_a_log_waits_for_the_pod_and_ends_with_the_job(
    call: Call, namespace: Namespace, start_operator: Start, tmp_path: Path
) -> None:
    namespace.create("heterotrainjobs", job())
    told = tmp_path / "told"
    told.touch()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(call, "logs", "fashion", "cpu-0", "--follow", told=told)
        until("it says what it waits for", lambda: "no pod yet" in told.read_text())
        start_operator()
        until("the pod", lambda: namespace.get("pods", "fashion-cpu-0-1"))
        run(namespace, "fashion-cpu-0-1")
        time.sleep(3)
        assert not following.done()
        namespace.delete("heterotrainjobs", "fashion")
        code, words = following.result(60)
    assert code == 0, words
    assert words.startswith("cpu-0 has no pod yet: the operator has not looked at the job yet\n"), words


@contextmanager
def _training(namespace: Namespace) -> Iterator[Running]:
    """The job `fashion`, training."""
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid) as running:
        until(
            "it trains",
            lambda: condition(namespace.get("heterotrainjobs", "fashion"), "Training").get("status") == "True",
        )
        yield running


def _told(namespace: Namespace, reason: str) -> list[tuple[bool, str]]:
    """The answers in the status, once an event of that reason says as much of the newest."""
    stored = namespace.get("heterotrainjobs", "fashion")
    answers = [(a["accepted"], a["message"]) for a in (stored or {}).get("status", {}).get("requests", [])]
    if answers:
        said = f"an event {reason}: {answers[-1][1]}"
        until(
            said,
            lambda: [e for e in namespace.list("events") if e["reason"] == reason and answers[-1][1] in e["message"]],
        )
    return answers
