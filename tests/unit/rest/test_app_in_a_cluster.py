"""The app with access by reviews, without sockets: who sees, sends and changes what, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest

from heterotrain_core.info.values import Entity, Event, Sample
from heterotrain_operator.info.rules import load_rules
from heterotrain_operator.rest.access import Caller
from heterotrain_operator.rest.app import RestApp, create_app
from heterotrain_operator.rest.cluster_access import ClusterAccess
from heterotrain_operator.rest.context import Context
from heterotrain_operator.rest.desk import DeskUnavailableError, LocalDesk
from heterotrain_operator.rest.errors import Code, RestError
from heterotrain_operator.rest.models import WatchParameters, What
from heterotrain_operator.rest.watch import Watch
from support.fake_reviews import FakeReviews
from support.info_server import chain, sent_events
from support.info_world import World, make_collection, virtual_seconds
from support.virtual_time import run_virtual

Right = tuple[str, str, str, str | None]

ENTITIES = ("job/bank/j", "node/n", "pod/bank/p", "pod/shop/p")
HOT = """
apiVersion: heterotrain.io/v1alpha1
kind: ProcessingRule
metadata: {name: hot}
spec:
  inputs: {x: {metric: x}}
  chain: [{operator: threshold, hi: 1, lo: 0}]
  output: {metric: state}
  emit: event
"""
READ_SHOP = ("ann", "get", "information", "shop")
READ_ALL = ("ann", "get", "information", None)
READ_OUTSIDE = ("ann", "get", "clusterinformation", None)


class Cluster:
    """A service with a value of each of `ENTITIES`, and ann, who has some rights."""

    def __init__(self, *rights: Right) -> None:
        self.world = World()
        self.reviews = FakeReviews({"ann-token": "ann"}, set(rights))
        self.access = ClusterAccess(self.reviews, "system", lambda: asyncio.get_running_loop().time())
        push = make_collection("push", source={"push": {"entities": ["**"]}}, metrics=[{"name": "x", "ttl": 60}])
        self.desk = LocalDesk(self.world.service, [push, *load_rules(HOT)])
        self.app: RestApp = create_app(self.world.service, self.access, self.desk, now=virtual_seconds)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://api",
            headers={"Authorization": "Bearer ann-token"},
        )
        self.put(1.0)

    def put(self, value: float) -> None:
        now = virtual_seconds()
        self.world.service.push([Sample(Entity(entity), "x", now, value) for entity in ENTITIES])

    def watch(self, *what: What, interval: float = 1.0, metric: Sequence[str] = ()) -> Watch:
        here = Context(self.app.state, Caller("ann"), "ann-token")
        query = WatchParameters(what=list(what), interval=interval, metric=list(metric))
        return Watch(here, query, {}, lambda entity: entity.namespace == "shop", 0)


def play(story: Callable[[Cluster], Awaitable[None]], *rights: Right) -> None:
    async def main() -> None:
        cluster = Cluster(*rights)
        async with cluster.client:
            await story(cluster)
        await cluster.world.connections.close()

    run_virtual(main())


async def entities_of(cluster: Cluster, path: str, key: str) -> list[str]:
    answer = await cluster.client.get(path)
    assert answer.status_code == 200, answer.text
    return [one["entity"] for one in answer.json()[key]]


@pytest.mark.parametrize(
    ("rights", "want"),
    [
        pytest.param((), [], id="without rights nothing"),
        pytest.param((READ_SHOP,), ["pod/shop/p"], id="one namespace"),
        pytest.param((READ_OUTSIDE,), ["node/n"], id="nodes and no namespace"),
        pytest.param((READ_ALL,), ["job/bank/j", "pod/bank/p", "pod/shop/p"], id="all namespaces and no node"),
        pytest.param((READ_ALL, READ_OUTSIDE), list(ENTITIES), id="everything"),
    ],
)
def test_lists_have_what_the_caller_may_see(rights: tuple[Right, ...], want: list[str]) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.put(0.0)
        await asyncio.sleep(1)
        cluster.put(2.0)
        assert await entities_of(cluster, "/v1/entities", "entities") == want
        assert await entities_of(cluster, "/v1/latest", "samples") == want
        assert sorted(set(await entities_of(cluster, "/v1/samples", "samples"))) == want
        assert sorted(await entities_of(cluster, "/v1/events", "events")) == want
        for entity in ENTITIES:
            answer = await cluster.client.get(f"/v1/entities/{entity}")
            assert answer.status_code == (200 if entity in want else 403)

    play(story, *rights)


def test_a_forged_cursor_opens_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        whole = await cluster.client.get("/v1/samples", params={"limit": 1})
        cluster.reviews.allowed = {READ_SHOP}
        await asyncio.sleep(11)
        rest = await cluster.client.get("/v1/samples", params={"cursor": whole.json()["next"]})
        assert {one["entity"] for one in rest.json()["samples"]} == {"pod/shop/p"}

    play(story, READ_ALL, READ_OUTSIDE)


def test_sending_needs_a_right_of_its_own_in_each_namespace() -> None:
    async def story(cluster: Cluster) -> None:
        async def send(*entities: str) -> httpx.Response:
            await asyncio.sleep(1)
            samples = [{"entity": entity, "metric": "x", "value": 5} for entity in entities]
            return await cluster.client.post("/v1/samples", json={"samples": samples})

        assert (await send("pod/shop/p")).json()["stored"] == 1
        refused = await send("pod/shop/p", "pod/bank/p")
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert "ann may not create information.heterotrain.io in namespace bank" in refused.json()["message"]
        assert (await send("node/n")).status_code == 403
        assert [r.value for r in cluster.world.store.latest(virtual_seconds(), "pod/bank/p", "x")] == [1.0]

    play(story, READ_ALL, ("ann", "create", "information", "shop"))


def test_rules_are_read_and_written_by_the_rights_that_kubectl_needs() -> None:
    spec = chain("x", "y", {"operator": "mean"})

    async def story(cluster: Cluster) -> None:
        client = cluster.client
        assert (await client.get("/v1/rules/process/hot")).status_code == 200
        assert (await client.get("/v1/rules/collect")).status_code == 403
        assert (await client.post("/v1/rules/process/new", json=spec)).status_code == 403
        assert (await client.put("/v1/rules/process/hot", json=spec)).status_code == 403
        assert (await client.delete("/v1/rules/process/hot")).status_code == 403
        cluster.reviews.allowed |= {
            ("ann", verb, "processingrules", "system") for verb in ("create", "update", "delete")
        }
        await asyncio.sleep(11)
        assert (await client.post("/v1/rules/process/new", json=spec)).status_code == 201
        assert (await client.delete("/v1/rules/process/new")).status_code == 204
        assert (await client.post("/v1/rules/collect/new", json=spec)).status_code == 403

    play(story, ("ann", "get", "processingrules", "system"))


def test_an_api_server_that_is_away_is_said_and_nothing_is_shown() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.reviews.down = True
        answer = await cluster.client.get("/v1/latest")
        assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "5")
        cluster.reviews.down = False
        assert (await cluster.client.get("/v1/latest")).status_code == 200
        cluster.reviews.tokens.clear()
        await asyncio.sleep(11)
        assert (await cluster.client.get("/v1/latest")).status_code == 401

    play(story, READ_ALL)


def test_a_desk_that_is_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> None:
        raise DeskUnavailableError("the API server does not answer")

    async def story(cluster: Cluster) -> None:
        for method in ("create", "replace", "delete"):
            monkeypatch.setattr(cluster.desk, method, away)
        client, spec = cluster.client, {"spec": chain("x", "y", {"operator": "mean"})}
        answers = [
            await client.post("/v1/rules/process/new", json=spec),
            await client.put("/v1/rules/process/hot", json={"generation": 1, **spec}),
            await client.delete("/v1/rules/process/hot"),
        ]
        assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(503, "unavailable")] * 3

    play(story, *(("ann", verb, "processingrules", "system") for verb in ("create", "update", "delete")))


def test_a_defect_is_told_in_the_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster) -> None:
        monkeypatch.setattr(cluster.world.store, "metrics", lambda: 1 / 0)
        answer = await cluster.client.get("/v1/metrics")
        want = {"code": "internal", "message": "this server has a defect; its log says more", "fields": []}
        assert (answer.status_code, answer.json()) == (500, want)

    play(story)


async def told(watch: Watch, seconds: float) -> list[tuple[float, str, Any]]:
    """What a stream tells within so many seconds: when, what, the document; comments are words without one."""
    clock = asyncio.get_running_loop().time
    found: list[tuple[float, str, Any]] = []
    try:
        async with asyncio.timeout(seconds):
            async for chunk in watch.frames():
                lines = chunk.decode().splitlines()
                found += [(clock(), kind, document) for kind, _, document in sent_events(iter(lines))]
                found += [(clock(), line, None) for line in lines if line.startswith(":")]
    except TimeoutError:
        pass
    return found


def test_a_stream_has_what_the_caller_may_see() -> None:
    async def story(cluster: Cluster) -> None:
        asyncio.get_running_loop().call_later(5, cluster.put, 2.0)
        sent = await told(cluster.watch(What.EVENTS, What.SAMPLES), 10)
        assert [(kind, document.get("entity"), document.get("value")) for _, kind, document in sent] == [
            ("sample", "pod/shop/p", 1.0),
            ("synced", None, None),
            ("event", "pod/shop/p", "HOT"),
            ("sample", "pod/shop/p", 2.0),
        ]

    play(story, READ_SHOP)


def test_a_value_is_told_absent_when_the_newest_one_is_too_old() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        for second in range(0, 60, 10):
            loop.call_later(second + 0.5, cluster.put, float(second))
        sent = await told(cluster.watch(What.SAMPLES), 130)
        values = [(round(time), document["value"]) for time, kind, document in sent if kind == "sample"]
        assert values[-2:] == [(51, 50.0), (111, None)]
        assert len(values) == 8
        quiet = [time for time, kind, _ in sent if kind == ": still here"]
        assert len(quiet) == 4

    play(story, READ_SHOP)


@pytest.mark.parametrize("interval", [1.0, 10.0, 60.0])
@pytest.mark.parametrize("what", [What.EVENTS, What.SAMPLES])
def test_a_quiet_stream_says_every_15_seconds_that_it_lives(what: What, interval: float) -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        for second in range(0, 100, 10):
            loop.call_later(second + 0.5, cluster.put, 1.0)  # a value that stays is no news of it
        sent = await told(cluster.watch(what, interval=interval, metric=["nothing"]), 100)
        assert [round(time) for time, kind, _ in sent if kind == ": still here"] == [15, 30, 45, 60, 75, 90]

    play(story, READ_SHOP)


def test_a_right_that_is_taken_away_narrows_a_stream_that_runs() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(5, cluster.reviews.allowed.clear)
        loop.call_later(25, cluster.put, 2.0)
        sent = await told(cluster.watch(What.EVENTS, What.SAMPLES), 50)
        assert [document["value"] for _, kind, document in sent if kind in ("sample", "event")] == [1.0]

    play(story, READ_SHOP)


def test_a_stream_ends_with_its_token() -> None:
    async def story(cluster: Cluster) -> None:
        asyncio.get_running_loop().call_later(5, cluster.reviews.tokens.clear)
        with pytest.raises(RestError) as ended:
            await told(cluster.watch(What.EVENTS), 50)
        assert (ended.value.code, asyncio.get_running_loop().time() < 21) == (Code.UNAUTHENTICATED, True)

    play(story, READ_SHOP)


def test_a_stream_that_lost_events_says_so() -> None:
    async def story(cluster: Cluster) -> None:
        for index in range(cluster.world.events.capacity + 1):
            cluster.world.events.append(Event("r", Entity("pod/shop/p"), "x", float(index), 1.0, None, ""))
        with pytest.raises(RestError) as ended:
            await told(cluster.watch(What.EVENTS), 50)
        assert ended.value.code is Code.CURSOR_GONE

    play(story, READ_SHOP)


def test_a_stream_ends_with_the_server() -> None:
    async def story(cluster: Cluster) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(5, cluster.app.state.closing.set)
        assert await told(cluster.watch(What.EVENTS), 50) == []
        assert loop.time() == pytest.approx(5)

    play(story, READ_SHOP)


def test_many_values_are_told_in_chunks_between_which_others_are_served() -> None:
    async def story(cluster: Cluster) -> None:
        now, served = virtual_seconds(), 0
        many = [Sample(Entity(f"pod/shop/p{index}"), "x", now, float(index)) for index in range(250)]
        cluster.world.engine.ingest(many, now)

        async def others() -> None:
            nonlocal served
            while True:
                served += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(others())
        chunks: list[tuple[int, int]] = []
        async for chunk in cluster.watch(What.SAMPLES).frames():
            chunks.append((chunk.count(b"event: sample"), served))
            if b"event: synced" in chunk:
                break
        other.cancel()
        assert [samples for samples, _ in chunks] == [0, 100, 100, 51, 0]
        turns = [turn for _, turn in chunks]
        assert turns[1] < turns[2] < turns[3] < turns[4]

    play(story, READ_SHOP)
