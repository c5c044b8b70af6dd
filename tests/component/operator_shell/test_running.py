"""The operator put together, without an API server: it starts, waits, and knows when it is in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from heterotrain_api.contract import Label
from heterotrain_operator.job.decide import decide
from heterotrain_operator.job.names import owner_reference
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.running import Operator
from heterotrain_operator.settings import InfoSettings, OperatorSettings
from support.control_plane import write_kubeconfig
from support.ports import free_port

Make = Callable[..., Operator]
UID = "6d0f3c1e-0000-4000-8000-000000000001"


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    kubeconfig = write_kubeconfig(tmp_path / "config.yaml", f"http://127.0.0.1:{free_port()}", "token")
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    made: list[Operator] = []

    def build(info: InfoSettings | None = None, **settings: Any) -> Operator:
        made.append(Operator(OperatorSettings(**settings), JobSettings(trainer_image="trainer:test"), decide, info))
        return made[-1]

    yield build
    for operator in made:
        await operator.stop()


def pod(uid: str, version: str, owner: str = UID) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "fashion-cpu-0-1",
            "namespace": "ml",
            "uid": uid,
            "resourceVersion": version,
            "labels": {Label.JOB_UID: UID},
            "ownerReferences": [owner_reference("fashion", owner)],
        }
    }


async def test_without_an_api_server_it_is_alive_and_not_ready(make: Make) -> None:
    operator = make()
    await operator.start()
    assert operator.trouble() is None
    assert not operator.ready()


async def test_the_information_service_waits_for_an_api_server_too_and_answers_nobody_meanwhile(
    make: Make, tmp_path: Path
) -> None:
    port = free_port()
    folder = tmp_path / "no-folder"
    folder.write_text("a file, so that no history can lie below it")
    info = InfoSettings(
        rules_namespace="system",
        rule_packs=("trainer",),
        rest_port=port,
        history_file=str(folder / "history.sqlite"),
    )
    operator = make(info, request_timeout_seconds=1)
    await operator.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        async with asyncio.timeout(10):
            while not await _is_up(client):  # noqa: ASYNC110  # it listens when it listens
                await asyncio.sleep(0.05)
        answer = await client.get("/v1/entities", headers={"Authorization": "Bearer token"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert operator.trouble() is None
    assert operator.metrics.registry.get_sample_value("heterotrain_info_series") == 0
    await operator.stop()
    assert operator.metrics.registry.get_sample_value("heterotrain_info_series") is None


async def _is_up(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/healthz")).status_code == 200
    except httpx.TransportError:
        return False


async def test_a_supervisor_that_does_not_come_round_is_trouble(make: Make) -> None:
    operator = make(loop_stuck_seconds=0.01)
    await operator.start()
    await asyncio.sleep(0.1)
    assert "has not come round" in (operator.trouble() or "")


async def test_events_of_jobs_and_pods_wake_their_job(make: Make) -> None:
    operator = make()
    await operator.start()
    job = {"metadata": {"name": "other", "namespace": "ml", "uid": "u-2", "resourceVersion": "1"}}
    operator.job_event(None, job)
    operator.pod_event("ADDED", pod("p-1", "1"))
    operator.pod_event("MODIFIED", pod("p-1", "2", owner="the job before"))
    assert operator.metrics.registry.get_sample_value("heterotrain_operator_jobs") == 2
    age = operator.metrics.registry.get_sample_value
    assert (age("heterotrain_operator_watch_event_age_seconds", {"resource": "jobs"}) or 0) < 60


async def test_a_job_that_cannot_be_reached_is_tried_again_and_counted(make: Make) -> None:
    operator = make()
    await operator.start()
    operator.pod_event("ADDED", pod("p-1", "1"))
    value = operator.metrics.registry.get_sample_value
    async with asyncio.timeout(10):
        while (value("heterotrain_operator_pass_errors_total", {"reason": "Unreachable"}) or 0) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert operator.trouble() is None


async def test_stopped_it_does_nothing_more(make: Make) -> None:
    operator = make()
    await operator.start()
    await operator.stop()
    passes = operator.metrics.registry.get_sample_value("heterotrain_operator_passes_total")
    operator.pod_event("ADDED", pod("p-1", "1"))
    await asyncio.sleep(0.1)
    assert operator.metrics.registry.get_sample_value("heterotrain_operator_passes_total") == passes
