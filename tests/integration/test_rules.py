"""Information rules as resources: obeyed, changed, contained and named, with few writes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.api_proxy import ApiProxy, Fault
from support.control_plane import Namespace
from support.exporter import Exporter, exporter
from support.operator_process import OperatorProcess
from support.play import always, condition, job, until, until_complete
from support.trained_job import coordinator_of

Start = Callable[..., OperatorProcess]
PLURALS = {"CollectionRule": "collectionrules", "ProcessingRule": "processingrules"}
PARTS = "".join(f'part{{id="{number}"}} {number}\n' for number in range(50))


@pytest.fixture
def source() -> Iterator[Exporter]:
    with exporter() as found:
        yield found


def rule(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": dict(spec),
    }


def collection(name: str, url: str, *, metric: str = "load", entity: str = "node/a", **spec: Any) -> dict[str, Any]:
    given = {"source": {"endpoint": {"url": url}}, "interval": 0.5, "metrics": [{"name": metric}]}
    return rule("CollectionRule", name, {**given, "entity": [{"name": entity}], **spec})


def processing(name: str, source: str, target: str, **spec: Any) -> dict[str, Any]:
    given = {"inputs": {"x": {"metric": source}}, "chain": [{"operator": "expr", "expression": "2 * x"}]}
    return rule("ProcessingRule", name, {**given, "output": {"metric": target}, **spec})


def create(namespace: Namespace, *rules: dict[str, Any]) -> None:
    for document in rules:
        namespace.create(PLURALS[document["kind"]], document)


def status(namespace: Namespace, plural: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = (namespace.get(plural, name) or {}).get("status") or {}
    return found


def said(namespace: Namespace, plural: str, name: str, kind: str) -> tuple[str, str]:
    found = condition(namespace.get(plural, name), kind)
    return found.get("status", ""), found.get("reason", "")


def columns(admin: httpx.Client, namespace: Namespace, plural: str) -> dict[str, dict[str, Any]]:
    """What ``kubectl get`` shows, by the rule's name."""
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    table = admin.get(namespace.path(plural), headers=accept).raise_for_status().json()
    names = [column["name"] for column in table["columnDefinitions"]]
    rows = [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]
    return {row["Name"]: row for row in rows}


def exported(operator: OperatorProcess) -> str:
    """What Prometheus would read; empty until it can."""
    try:
        return operator.metrics()
    except httpx.TransportError:
        return ""


def start_with_rules(start_operator: Start, namespace: Namespace, **settings: Any) -> OperatorProcess:
    return start_operator(rules_namespace=namespace.name, **settings)


def test_rules_are_obeyed_and_say_how_they_do(
    start_operator: Start, namespace: Namespace, admin: httpx.Client, source: Exporter
) -> None:
    create(namespace, collection("a", source.url), processing("p", "load", "twice"))
    operator = start_with_rules(start_operator, namespace)

    until("the collection rule is ready", lambda: said(namespace, "collectionrules", "a", "Ready")[0] == "True")
    until("the processing rule is ready", lambda: said(namespace, "processingrules", "p", "Ready")[0] == "True")

    found = status(namespace, "collectionrules", "a")
    assert {key: found[key] for key in ("ready", "error", "observedGeneration", "series")} == {
        "ready": "True",
        "error": "",
        "observedGeneration": 1,
        "series": 1,
    }
    assert {"lastRunTime", "durationMilliseconds", "ageSeconds", "samplesPerSecond"} <= found.keys()
    assert said(namespace, "collectionrules", "a", "Accepted") == ("True", "Obeyed")
    shown = columns(admin, namespace, "collectionrules")["a"]
    assert list(shown) == ["Name", "Ready", "Samples/s", "Age of data", "Error", "Age"]
    assert (shown["Ready"], shown["Error"], shown["Age of data"] < 15) == ("True", "", True)
    text = until(
        "the derived value is exported",
        lambda: text if 'heterotrain_twice{kind="node",name="a"} 2.0' in (text := exported(operator)) else "",
    )
    assert "heterotrain_load" not in text  # collected: whoever collected it has it
    assert "heterotrain_info_samples_total" in text


def test_a_change_by_kubectl_is_obeyed_and_a_deletion_too(
    start_operator: Start, namespace: Namespace, source: Exporter
) -> None:
    source.text = "load 1\nother 7\n"
    create(namespace, collection("a", source.url), processing("p", "load", "twice"))
    operator = start_with_rules(start_operator, namespace)
    until("the value is there", lambda: 'heterotrain_twice{kind="node",name="a"} 2.0' in exported(operator))

    chain = [{"operator": "expr", "expression": "3 * x"}]
    namespace.patch("processingrules", "p", {"spec": {"chain": chain}})

    until("the new value is there", lambda: 'heterotrain_twice{kind="node",name="a"} 3.0' in exported(operator))
    until(
        "the status is of the new generation",
        lambda: status(namespace, "processingrules", "p").get("observedGeneration") == 2,
    )
    namespace.delete("collectionrules", "a")
    asked = until("nobody asks any more", lambda: _still(source))
    assert source.requests == asked


def _still(source: Exporter) -> int:
    before = source.requests
    time.sleep(1.5)
    return before if source.requests == before else 0


def test_a_rule_that_cannot_be_obeyed_is_contained_and_named(
    start_operator: Start, namespace: Namespace, source: Exporter
) -> None:
    source.text = "load 1\n" + PARTS
    create(
        namespace,
        collection("good", source.url),
        processing("first", "load", "b"),
        # Each of these is wrong in a way that the API server cannot see.
        collection("template", source.url, entity="node/{instance"),
        collection("explodes", source.url, metric="part", entity="part/{id}", cardinality=5),
        collection("closed", "http://127.0.0.1:9/metrics", metric="nothing"),
        collection("missing", source.url, metric="nowhere"),
        processing("ring", "b", "load2", inputs={"x": {"metric": "b"}, "y": {"metric": "load3"}}),
        processing("ring-too", "load2", "load3"),
        processing("zero", "load", "d", chain=[{"operator": "ewma", "alpha": 0}]),
        processing("words", "load", "c", chain=[{"operator": "expr", "expression": "nobody * x"}]),
    )
    operator = start_with_rules(start_operator, namespace)

    want = {
        ("collectionrules", "good"): ("True", "SamplesStored", ""),
        ("processingrules", "first"): ("True", "SamplesStored", ""),
        ("collectionrules", "template"): ("False", "InvalidSpec", "spec.entity[0].name"),
        ("collectionrules", "explodes"): ("True", "SamplesMissing", "cardinality"),
        ("collectionrules", "closed"): ("False", "SourceUnreachable", "connect"),
        ("collectionrules", "missing"): ("False", "NoSamples", "nowhere"),
        ("processingrules", "zero"): ("False", "InvalidSpec", "spec.chain[0].alpha"),
        ("processingrules", "words"): ("False", "InvalidSpec", "spec.chain[0].expression"),
    }
    for (plural, name), (ready, reason, words) in want.items():
        until(
            f"{name} says {ready} {reason}",
            lambda plural=plural, name=name, want=(ready, reason): said(namespace, plural, name, "Ready") == want,
        )
        assert words in status(namespace, plural, name)["error"], name
    rings = ("ring", "ring-too")
    until(
        "one of the ring is refused",
        lambda: (
            sorted(said(namespace, "processingrules", name, "Accepted")[1] for name in rings)
            == ["Obeyed", "RuleConflict"]
        ),
    )
    assert status(namespace, "collectionrules", "explodes")["series"] == 5
    text = until("the bad rules are exported as such", lambda: t if "rule_ready" in (t := exported(operator)) else "")
    assert 'heterotrain_rule_ready{kind="rule",name="collect/closed"} 0.0' in text
    # Jobs are served meanwhile.
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)

    # Mended, each is obeyed at once.
    namespace.patch("collectionrules", "template", {"spec": {"entity": [{"name": "node/b"}]}})
    until(
        "the mended rule is ready",
        lambda: said(namespace, "collectionrules", "template", "Ready") == ("True", "SamplesStored"),
    )


def test_statuses_cost_few_writes_and_a_restart_costs_none(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy, source: Exporter
) -> None:
    names = [f"rule-{number}" for number in range(10)]
    # The deadline of an answer is the interval: one that a busy machine keeps to, or there is something to write.
    create(namespace, *(collection(name, source.url, entity=f"node/{name}", interval=3) for name in names))
    operator = start_with_rules(start_operator, namespace)
    for name in names:
        until("it is ready", lambda name=name: said(namespace, "collectionrules", name, "Ready")[0] == "True")
    writes = [seen for seen in proxy.writes() if seen.resource == "collectionrules/status"]
    assert len(writes) <= 2 * len(names)  # first seen, then ready
    before = len(proxy.writes())
    time.sleep(6)
    operator.kill()
    stored = {name: status(namespace, "collectionrules", name) for name in names}
    asked = source.requests

    start_with_rules(start_operator, namespace)

    until("the rules run again", lambda: source.requests > asked + 2 * len(names))
    time.sleep(3)
    assert {name: status(namespace, "collectionrules", name) for name in names} == stored
    assert [w.resource for w in proxy.writes()[before:]] == []


def test_rules_of_another_namespace_are_not_obeyed(
    start_operator: Start, namespace: Namespace, make_namespace: Callable[..., Namespace], source: Exporter
) -> None:
    elsewhere = make_namespace()
    create(elsewhere, collection("a", source.url))
    create(namespace, collection("b", source.url))
    start_with_rules(start_operator, namespace)
    until("ours is ready", lambda: said(namespace, "collectionrules", "b", "Ready")[0] == "True")
    assert status(elsewhere, "collectionrules", "a") == {}


def test_packs_are_rules_that_people_can_see_change_and_switch_off(start_operator: Start, namespace: Namespace) -> None:
    stranger = processing("link", "a", "link_bandwidth")
    create(namespace, stranger)
    packs = "trainer transfers derived-link derived-trainer"
    operator = start_with_rules(start_operator, namespace, rule_packs=packs, without_rules="job-efficiency")
    until("the packs are there", lambda: len(namespace.list("processingrules")) == 4)
    labels = {
        item["metadata"]["name"]: (item["metadata"].get("labels") or {}).get("heterotrain.io/pack")
        for plural in PLURALS.values()
        for item in namespace.list(plural)
    }
    assert labels == {
        "trainer": "trainer",
        "transfers": "transfers",
        "link": None,
        "worker-straggler-score": "derived-trainer",
        "worker-straggling": "derived-trainer",
        "worker-slowdown": "derived-trainer",
    }
    chain = [{"operator": "ewma_t", "half_life": 60}]
    namespace.patch("processingrules", "worker-slowdown", {"spec": {"chain": chain}})
    operator.stop()

    start_with_rules(start_operator, namespace, rule_packs="transfers derived-trainer derived-link")

    until("the pack that is off is gone", lambda: namespace.get("collectionrules", "trainer") is None)
    until("what was left out is there", lambda: namespace.get("processingrules", "job-efficiency"))
    changed = namespace.get("processingrules", "worker-slowdown")
    assert changed is not None
    assert changed["spec"]["chain"] == chain
    kept = namespace.get("processingrules", "link")
    assert kept is not None
    assert kept["spec"]["chain"] == stranger["spec"]["chain"]


def test_what_trainers_report_feeds_the_rules_and_is_exported(start_operator: Start, namespace: Namespace) -> None:
    operator = start_with_rules(start_operator, namespace, rule_packs="trainer derived-trainer")
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    with coordinator_of(namespace, uid):
        name = f"{namespace.name}/fashion"
        for series in (
            f'heterotrain_job_samples_per_second{{kind="job",name="{name}"}}',
            f'heterotrain_job_efficiency{{kind="job",name="{name}"}} 0.',
            f'heterotrain_worker_samples_total{{kind="worker",name="{name}/cpu-0"}}',
            f'heterotrain_worker_phase{{kind="worker",name="{name}/cpu-0",state="Training"}} 1.0',
        ):
            until(series, lambda series=series: series in exported(operator))
        until(
            "the rule for pushed samples says so",
            lambda: said(namespace, "collectionrules", "trainer", "Ready") == ("True", "SamplesStored"),
        )


def test_the_past_outlives_a_restart_where_it_is_kept(
    start_operator: Start, namespace: Namespace, source: Exporter, tmp_path: Path
) -> None:
    create(namespace, collection("a", source.url), processing("p", "load", "twice"))
    kept = {"history_file": tmp_path / "past" / "history.sqlite"}
    operator = start_with_rules(start_operator, namespace, **kept)
    until("the value is there", lambda: 'heterotrain_twice{kind="node",name="a"} 2.0' in exported(operator))
    operator.stop()

    operator = start_with_rules(start_operator, namespace, **kept)

    log = until("it says what it took up", lambda: t if "Took up" in (t := operator.log.read_text()) else "")
    found = re.search(r"Took up (\d+) samples", log)
    assert found is not None
    assert int(found[1]) > 1


def test_without_the_kinds_jobs_are_served_and_rules_are_taken_up_once_they_are_there(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy, source: Exporter
) -> None:
    proxy.instead = lambda seen: Fault(404, reason="NotFound") if "rules" in seen.resource else None
    operator = start_with_rules(start_operator, namespace)
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    until("it says what is missing", lambda: "crds/collectionrules.yaml" in operator.log.read_text())
    assert operator.alive() == 200

    proxy.instead = None
    create(namespace, collection("a", source.url))

    until("the rule is obeyed", lambda: said(namespace, "collectionrules", "a", "Ready")[0] == "True", 60)


def test_no_rule_asks_for_rights_that_the_role_does_not_give(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy
) -> None:
    start_with_rules(start_operator, namespace, rule_packs="kubernetes trainer")
    until("the pods' rule runs", lambda: said(namespace, "collectionrules", "kubernetes-trainers", "Ready")[1])
    until(
        "the nodes' rule says what it lacks",
        lambda: said(namespace, "collectionrules", "kubernetes-nodes", "Ready") == ("False", "SourceRefused"),
    )
    assert "the operator's role does not allow it" in status(namespace, "collectionrules", "kubernetes-nodes")["error"]
    assert {seen.path for seen in list(proxy.seen) if seen.status == 403} == {"/api/v1/nodes"}
    always("the others run", lambda: said(namespace, "collectionrules", "trainer", "Ready")[0] != "False", 1)
