"""The command line for jobs on a cluster: a process with a kubeconfig, the operator, and a coordinator on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heterotrain_rpc import control_pb2
from support.control_plane import ADMIN, OPERATOR, ControlPlane, Namespace, write_kubeconfig
from support.operator_process import OperatorProcess
from support.play import condition, job, until, until_complete
from support.trained_job import coordinator_of

Start = Callable[..., OperatorProcess]
Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(plane: ControlPlane, namespace: Namespace, tmp_path: Path) -> Call:
    """Run `heterotrain` for the test's namespace; gives the exit code and all that it said."""

    def run(*words: str, user: str = ADMIN, place: tuple[str, ...] = ("-n", namespace.name)) -> tuple[int, str]:
        kubeconfig = write_kubeconfig(tmp_path / f"{user}.yaml", plane.url, user, plane.ca)
        env = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
        env |= {"KUBECONFIG": str(kubeconfig), "HETEROTRAIN_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
        command = [sys.executable, "-c", "from heterotrain_operator.cli import main; main()", *words, *place]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.timeout(150)
def test_a_training_job_is_listed_shown_and_given_new_shares(
    call: Call, namespace: Namespace, start_operator: Start
) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid) as running:
        until(
            "it trains",
            lambda: condition(namespace.get("heterotrainjobs", "fashion"), "Training").get("status") == "True",
        )
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

        assert [list(plan.shares) for plan in running.coordinator.plans] == [
            [
                control_pb2.PlanShare(worker="cpu-0", samples=9),
                control_pb2.PlanShare(worker="cpu-1", samples=33, micro_batch=3),
            ],
            [control_pb2.PlanShare(worker="cpu-0", samples=9)],
        ]

        running.coordinator.reply = control_pb2.CommandReply(accepted=True, path="/output/c-1")
        assert call("checkpoint", "fashion") == (0, "checkpoint was accepted: /output/c-1\n")
        running.coordinator.reply = control_pb2.CommandReply(reason="no worker is named x")
        assert call("drain", "fashion", "x") == (1, "refused: no worker is named x\n")


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
    assert (code, words.startswith("the operator has not answered in time; ")) == (1, True), words
