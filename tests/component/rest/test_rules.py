"""Rules made, changed and taken away while a server runs: generations, conflicts, and what they do at once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from support.info_server import InfoServer, chain, processing, push_rule

PUSH = {"source": {"push": {"entities": ["crud/*"]}}, "metrics": [{"name": "crud"}]}


def twice(factor: float = 2.0, metric: str = "x", output: str = "twice") -> dict[str, Any]:
    return chain(metric, output, {"operator": "expr", "expression": f"{factor} * x"})


def test_a_rule_lives_and_its_past_outlives_it(server: InfoServer) -> None:
    path, client = "/v1/rules/process/life", server.client
    made = client.post(path, json={"spec": twice()})
    assert (made.status_code, made.headers["location"], made.json()["generation"]) == (201, path, 1)
    server.push([{"entity": "life/a", "metric": "x", "value": 3}])
    assert server.value("life/a", "twice") == 6
    read = server.get(path)
    assert (read["status"]["ready"], read["status"]["samples"], read["status"]["series"]) == ("True", 1, 1)
    assert client.post(path, json={"spec": twice()}).json()["code"] == "exists"

    changed = client.put(path, json={**read, "spec": twice(10)})
    assert (changed.status_code, changed.json()["generation"]) == (200, 2)
    assert client.put(path, json={**read, "spec": twice(11)}).status_code == 409
    assert client.put(path, params={"generation": 2}, json=twice(10)).json()["generation"] == 2
    server.push([{"entity": "life/a", "metric": "x", "value": 4}])
    assert server.value("life/a", "twice") == 40

    assert client.delete(path, params={"generation": 1}).json()["code"] == "generation_conflict"
    gone = client.delete(path, params={"generation": 2})
    assert (gone.status_code, gone.content) == (204, b"")
    assert [client.get(path).status_code, client.delete(path).status_code] == [404, 404]
    assert client.put(path, json={"generation": 2, "spec": twice()}).status_code == 404
    server.push([{"entity": "life/a", "metric": "x", "value": 5}])
    values = [one["value"] for one in server.get("/v1/samples", entity="life/a", metric="twice")["samples"]]
    assert values == [6, 40]


def test_a_push_rule_is_in_force_at_once_and_gone_at_once(server: InfoServer) -> None:
    sample = {"entity": "crud/a", "metric": "crud", "value": 1}
    assert server.push([sample])["stored"] == 0
    assert server.client.post("/v1/rules/collect/crud", json=PUSH).status_code == 201
    assert server.push([sample])["stored"] == 1
    assert server.client.delete("/v1/rules/collect/crud").status_code == 204
    assert server.push([sample])["stored"] == 0


def test_what_get_gives_may_be_put_back(server: InfoServer) -> None:
    for kind, name in (("collect", "pushed"), ("process", "hot")):
        read = server.get(f"/v1/rules/{kind}/{name}")
        again = server.client.put(f"/v1/rules/{kind}/{name}", json=read)
        assert (again.status_code, again.json()["generation"], again.json()["spec"]) == (200, 1, read["spec"])


def test_a_manifest_is_taken_as_kubectl_takes_it(server: InfoServer) -> None:
    manifest = processing("manifest", **twice(output="manifested"))
    made = server.client.post("/v1/rules/process/manifest", json=manifest)
    assert (made.status_code, made.json()["name"]) == (201, "manifest")
    changed = server.client.put(
        "/v1/rules/process/manifest",
        json={
            **processing("manifest", **twice(3, output="manifested")),
            "metadata": {"name": "manifest", "generation": 1},
        },
    )
    assert (changed.status_code, changed.json()["generation"]) == (200, 2)


def test_a_change_without_a_generation_is_a_conflict(server: InfoServer) -> None:
    answer = server.client.put("/v1/rules/process/hot", json={"spec": twice()})
    assert (answer.status_code, answer.json()["code"]) == (409, "generation_conflict")
    assert "the present one is 1" in answer.json()["message"]


@pytest.mark.parametrize(
    ("kind", "name", "body", "want"),
    [
        ("process", "new", {"spec": {**twice(), "chian": []}}, ("spec.chian", "did you mean chain?")),
        ("process", "new", twice() | {"chain": [{"operator": "ewma"}]}, ("spec.chain[0].alpha", "must be given with")),
        ("process", "new", twice() | {"chain": [{"operator": "expr", "expression": "2 * y"}]},
         ("spec.chain[0].expression", "unknown name 'y'")),
        ("process", "new", twice(output="x"), ("spec", "ring")),
        ("process", "new", twice(output="load_state"), ("spec", "written by rule hot already")),
        ("process", "No_Name", twice(), ("metadata.name", "small letters")),
        ("process", "new", {"kind": "CollectionRule", "spec": twice()}, ("kind", "ProcessingRule")),
        ("process", "new", {"name": "other", "spec": twice()}, ("name", "must be new")),
        ("process", "new", {"metadata": {"name": "other"}, "spec": twice()}, ("metadata.name", "must be new")),
        ("process", "new", {"generation": 1, "spec": twice()}, ("generation", "left out")),
        ("process", "new", {"generation": "1", "spec": twice()}, ("generation", "integer")),
        ("process", "new", {"specs": 1, "spec": twice()}, ("specs", "does not exist")),
        ("collect", "new", {"spec": PUSH | {"source": {}}}, ("spec.source", "exactly one of")),
        ("collect", "new", PUSH | {"entity": [{"name": "node/{a|upper}"}]}, ("spec.entity[0].name", "unknown filter")),
        ("collect", "new", PUSH | {"source": {"command": {"argv": ["id"]}}, "entity": [{"name": "node/a"}]},
         ("spec.source.command", "--allow-commands")),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_obeyed_is_refused_by_field(
    server: InfoServer, kind: str, name: str, body: dict[str, Any], want: tuple[str, str]
) -> None:
    answer = server.client.post(f"/v1/rules/{kind}/{name}", json=body)
    assert answer.status_code == 422, answer.text
    fault = answer.json()["fields"][0]
    assert fault["field"] == want[0]
    assert want[1] in fault["message"]
    assert server.client.get(f"/v1/rules/{kind}/{name}").status_code == 404


def test_a_refused_change_leaves_the_rule_as_it_was(server: InfoServer) -> None:
    before = server.get("/v1/rules/process/hot")
    answer = server.client.put("/v1/rules/process/hot", json={"generation": 1, "spec": twice(output="x")})
    assert answer.status_code == 422
    after = server.get("/v1/rules/process/hot")
    assert (after["spec"], after["generation"]) == (before["spec"], 1)


def test_lists_of_rules_have_pages(server: InfoServer) -> None:
    for index in range(3):
        server.client.post(f"/v1/rules/process/list-{index}", json=twice(output=f"list_{index}"))
    first = server.get("/v1/rules/process", limit=2)
    rest = server.get("/v1/rules/process", cursor=first["next"])
    names = [rule["name"] for page in (first, rest) for rule in page["rules"]]
    assert (len(first["rules"]), rest["next"]) == (2, None)
    assert names == sorted(names)
    assert {"hot", "list-0", "list-1", "list-2"} <= set(names)
    assert [rule["kind"] for rule in server.get("/v1/rules/collect")["rules"]] == ["CollectionRule"]


def test_rules_that_are_trouble_are_contained_and_named(server: InfoServer) -> None:
    wide = push_rule("wide", "wide", cardinality=5)["spec"]
    wide["source"]["push"]["entities"] = ["wide/*"]
    assert server.client.post("/v1/rules/collect/wide", json=wide).status_code == 201
    fails = chain("wide", "fails", {"operator": "threshold", "hi": 1, "lo": 0}) | {
        "output": {"metric": "fails", "type": "gauge"}
    }
    assert server.client.post("/v1/rules/process/fails", json=fails).status_code == 201
    works = twice(metric="wide", output="works")
    assert server.client.post("/v1/rules/process/works", json=works).status_code == 201
    now = time.time()
    pushed = server.push([{"entity": f"wide/{i}", "metric": "wide", "time": now, "value": 1} for i in range(50)])
    assert (pushed["stored"], len(pushed["refused"])) == (5, 45)
    assert "which is its cardinality" in pushed["refused"][0]["message"]
    status = server.get("/v1/rules/process/fails")["status"]
    assert (status["ready"], "the chain gives 'OK'" in status["error"]) == ("False", True)
    assert server.value("wide/4", "works") == 2
