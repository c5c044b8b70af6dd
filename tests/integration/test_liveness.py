"""Liveness: red when a new process would do better, and not before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from support.api_proxy import ApiProxy
from support.control_plane import Namespace
from support.operator_process import OperatorProcess
from support.play import job, until, until_complete

Start = Callable[..., OperatorProcess]


def test_a_watch_that_withholds_events_turns_liveness_red_while_the_periodic_list_does_its_work(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy
) -> None:
    operator = start_operator(
        full_pass_seconds=1,
        watch_stale_seconds=4,
        watch_inactivity_seconds=600,
        allow=("withheld", "aiohttp.server", "Traceback"),
    )
    first = namespace.create("heterotrainjobs", job("first"))["metadata"]["uid"]
    until_complete(namespace, first, 4)
    assert operator.alive() == 200

    proxy.withhold_watches = True
    second = namespace.create("heterotrainjobs", job("second"))["metadata"]["uid"]

    until_complete(namespace, second, 4)
    # kopf answers probes from a cache for ten seconds.
    until("liveness is red", lambda: operator.alive() == 500, 25)
    assert 'heterotrain_operator_watch_lag_seconds{resource="jobs"} 0.0' not in operator.metrics()


def test_started_while_the_api_server_is_away_the_operator_waits_and_is_alive(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy
) -> None:
    proxy.stall()
    operator = start_operator(request_timeout_seconds=1, allow=("Request attempt",))
    until("it is alive", lambda: operator.alive() == 200)
    assert operator.ready() == 503

    proxy.heal()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]

    until_complete(namespace, uid, 4)
    namespace.delete("pods", "fashion-cpu-1-1")
    until_complete(namespace, uid, 4)
    # Ready is who has also asked for its rights and listed all jobs: on a busy machine that may be later.
    until("it is ready", lambda: operator.ready() == 200)


def test_without_the_rights_the_operator_ends_and_says_why(start_operator: Start, namespace: Namespace) -> None:
    operator = start_operator(cluster=True, allow=("",))
    assert until("it ended", lambda: operator.process.poll() is not None)
    assert "may not list HeteroTrainJobs; give its service account the chart's role" in operator.log.read_text()


def test_without_credentials_the_operator_ends_and_says_why(tmp_path: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("KUBERNETES_", "KOPF_"))}
    env |= {"KUBECONFIG": str(tmp_path / "none"), "HETEROTRAIN_OPERATOR_TRAINER_IMAGE": "trainer:test"}
    command = [sys.executable, "-m", "kopf", "run", "--standalone", "-A", "-m", "heterotrain_operator.handlers"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "no credentials for an API server were found: " in done.stderr
    assert "will try again" not in done.stderr


def test_a_wrong_setting_ends_the_operator_with_its_name(start_operator: Start, namespace: Namespace) -> None:
    operator = start_operator(full_pass_seconds="soon", allow=("",))
    assert until("it ended", lambda: operator.process.poll() is not None)
    assert "HETEROTRAIN_OPERATOR_FULL_PASS_SECONDS must be a number, not 'soon'" in operator.log.read_text()
