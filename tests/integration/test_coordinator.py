"""A running job: its coordinator is real gRPC on loopback, the pods exist in the API only."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from heterotrain_api.contract import Port
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials
from support.api_proxy import ApiProxy
from support.control_plane import Namespace
from support.fake_coordinator import FakeCoordinator, serve
from support.operator_process import OperatorProcess
from support.play import condition, job, run, until, until_complete

Start = Callable[..., OperatorProcess]
WORKERS = ("cpu-0", "cpu-1", "cpu-2")
MEASURED_SECONDS = 65.0
_hosts = itertools.count(2)


def training(version: int) -> control_pb2.JobState:
    workers = [
        control_pb2.WorkerState(
            name=name, group="cpu", phase=control_pb2.WORKER_PHASE_TRAINING, share_wanted=21, share_applied=21
        )
        for name in WORKERS
    ]
    shares = [control_pb2.PlanShare(worker=name, samples=21) for name in WORKERS]
    return control_pb2.JobState(
        phase=control_pb2.PHASE_TRAINING,
        reason="Training",
        epochs=2,
        version=version,
        samples=64 * version,
        dataset_size=64_000,
        global_batch_size=64,
        rounds_planned=2000,
        samples_per_second=64.0 + version,
        ideal_samples_per_second=80.0 + version,
        workers=workers,
        plan=control_pb2.PlanState(generation=1, shares=shares),
        shards=1,
    )


class Running:
    """A coordinator whose training goes on by a round each half second, in a thread of its own."""

    def __init__(self, credentials: Credentials, job_uid: str) -> None:
        self.host = f"127.9.0.{next(_hosts)}"
        self.coordinator: FakeCoordinator | None = None
        self._credentials, self._uid = credentials, job_uid
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10)

    def stop(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self.coordinator, self._stop = FakeCoordinator(state=training(1)), asyncio.Event()
        address = f"{self.host}:{Port.COORDINATOR}"
        async with serve(self.coordinator, self._credentials, self._uid, address):
            self._started.set()
            for version in itertools.count(2):
                try:
                    async with asyncio.timeout(0.5):
                        await self._stop.wait()
                except TimeoutError:
                    await self.coordinator.say(training(version))
                else:
                    return


@contextmanager
def coordinator_of(namespace: Namespace, job_uid: str) -> Iterator[Running]:
    """Play kubelet: all pods run, and in ps-0 the coordinator."""
    data: Mapping[str, str] = namespace.list("secrets")[0]["data"]
    own = {key: base64.b64decode(data[key]) for key in ("ca.crt", "ps-0.crt", "ps-0.key")}
    running = Running(Credentials(own["ca.crt"], own["ps-0.crt"], own["ps-0.key"]), job_uid)
    running.start()
    try:
        for pod in until_complete(namespace, job_uid, 4):
            name = pod["metadata"]["name"]
            run(namespace, name, ip=running.host if "-ps-0-" in name else "")
        yield running
    finally:
        running.stop()


@pytest.fixture
def trained(start_operator: Start, namespace: Namespace) -> Iterator[tuple[OperatorProcess, Running, str]]:
    operator = start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid) as running:
        until("it trains", lambda: condition(_job(namespace), "Training").get("status") == "True")
        yield operator, running, uid


@pytest.mark.timeout(150)
def test_an_idle_running_job_costs_at_most_four_writes_a_minute(
    trained: tuple[OperatorProcess, Running, str], namespace: Namespace, proxy: ApiProxy
) -> None:
    time.sleep(3)  # what the start itself had to say
    before, round_before = len(proxy.writes()), _job(namespace)["status"]["progress"]["round"]
    time.sleep(MEASURED_SECONDS)
    writes = proxy.writes()[before:]
    a_minute = len(writes) * 60 / MEASURED_SECONDS
    print(
        f"\nwrites of a running job in {MEASURED_SECONDS:g} s: {[w.resource for w in writes]}, {a_minute:.1f} a minute"
    )
    assert a_minute <= 4
    assert _job(namespace)["status"]["progress"]["round"] > round_before


def test_a_plan_that_the_user_asks_for_reaches_the_coordinator_and_its_answer_the_user(
    trained: tuple[OperatorProcess, Running, str], namespace: Namespace
) -> None:
    _, running, _ = trained
    assert running.coordinator is not None
    running.coordinator.verdict = control_pb2.PlanVerdict(refusals=[control_pb2.Refusal(reason="the sum is 9")])
    request = json.dumps({"id": "r-1", "shares": {"cpu-0": 9}, "reason": "a try"})

    annotations = {"heterotrain.io/plan-request": request}
    namespace.patch("heterotrainjobs", "fashion", {"metadata": {"annotations": annotations}})

    answer = until("an answer", lambda: _job(namespace)["status"].get("requests"))
    assert [(a["id"], a["accepted"]) for a in answer] == [("r-1", False)]
    assert "the sum is 9" in answer[0]["message"]
    until("an event", lambda: [e for e in namespace.list("events") if e["reason"] == "PlanRefused"])
    assert [list(plan.shares) for plan in running.coordinator.plans] == [
        [control_pb2.PlanShare(worker="cpu-0", samples=9)]
    ]
    assert _job(namespace)["metadata"]["annotations"] == annotations


def test_killed_during_training_the_operator_comes_back_and_is_right_again(
    trained: tuple[OperatorProcess, Running, str], namespace: Namespace, start_operator: Start
) -> None:
    operator, _, uid = trained
    pods = {pod["metadata"]["uid"] for pod in until_complete(namespace, uid, 4)}
    operator.kill()
    round_before = _job(namespace)["status"]["progress"]["round"]
    time.sleep(2)

    start_operator()

    until("the status goes on", lambda: _job(namespace)["status"]["progress"]["round"] > round_before)
    assert condition(_job(namespace), "Training")["status"] == "True"
    assert {pod["metadata"]["uid"] for pod in until_complete(namespace, uid, 4)} == pods


def _job(namespace: Namespace) -> dict[str, Any]:
    found = namespace.get("heterotrainjobs", "fashion")
    assert found is not None
    return found
