"""The operator's REST API against a real API server: who may what, and rules that are the same by both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from support.api_proxy import ApiProxy, Fault
from support.control_plane import ADMIN, OPERATOR, Namespace
from support.exporter import Exporter, exporter
from support.operator_process import OperatorProcess
from support.play import condition, until
from support.ports import free_port

Start = Callable[..., OperatorProcess]


@pytest.fixture
def source() -> Iterator[Exporter]:
    with exporter() as found:
        yield found


@pytest.fixture
def api(optional_rights: None, start_operator: Start, namespace: Namespace) -> Iterator[httpx.Client]:
    """The REST API with the admin's token, once it answers."""
    port = free_port()
    start_operator(rules_namespace=namespace.name, rest_port=port)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=_bearer(ADMIN), timeout=10) as client:
        until("the REST API answers", lambda: _answers(client))
        yield client


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def spec(url: str, **fields: Any) -> dict[str, Any]:
    given = {"source": {"endpoint": {"url": url}}, "interval": 0.5, "metrics": [{"name": "load"}]}
    return {**given, "entity": [{"name": "node/a"}], **fields}


def twice(factor: int = 2) -> dict[str, Any]:
    chain = [{"operator": "expr", "expression": f"{factor} * x"}]
    return {"inputs": {"x": {"metric": "load"}}, "chain": chain, "output": {"metric": "twice"}}


def put(api: httpx.Client, path: str, spec: dict[str, Any], generation: int) -> httpx.Response:
    return api.put(f"/v1/rules/{path}", json={"spec": spec, "generation": generation})


def test_a_rule_by_rest_is_a_resource_and_one_by_kubectl_is_seen_by_rest(
    api: httpx.Client, namespace: Namespace, source: Exporter
) -> None:
    made = api.post("/v1/rules/collect/a", json={"spec": spec(source.url)})
    assert made.status_code == 201, made.text
    resource = namespace.get("collectionrules", "a")
    assert resource is not None
    assert (made.json()["generation"], made.json()["spec"]) == (1, resource["spec"])
    until("it is ready", lambda: condition(namespace.get("collectionrules", "a"), "Ready").get("status") == "True")

    by_kubectl = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "ProcessingRule",
        "metadata": {"name": "p"},
        "spec": twice(),
    }
    namespace.create("processingrules", by_kubectl)
    shown = until("REST shows it", lambda: _found(api.get("/v1/rules/process/p")))
    stored = namespace.get("processingrules", "p")
    assert stored is not None
    assert (shown["generation"], shown["spec"]) == (1, stored["spec"])
    assert until("its value is there", lambda: _values(api, "twice")) == [2.0]


def _found(answer: httpx.Response) -> dict[str, Any] | None:
    return answer.json() if answer.status_code == 200 else None


def _values(api: httpx.Client, metric: str, token: str = ADMIN) -> list[float]:
    """Of node/a, as somebody sees them."""
    parameters = {"entity": "node/a", "metric": metric}
    answer = api.get("/v1/latest", params=parameters, headers=_bearer(token)).raise_for_status()
    return [sample["value"] for sample in answer.json()["samples"]]


def test_a_change_made_on_an_old_generation_is_refused_whoever_made_the_newer_one(
    api: httpx.Client, namespace: Namespace
) -> None:
    assert api.post("/v1/rules/process/p", json={"spec": twice()}).status_code == 201
    assert api.post("/v1/rules/process/p", json={"spec": twice()}).status_code == 409
    assert put(api, "process/p", twice(3), 1).json()["generation"] == 2
    # Somebody changes it by kubectl; REST has not seen that yet, or has: the API server decides.
    namespace.patch("processingrules", "p", {"spec": {"chain": twice(4)["chain"]}})

    refused = put(api, "process/p", twice(5), 2)

    assert (refused.status_code, refused.json()["code"]) == (409, "generation_conflict")
    assert "generation is 3" in refused.json()["message"]
    assert put(api, "process/p", twice(4), 3).json()["generation"] == 3  # the same again: no change
    assert put(api, "process/p", twice(5), 3).json()["generation"] == 4
    stored = namespace.get("processingrules", "p")
    assert stored is not None
    assert stored["spec"]["chain"][0]["expression"] == "5 * x"
    assert stored["metadata"]["generation"] == 4
    assert api.delete("/v1/rules/process/p", params={"generation": 3}).status_code == 409
    assert api.delete("/v1/rules/process/p", params={"generation": 4}).status_code == 204
    assert namespace.get("processingrules", "p") is None
    assert api.get("/v1/rules/process/p").status_code == 404
    assert put(api, "process/p", twice(), 4).status_code == 404


def test_what_is_wrong_is_refused_by_field_and_what_kubectl_slips_in_is_shown(
    api: httpx.Client, namespace: Namespace, source: Exporter
) -> None:
    wrong = api.post("/v1/rules/collect/a", json={"spec": spec(source.url, entity=[{"name": "node/{x"}])})
    assert wrong.status_code == 422
    assert [fault["field"] for fault in wrong.json()["fields"]] == ["spec.entity[0].name"]
    command = {"command": {"argv": ["id"]}}
    assert api.post("/v1/rules/collect/a", json={"spec": spec(source.url, source=command)}).status_code == 422
    assert namespace.list("collectionrules") == []

    manifest = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "CollectionRule",
        "metadata": {"name": "c"},
        "spec": spec(source.url, source=command),
    }
    namespace.create("collectionrules", manifest)
    until(
        "a command is not run",
        lambda: condition(namespace.get("collectionrules", "c"), "Ready").get("reason") == "SourceNotAllowed",
    )


def test_nobody_is_let_in_without_a_token_of_the_cluster_and_the_rights(
    api: httpx.Client, namespace: Namespace, source: Exporter
) -> None:
    assert api.post("/v1/rules/collect/a", json={"spec": spec(source.url)}).status_code == 201
    assert until("the value is there", lambda: _values(api, "load")) == [1.0]
    path = "/v1/rules/collect"
    assert api.get(path, headers={"Authorization": ""}).status_code == 401
    assert api.get(path, headers=_bearer("nobody")).status_code == 401
    # The operator's own account may read the rules of its namespace, and nobody gave it information about nodes.
    assert api.get(path, headers=_bearer(OPERATOR)).status_code == 200
    assert _values(api, "load", OPERATOR) == []


def test_rest_says_that_the_api_server_is_away_and_goes_on_when_it_is_back(
    api: httpx.Client, proxy: ApiProxy, namespace: Namespace
) -> None:
    assert api.post("/v1/rules/process/p", json={"spec": twice()}).status_code == 201
    proxy.instead = lambda seen: Fault(503, reason="Down") if seen.method in ("POST", "PUT") else None
    refused = put(api, "process/p", twice(3), 1)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    proxy.instead = None
    assert put(api, "process/p", twice(3), 1).status_code == 200
