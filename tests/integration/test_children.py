"""A job's children against a real API server: all made once, owned, and nothing that was not asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from manifests import make_manifest
from support.api_proxy import ApiProxy
from support.control_plane import Namespace
from support.operator_process import OperatorProcess
from support.play import (
    FIELD_MANAGER,
    always,
    bind,
    complain,
    condition,
    job,
    living_pods,
    owners,
    places,
    until,
    until_complete,
)

Start = Callable[..., OperatorProcess]
PLACES = ["cpu-0", "cpu-1", "cpu-2", "ps-0"]


def test_a_job_gets_its_children_and_is_otherwise_left_alone(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy
) -> None:
    operator = start_operator()
    made = namespace.create("heterotrainjobs", job())
    uid = made["metadata"]["uid"]

    pods = until_complete(namespace, uid, 4)

    children = [*pods, *namespace.list("services"), *namespace.list("secrets")]
    assert places(pods) == PLACES
    assert owners(children) == {uid}
    assert len(children) == 6
    assert [o["metadata"].get("finalizers") for o in children] == [None] * 6
    stored = until("a condition", lambda: _stored(namespace, "Accepted"))
    assert stored["spec"] == made["spec"]
    assert "finalizers" not in stored["metadata"]
    assert "annotations" not in stored["metadata"]
    # Whoever wrote beside the user wrote the status, and under one name.
    writers = {(f["manager"], f.get("subresource")) for f in stored["metadata"]["managedFields"]}
    assert writers == {("python-httpx", None), (FIELD_MANAGER, "status")}
    assert operator.alive() == 200
    assert [seen for seen in proxy.seen if seen.status == 403] == []


def test_eight_pods_cost_at_most_twenty_writes(start_operator: Start, namespace: Namespace, proxy: ApiProxy) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job(workers=6, servers=2))["metadata"]["uid"]

    until_complete(namespace, uid, 8)
    until("the status says so", lambda: condition(namespace.get("heterotrainjobs", "fashion"), "Accepted"))

    writes = proxy.writes()
    print(f"\nwrites until 8 pods existed: {len(writes)}: {', '.join(f'{w.method} {w.resource}' for w in writes)}")
    assert len(writes) <= 20


def test_the_operator_is_configured_for_all_namespaces_too(
    wide_rights: None, start_operator: Start, namespace: Namespace
) -> None:
    start_operator(cluster=True)
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)


def test_two_namespaces_hold_jobs_of_one_name(
    wide_rights: None, start_operator: Start, make_namespace: Callable[..., Namespace]
) -> None:
    here, there = make_namespace(), make_namespace()
    start_operator(cluster=True)
    uids = {space.name: space.create("heterotrainjobs", job())["metadata"]["uid"] for space in (here, there)}

    for space in (here, there):
        pods = until_complete(space, uids[space.name], 4)
        children = [*pods, *space.list("services"), *space.list("secrets")]
        assert owners(children) == {uids[space.name]}
        assert len(space.list("pods")) == 4


def test_a_strangers_pod_with_our_name_is_left_alone(start_operator: Start, namespace: Namespace) -> None:
    stranger = _stranger("fashion-cpu-0-1")
    before = namespace.create("pods", stranger)
    start_operator()

    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]

    pods = until_complete(namespace, uid, 4)
    assert places(pods) == PLACES
    assert "fashion-cpu-0-2" in {pod["metadata"]["name"] for pod in pods}
    after = namespace.get("pods", "fashion-cpu-0-1")
    assert after is not None
    assert (after["metadata"]["uid"], after["metadata"].get("labels")) == (
        before["metadata"]["uid"],
        before["metadata"].get("labels"),
    )


def test_a_pod_that_only_claims_to_be_ours_by_label_counts_for_nothing(
    start_operator: Start, namespace: Namespace
) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    pods = until_complete(namespace, uid, 4)

    false = _stranger("false")
    false["metadata"]["labels"] = pods[0]["metadata"]["labels"]
    namespace.create("pods", false)
    namespace.delete("pods", pods[0]["metadata"]["name"])

    until("the pod is made again", lambda: len([p for p in living_pods(namespace, uid) if owners([p]) == {uid}]) == 4)
    assert namespace.get("pods", "false") is not None


def test_the_service_is_made_again_when_somebody_deletes_it(start_operator: Start, namespace: Namespace) -> None:
    start_operator(full_pass_seconds=2)
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    name = namespace.list("services")[0]["metadata"]["name"]

    namespace.delete("services", name)

    until("the Service is there again", lambda: namespace.get("services", name))


def test_a_service_that_somebody_edited_is_brought_back_and_otherwise_left_alone(
    start_operator: Start, namespace: Namespace, proxy: ApiProxy
) -> None:
    start_operator(full_pass_seconds=1)
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    (before,) = namespace.list("services")
    name = before["metadata"]["name"]
    edits = [
        {"spec": {"selector": {"app": "mine"}}},
        {"spec": {"publishNotReadyAddresses": False}},
        {"spec": {"ports": [{"name": "x", "port": 1}]}},
        {"metadata": {"labels": {"heterotrain.io/job-uid": "x"}}},
    ]

    for edit in edits:
        namespace.patch("services", name, edit)
        until(f"{edit} is undone", lambda: _same(before, namespace.get("services", name)))

    writes = len(proxy.writes())
    namespace.patch("services", name, {"metadata": {"labels": {"team": "a"}}})
    always("what is not ours is left alone", lambda: len(proxy.writes()) == writes, 4)


def test_children_are_admitted_where_pod_security_is_restricted(
    wide_rights: None, start_operator: Start, make_namespace: Callable[..., Namespace]
) -> None:
    strict = make_namespace(**{"pod-security.kubernetes.io/enforce": "restricted"})
    start_operator(cluster=True)
    uid = strict.create("heterotrainjobs", job())["metadata"]["uid"]
    assert places(until_complete(strict, uid, 4)) == PLACES


def test_a_quota_is_said_and_waited_for(start_operator: Start, namespace: Namespace) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    namespace.create("resourcequotas", quota)
    until("the quota holds", lambda: (namespace.get("resourcequotas", "none") or {}).get("status"))
    start_operator(full_pass_seconds=3)

    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]

    refused = until("the job says so", lambda: _refused(namespace), 10)
    assert refused["reason"] == "QuotaExceeded"
    assert "exceeded quota: none" in refused["message"]
    namespace.delete("resourcequotas", "none")
    until_complete(namespace, uid, 4)


def test_a_volume_that_cannot_be_mounted_is_said_in_the_words_of_the_node(
    start_operator: Start, namespace: Namespace
) -> None:
    start_operator()
    uid = namespace.create("heterotrainjobs", job())["metadata"]["uid"]
    until_complete(namespace, uid, 4)
    pod = namespace.get("pods", "fashion-cpu-1-1")
    assert pod is not None
    bind(namespace, "fashion-cpu-1-1", "node-7")
    words = 'MountVolume.SetUp failed for volume "data" : configmap "data" not found'
    complain(namespace, pod, "FailedMount", words)

    ready = until(
        "the job says so",
        lambda: (
            c if "data" in (c := condition(_stored(namespace, "PodsReady"), "PodsReady")).get("message", "") else {}
        ),
        60,
    )

    assert (ready["status"], ready["reason"]) == ("False", "ContainerConfigFailed")
    assert f"pod fashion-cpu-1-1 on node node-7: FailedMount: {words}" in ready["message"]
    until("an event", lambda: [e for e in namespace.list("events") if e["reason"] == "ContainerConfigFailed"])


def test_a_spec_that_the_schema_did_not_stop_is_said_and_nothing_is_made(
    start_operator: Start, namespace: Namespace
) -> None:
    start_operator()
    template = {"spec": {"restartPolicy": "Always"}}
    workers = [{"name": "cpu", "replicas": 2, "template": template}]
    namespace.create("heterotrainjobs", make_manifest(workers=workers))

    refused = until("the job says so", lambda: _refused(namespace), 10)

    assert refused["reason"] == "InvalidSpec"
    assert "restartPolicy" in refused["message"]
    assert namespace.list("pods") == []


def _same(before: dict[str, Any], now: dict[str, Any] | None) -> bool:
    assert now is not None
    ports = [(port["name"], port["port"], port["targetPort"]) for port in before["spec"]["ports"]]
    kept = [(port["name"], port["port"], port["targetPort"]) for port in now["spec"]["ports"]]
    fields = ("selector", "publishNotReadyAddresses", "clusterIP")
    return (
        set(ports) <= set(kept)
        and [before["spec"].get(field) for field in fields] == [now["spec"].get(field) for field in fields]
        and before["metadata"]["labels"] == now["metadata"]["labels"]
    )


def _refused(namespace: Namespace) -> dict[str, Any]:
    accepted = condition(namespace.get("heterotrainjobs", "fashion"), "Accepted")
    return accepted if accepted.get("status") == "False" else {}


def _stored(namespace: Namespace, kind: str) -> dict[str, Any] | None:
    found = namespace.get("heterotrainjobs", "fashion")
    return found if condition(found, kind) else None


def _stranger(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "x", "image": "x"}]},
    }
