"""Objects and kubelets read through an API server on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from heterotrain_operator.info.api_reader import KubeReader
from heterotrain_operator.info.sources.base import Reason, Row, SourceError
from heterotrain_operator.info.sources.kubernetes import KubeletReader, NoApi, ObjectReader
from heterotrain_operator.info.turns import Turns
from support.info_world import make_collection

NODES = [
    {"metadata": {"name": name, "labels": {"pool": "old"}}, "status": {"allocatable": {"cpu": cpu}}}
    for name, cpu in (("a", "4"), ("b", "1500m"), ("c", "8"))
]
CADVISOR = 'container_cpu_usage_seconds_total{id="/",pod=""} 12.5 1700000000000\n'


async def nodes(request: web.Request) -> web.Response:
    """Two pages."""
    assert request.headers["authorization"] == "Bearer secret"
    rest = "continue" in request.query or request.query["limit"] != "500"
    items, token = (NODES[2:], "") if rest else (NODES[:2], "more")
    if request.query["limit"] != "500":
        items = NODES
    return web.json_response({"items": items, "metadata": {"continue": token}})


async def cadvisor(request: web.Request) -> web.Response:
    return web.Response(text=CADVISOR) if request.match_info["node"] != "b" else web.Response(status=502)


async def pods(_: web.Request) -> web.Response:
    return web.json_response({"kind": "Status"}, status=403)


@pytest.fixture
async def reader() -> AsyncIterator[KubeReader]:
    app = web.Application()
    app.router.add_get("/api/v1/nodes", nodes)
    app.router.add_get("/api/v1/nodes/{node}/proxy/metrics/cadvisor", cadvisor)
    app.router.add_get("/api/v1/namespaces/ns/pods", pods)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    configuration.api_key = {"BearerToken": "Bearer secret"}
    client = ApiClient(configuration)
    yield KubeReader(client)
    await client.close()
    await runner.cleanup()


async def test_objects_of_all_pages_become_rows_with_labels(reader: KubeReader) -> None:
    spec = make_collection(
        source={"kubernetes": {"objects": "nodes", "labels": {"pool": "metadata.labels.pool"}}},
        entity=[{"name": "node/{name}"}],
        metrics=[{"name": "cores", "path": "status.allocatable.cpu"}],
    ).spec
    reply = await ObjectReader(reader, ("ns",)).read(spec, 0)
    assert reply.rows == {
        "cores": [Row({"name": name, "pool": "old"}, cpu) for name, cpu in (("a", 4.0), ("b", 1.5), ("c", 8.0))]
    }


async def test_a_kubelet_that_does_not_answer_stops_no_other(reader: KubeReader) -> None:
    spec = make_collection(
        source={"kubelet": {}},
        entity=[{"name": "node/{node}"}],
        metrics=[{"name": "cpu", "from": "container_cpu_usage_seconds_total", "match": {"id": "/"}}],
    ).spec
    reply = await KubeletReader(reader, Turns()).read(spec, 0)
    assert [(row.labels["node"], row.value, row.timestamp) for row in reply.rows["cpu"]] == [
        ("a", 12.5, 1.7e9),
        ("c", 12.5, 1.7e9),
    ]
    assert {node: error.reason for node, error in reply.errors.items()} == {"node b": Reason.HTTP_STATUS}


async def test_missing_rights_and_a_missing_cluster_are_named(reader: KubeReader) -> None:
    source = {"kubernetes": {"objects": "pods"}}
    spec = make_collection(source=source, entity=[{"name": "pod/{namespace}/{name}"}]).spec
    for api, reason in ((reader, Reason.DENIED), (NoApi(), Reason.FORBIDDEN)):
        with pytest.raises(SourceError) as raised:
            await ObjectReader(api, ("ns",)).read(spec, 0)
        assert raised.value.reason is reason
