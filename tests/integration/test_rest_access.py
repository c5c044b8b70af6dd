"""Who sees and does what by the REST API: service accounts with tokens and Roles of a real API server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest

from support.accounts import Right, make_account
from support.api_proxy import ApiProxy
from support.control_plane import ADMIN, Namespace
from support.info_server import chain
from support.operator_process import OperatorProcess
from support.play import until
from support.ports import free_port

Start = Callable[..., OperatorProcess]
REMEMBERED_SECONDS = 10.0


@dataclass(frozen=True)
class World:
    """The API, and three namespaces: the operator's own and two whose pods information is about."""

    admin: httpx.Client
    api: httpx.Client
    system: str
    shop: str
    bank: str
    granted: list[tuple[Right, str]] = field(default_factory=list)

    def account(self, name: str, *rights: Right) -> str:
        """A token; rights outside namespaces are taken away at the end."""
        self.granted.extend((right, name) for right in rights if right.namespace is None)
        return make_account(self.admin, self.shop, name, rights)

    def get(self, token: str, path: str, **parameters: Any) -> httpx.Response:
        return self.api.get(path, params=parameters, headers=bearer(token))

    def latest(self, token: str) -> dict[str, float]:
        """The values of `load` that somebody sees, by entity."""
        answer = self.get(token, "/v1/latest", metric="load").raise_for_status()
        return {sample["entity"]: sample["value"] for sample in answer.json()["samples"]}

    def push(self, token: str, *entities: str, value: float = 1.0) -> httpx.Response:
        samples = [{"entity": entity, "metric": "load", "value": value} for entity in entities]
        return self.api.post("/v1/samples", json={"samples": samples}, headers=bearer(token))

    @property
    def entities(self) -> tuple[str, str, str]:
        return f"pod/{self.bank}/a", f"pod/{self.shop}/a", "node/n1"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def world(
    optional_rights: None,
    start_operator: Start,
    namespace: Namespace,
    make_namespace: Callable[..., Namespace],
    admin: httpx.Client,
) -> Iterator[World]:
    """The API answers, takes pushed samples of `load`, and has one of each of three entities."""
    port = free_port()
    start_operator(rules_namespace=namespace.name, rest_port=port)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as api:
        until("the REST API answers", lambda: _answers(api))
        found = World(admin, api, namespace.name, make_namespace().name, make_namespace().name)
        spec = {"source": {"push": {"entities": ["**"]}}, "metrics": [{"name": "load", "ttl": 3600}]}
        made = api.post("/v1/rules/collect/pushed", json={"spec": spec}, headers=bearer(ADMIN))
        assert made.status_code == 201, made.text
        until("pushes are taken", lambda: found.push(ADMIN, *found.entities).json()["stored"] == 3)
        yield found
    for right, name in found.granted:
        right.withdraw(admin, name)


def _answers(api: httpx.Client) -> bool:
    try:
        return api.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def read(namespace: str | None = None) -> Right:
    return Right(("get",), "information", namespace)


NODES = Right(("get",), "clusterinformation")


CASES: Final[Mapping[str, tuple[list[str], list[str]]]] = {
    "a token without rights sees nothing": ([], []),
    "a Role in one namespace": (["shop"], ["shop"]),
    "a Role in each of two namespaces": (["shop", "bank"], ["bank", "shop"]),
    "nodes only": (["nodes"], ["node"]),
    "a ClusterRole for all namespaces, but no nodes": (["everywhere"], ["bank", "shop"]),
    "a namespace and the nodes": (["shop", "nodes"], ["node", "shop"]),
    "rights to write only": (["write shop", "write nodes"], []),
}
"""Rights of an account, and what it sees. One operator serves them all: an operator takes long to start."""


def test_every_list_has_what_the_caller_may_see(world: World) -> None:
    by_name = {
        "shop": read(world.shop), "bank": read(world.bank), "everywhere": read(), "nodes": NODES,
        "write shop": Right(("create",), "information", world.shop),
        "write nodes": Right(("create",), "clusterinformation"),
    }  # fmt: skip
    bank, shop, node = world.entities
    entities = {"bank": bank, "shop": shop, "node": node}
    for index, (case, (rights, seen)) in enumerate(CASES.items()):
        token = world.account(f"reader-{index}", *(by_name[right] for right in rights))
        want = sorted(entities[name] for name in seen)
        assert what_is_seen(world, token) == dict.fromkeys(("latest", "entities", "samples", "pages"), want), case
        singles = {one: world.get(token, f"/v1/entities/{one}").status_code for one in world.entities}
        assert singles == {one: 200 if one in want else 403 for one in world.entities}, case
        # Whether there is such a thing is told to nobody who may not see it.
        none = world.get(token, f"/v1/entities/pod/{world.bank}/none").status_code
        assert none == (404 if bank in want else 403), case


def what_is_seen(world: World, token: str) -> dict[str, list[str]]:
    """Entities by the list that has them, and those of the list of newest values in pages of one."""
    found = world.get(token, "/v1/entities").json()["entities"]
    spans = world.get(token, "/v1/samples", metric="load").json()["samples"]
    pages: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = world.get(token, "/v1/latest", metric="load", limit=1, **({"cursor": cursor} if cursor else {})).json()
        pages += [sample["entity"] for sample in page["samples"]]
        cursor = page["next"]
    return {
        "latest": sorted(world.latest(token)),
        "entities": sorted(one["entity"] for one in found if one["metrics"] == ["load"]),
        "samples": sorted({sample["entity"] for sample in spans}),
        "pages": sorted(pages),
    }


def test_rights_to_read_and_to_write_are_apart(world: World) -> None:
    reader = world.account("reader", read(world.shop))
    writer = world.account("writer", Right(("create",), "information", world.shop))
    bank, shop, node = world.entities

    refused = world.push(reader, shop)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert f"may not create information.heterotrain.io in namespace {world.shop}" in refused.json()["message"]
    assert world.push(writer, shop, value=5.0).json() == {"stored": 1, "refused": []}
    assert (world.latest(writer), world.latest(reader)) == ({}, {shop: 5.0})
    # One sample that the caller may not send, and none of the push is taken.
    for other in (bank, node):
        assert world.push(writer, shop, other, value=6.0).status_code == 403
    assert world.latest(ADMIN) == {bank: 1.0, shop: 5.0, node: 1.0}


def test_rights_about_rules_are_those_of_kubectl(world: World) -> None:
    system = world.system
    viewer = world.account("viewer", Right(("get",), "processingrules", system))
    author = world.account("author", Right(("get", "create", "update"), "processingrules", system))
    elsewhere = world.account("elsewhere", Right(("get", "create", "update", "delete"), "processingrules", world.shop))
    path, spec = "/v1/rules/process/twice", chain("load", "twice", {"operator": "expr", "expression": "2 * x"})

    def statuses(token: str) -> dict[str, int]:
        headers = bearer(token)
        generation = world.get(ADMIN, path).json().get("generation", 1)
        return {
            "list": world.get(token, "/v1/rules/process").status_code,
            "post": world.api.post(path, json={"spec": spec}, headers=headers).status_code,
            "put": world.api.put(path, json={"spec": spec, "generation": generation}, headers=headers).status_code,
            "dryrun": world.api.post(
                "/v1/rules/process:dryrun", json={"rules": [spec], "samples": []}, headers=headers
            ).status_code,
            "collect": world.get(token, "/v1/rules/collect").status_code,
            "delete": world.api.delete(path, params={"generation": generation}, headers=headers).status_code,
        }

    none = dict.fromkeys(("list", "post", "put", "dryrun", "collect", "delete"), 403)
    assert statuses(elsewhere) == none, "rights in another namespace count nothing"
    assert statuses(viewer) == none | {"list": 200, "dryrun": 200}
    assert statuses(author) == none | {"list": 200, "post": 201, "put": 200, "dryrun": 200}
    assert statuses(ADMIN) == {"list": 200, "post": 409, "put": 200, "dryrun": 200, "collect": 200, "delete": 204}


def test_answers_are_remembered_for_a_while_and_no_longer(world: World, proxy: ApiProxy) -> None:
    """Thirty requests ask the API server once; a right that is taken away is gone once its answer is old."""
    right = read(world.shop)
    token = world.account("reader", right)
    _, shop, _ = world.entities

    def asked() -> dict[str, int]:
        paths = [seen.path.rpartition("/")[2] for seen in list(proxy.seen)]
        return {name: paths.count(name) for name in ("tokenreviews", "subjectaccessreviews")}

    before, began = asked(), time.monotonic()
    for _ in range(30):
        assert world.latest(token) == {shop: 1.0}
    if time.monotonic() - began < REMEMBERED_SECONDS:
        after = asked()
        assert after["tokenreviews"] - before["tokenreviews"] == 1
        # Everything outside namespaces, everything within, and the three namespaces that there are entities in.
        assert after["subjectaccessreviews"] - before["subjectaccessreviews"] <= 5

    right.withdraw(world.admin, "reader")
    until("the right is gone", lambda: world.latest(token) == {}, 2 * REMEMBERED_SECONDS)
    right.grant(world.admin, "reader", world.shop)
    until("it is back", lambda: world.latest(token) == {shop: 1.0}, 2 * REMEMBERED_SECONDS)
    # The API server itself remembers a token for ten seconds.
    world.admin.delete(f"/api/v1/namespaces/{world.shop}/serviceaccounts/reader").raise_for_status()
    refused = until("the token is unknown", lambda: _refused(world, token), 4 * REMEMBERED_SECONDS)
    assert refused.json()["code"] == "unauthenticated"
    assert refused.headers["www-authenticate"] == "Bearer"


def _refused(world: World, token: str) -> httpx.Response | None:
    answer = world.get(token, "/v1/latest")
    return answer if answer.status_code == 401 else None


def test_a_stream_narrows_with_its_readers_rights(world: World) -> None:
    """Values of a namespace stop within twice ten seconds of the right to it; those of another one go on."""
    lost = read(world.bank)
    token = world.account("watcher", read(world.shop), lost)
    bank, shop, _ = world.entities
    value = 1.0
    with world.api.stream(
        "GET", "/v1/watch", params={"what": "samples", "metric": "load"}, headers=bearer(token)
    ) as stream:
        lines = stream.iter_lines()

        def told() -> set[str]:
            """Of which entities the next value comes: both are pushed, the shop's last."""
            nonlocal value
            value += 1
            assert world.push(ADMIN, bank, value=value).json()["stored"] == 1
            assert world.push(ADMIN, shop, value=value).json()["stored"] == 1
            entities: set[str] = set()
            for line in lines:
                document = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
                entities |= {document["entity"]} if document.get("value") == value else set()
                if shop in entities:
                    break
            return entities

        assert told() == {bank, shop}
        lost.withdraw(world.admin, "watcher")
        until("the bank's values have stopped", lambda: told() == {shop}, 3 * REMEMBERED_SECONDS)
        assert told() == {shop}
