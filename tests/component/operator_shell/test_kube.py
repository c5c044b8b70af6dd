"""The door to Kubernetes over real HTTP: requests as the API server wants them, answers and silence as errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import incluster_config

from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.kube import Kube, load_configuration
from heterotrain_operator.metrics import Metrics

Answer = Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]]
JOBS = "/apis/heterotrain.io/v1alpha1"


@dataclass
class Server:
    """Notes requests, and answers with what a test sets."""

    answer: Answer | None = None
    requests: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.requests.append((request.method, request.path, dict(request.query), json.loads(text) if text else None))
        self.headers.append(dict(request.headers))
        assert self.answer is not None
        return await self.answer(request)

    def reply(self, document: object, status: int = 200) -> None:
        async def answer(_: web.Request) -> web.StreamResponse:
            return web.json_response(document, status=status)

        self.answer = answer

    def count(self, verb: str, resource: str, code: str) -> float:
        labels = {"verb": verb, "resource": resource, "code": code}
        return self.metrics.registry.get_sample_value("heterotrain_operator_api_requests_total", labels) or 0.0


@pytest.fixture
async def server() -> Server:
    return Server()


@pytest.fixture
async def kube(server: Server) -> AsyncIterator[Kube]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    configuration = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    configuration.api_key["BearerToken"] = "bearer test"
    async with ApiClient(configuration) as client:
        yield Kube(client, server.metrics, timeout_seconds=0.3)
    await runner.cleanup()


async def test_a_job_is_read(server: Server, kube: Kube) -> None:
    server.reply({"kind": "HeteroTrainJob"})
    assert await kube.get_job("ml", "fashion") == {"kind": "HeteroTrainJob"}
    assert server.requests == [("GET", f"{JOBS}/namespaces/ml/heterotrainjobs/fashion", {}, None)]
    assert server.headers[0]["Authorization"] == "bearer test"
    assert server.count("get", "heterotrainjobs", "200") == 1


async def test_what_is_not_there_is_none(server: Server, kube: Kube) -> None:
    server.reply({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}, 404)
    assert await kube.get_job("ml", "fashion") is None
    assert await kube.get_secret_metadata("ml", "x") is None


async def test_lists_come_in_pages(server: Server, kube: Kube) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        last = request.query.get("continue") == "next"
        metadata = {} if last else {"continue": "next"}
        return web.json_response({"metadata": metadata, "items": [{"n": 2 if last else 1}]})

    server.answer = answer
    assert await kube.list_pods("ml", "heterotrain.io/job-uid=u-1") == [{"n": 1}, {"n": 2}]
    selector = {"labelSelector": "heterotrain.io/job-uid=u-1", "limit": "500"}
    assert [query for _, _, query, _ in server.requests] == [selector, selector | {"continue": "next"}]


async def test_secrets_are_looked_for_without_their_content(server: Server, kube: Kube) -> None:
    server.reply({"kind": "PartialObjectMetadata"})
    await kube.get_secret_metadata("ml", "x")
    assert server.headers[0]["Accept"].startswith("application/json;as=PartialObjectMetadata;")


async def test_the_status_goes_with_the_version_that_was_read(server: Server, kube: Kube) -> None:
    server.reply({})
    job = {"metadata": {"name": "fashion", "namespace": "ml", "resourceVersion": "7"}, "spec": {"seed": 1}}
    await kube.replace_status(job, {"state": "Training"})
    path = f"{JOBS}/namespaces/ml/heterotrainjobs/fashion/status"
    body = {**job, "status": {"state": "Training"}}
    assert server.requests == [("PUT", path, {"fieldManager": "heterotrain-operator"}, body)]


async def test_a_pod_is_deleted_by_its_uid_and_one_that_is_gone_or_another_is_fine(server: Server, kube: Kube) -> None:
    server.reply({})
    await kube.delete_pod("ml", "fashion-cpu-0-1", "u-1")
    assert server.requests[0][3]["preconditions"] == {"uid": "u-1"}
    for code in (404, 409):
        server.reply({"kind": "Status", "code": code, "reason": "Some", "message": ""}, code)
        await kube.delete_pod("ml", "fashion-cpu-0-1", "u-1")
    server.reply({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}, 403)
    with pytest.raises(ApiError, match="no"):
        await kube.delete_pod("ml", "fashion-cpu-0-1", "u-1")


async def test_a_service_is_applied_under_its_own_field_manager_and_uid(server: Server, kube: Kube) -> None:
    server.reply({})
    await kube.apply_service("ml", {"metadata": {"name": "fashion-1"}}, "u-1")
    query = {"fieldManager": "heterotrain-operator", "force": "true"}
    body = {"metadata": {"name": "fashion-1", "uid": "u-1"}}
    assert server.requests == [("PATCH", "/api/v1/namespaces/ml/services/fashion-1", query, body)]
    assert server.headers[0]["Content-Type"] == "application/apply-patch+yaml"


async def test_an_event_is_merged_into(server: Server, kube: Kube) -> None:
    server.reply({})
    await kube.patch_event("ml", "fashion.1", {"count": 2})
    assert server.requests == [("PATCH", "/api/v1/namespaces/ml/events/fashion.1", {}, {"count": 2})]
    assert server.headers[0]["Content-Type"] == "application/merge-patch+json"


async def test_refusals_carry_the_api_servers_words(server: Server, kube: Kube) -> None:
    details = {"retryAfterSeconds": 7}
    status = {"kind": "Status", "code": 429, "reason": "TooManyRequests", "message": "slow down", "details": details}
    server.reply(status, 429)
    with pytest.raises(ApiError) as caught:
        await kube.get_job("ml", "fashion")
    error = caught.value
    assert (error.status, error.reason, error.message, error.retry_after_seconds) == (
        429,
        "TooManyRequests",
        "slow down",
        7,
    )
    assert server.count("get", "heterotrainjobs", "429") == 1


@pytest.mark.parametrize("status", [200, 503])
async def test_an_answer_that_is_not_the_api_servers_is_a_server_error(server: Server, kube: Kube, status: int) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>sign in", status=status)

    server.answer = answer
    with pytest.raises(ApiError, match="sign in") as caught:
        await kube.get_job("ml", "fashion")
    assert caught.value.status >= 500
    assert not caught.value.is_refusal


async def test_silence_ends_after_the_timeout_and_is_counted(server: Server, kube: Kube) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    server.answer = answer
    with pytest.raises(ApiUnreachableError, match=r"get .*fashion"):
        await kube.get_job("ml", "fashion")
    assert server.count("get", "heterotrainjobs", "0") == 1


async def test_a_body_that_never_ends_is_given_up_too(server: Server, kube: Kube) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    server.answer = answer
    with pytest.raises(ApiUnreachableError):
        await kube.get_job("ml", "fashion")


async def test_a_cut_connection_is_no_answer(server: Server, kube: Kube) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert isinstance(request.transport, asyncio.Transport)
        request.transport.abort()
        return web.Response()

    server.answer = answer
    with pytest.raises(ApiUnreachableError):
        await kube.create_pod("ml", {"metadata": {"name": "x"}})


async def test_writes_are_counted_whatever_came_of_them(server: Server, kube: Kube) -> None:
    server.reply({"kind": "Status", "code": 409, "reason": "AlreadyExists", "message": ""}, 409)
    with pytest.raises(ApiError):
        await kube.create_secret("ml", {"metadata": {"name": "x"}})
    server.reply({})
    await kube.create_event("ml", {"metadata": {"name": "x"}})
    await kube.get_job("ml", "fashion")
    assert server.metrics.writes() == 2


async def test_in_a_cluster_the_token_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    ca.write_text("a certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(ca))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    configuration = await load_configuration()
    assert configuration.host == "https://10.0.0.1:443"
    before = await configuration.auth_settings()
    token.write_text("second")
    loader = _loader(configuration)
    loader.token_expires_at = loader.token_expires_at.replace(year=2020)  # a minute later
    after = await configuration.auth_settings()
    assert [settings["BearerToken"]["value"] for settings in (before, after)] == ["bearer first", "bearer second"]


def _loader(configuration: Configuration) -> Any:
    hook: Any = configuration.refresh_api_key_hook
    return next(cell.cell_contents for cell in hook.__closure__ if hasattr(cell.cell_contents, "token_expires_at"))
