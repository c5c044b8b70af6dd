"""A real Prometheus over node_exporters and kubelets of four unequal nodes: what the chart's rule packs make of it.

The tests go on from one another: two minutes of one cluster's life.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from support.cluster import DEPLOYMENT, OPERATOR_NAMESPACE, Document, Namespace, slow_digits
from support.release import install, kept_values
from support.rest_api import RestApi, account_token, cluster_role, forwarded, watching
from support.unequal_nodes import MONITORING, hog, monitoring, unequal_nodes

pytestmark = pytest.mark.alone

SYSTEM: Final = Namespace(OPERATOR_NAMESPACE)
CLUSTER_INFORMATION: Final = f"{OPERATOR_NAMESPACE}:{DEPLOYMENT}:cluster-information"

CORES: Final = {"new": 1.6, "mid": 1.2, "old": 0.8, "tiny": 0.5}
"""Of the node of each pool."""
UNLIMITED: Final = {"requests": {"cpu": "100m", "memory": "512Mi"}}
"""No limit of CPU: the kernel (cgroup v1) starts no container whose limit is above that of its node."""
HOGGED: Final = "tiny"
SCRAPE_SECONDS: Final = 5.0
TTL_SECONDS: Final = 60.0
"""For which the packs take values of Prometheus for present ones, at most."""


@dataclass(frozen=True)
class World:
    """The cluster, and who looks at it."""

    nodes: dict[str, str]
    """Name of the node of each pool."""
    namespace: Namespace
    api: RestApi
    """As somebody who may read everything."""
    tenant: RestApi
    """As somebody who may view one namespace."""
    token: str
    """The one of `api`."""
    prometheus: str
    rest: str
    """Addresses."""

    def wait(self, what: str, seconds: float, holds: Callable[[], Any]) -> Any:
        return self.namespace.wait(what, seconds, holds)

    def node_values(self, metric: str) -> dict[str, Any]:
        """The present value for each pool that has one."""
        found = self.api.latest(entity="node/*", metric=metric)
        return {
            pool: found[f"node/{node}"][metric]["value"] for pool, node in self.nodes.items() if f"node/{node}" in found
        }

    def query(self, query: str, **parameters: Any) -> list[Document]:
        """What Prometheus itself says."""
        path = "query_range" if parameters else "query"
        answer = httpx.get(f"{self.prometheus}/api/v1/{path}", params={"query": query, **parameters}, trust_env=False)
        result: list[Document] = answer.raise_for_status().json()["data"]["result"]
        return result


@pytest.fixture(scope="module")
def world(shared_namespace: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as stack:
        nodes = stack.enter_context(unequal_nodes(CORES))
        values = stack.enter_context(kept_values(tmp_path_factory.mktemp("release")))
        stack.enter_context(monitoring())
        install(values, "--set", "information.prometheus.url=http://prometheus.monitoring:9090")
        MONITORING.kubectl("rollout", "status", "deployment/prometheus", "daemonset/node-exporter", "--timeout=60s")

        reader, tenant = (account_token(shared_namespace, name) for name in ("reader", "tenant"))
        stack.enter_context(cluster_role(shared_namespace, "reader", CLUSTER_INFORMATION))
        account = f"--serviceaccount={shared_namespace.name}:tenant"
        shared_namespace.kubectl("create", "rolebinding", "tenant", "--clusterrole=view", account)
        rest = stack.enter_context(forwarded(OPERATOR_NAMESPACE, f"service/{DEPLOYMENT}", 80))
        prometheus = stack.enter_context(forwarded("monitoring", "service/prometheus", 9090))
        api, tenants = (stack.enter_context(RestApi(rest, token)) for token in (reader, tenant))
        yield World(nodes, shared_namespace, api, tenants, reader, prometheus, rest)


def test_the_rest_api_asks_the_cluster_who_calls_and_what_they_may(world: World) -> None:
    for token in (None, "no.token.ofthis.cluster"):
        with RestApi(world.rest, token) as nobody:
            assert nobody.status("/v1/latest") == 401
    node = world.nodes["new"]
    world.wait("the API server's word on the nodes", 60, lambda: world.api.latest(entity=f"node/{node}"))
    assert world.api.status(f"/v1/entities/node/{node}") == 200
    assert world.tenant.latest(entity="node/*") == {}
    assert world.tenant.status(f"/v1/entities/node/{node}") == 403


def test_the_packs_know_the_capability_of_each_node(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def known() -> bool:
        return world.node_values("node_contention").keys() == CORES.keys() == world.node_values("node_cpu_cores").keys()

    started = time.monotonic()
    world.wait("contention of every node", 120, known)
    capability = world.node_values("node_capability_cores")
    with capsys.disabled():
        print(f"\nknown {time.monotonic() - started:.0f} s later: capability {rounded(capability)}", end=" ")
    assert world.node_values("node_capacity_cores") == pytest.approx(CORES)
    assert set(world.node_values("node_cpu_cores").values()) == {float(os.cpu_count() or 0)}, (
        "node_exporter tells of the machine"
    )
    assert sorted(capability, key=capability.__getitem__, reverse=True) == list(CORES)


def test_a_hog_on_one_node_is_told_within_three_refreshes(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    hogged = f"node/{world.nodes[HOGGED]}"
    others = {f"node/{node}" for pool, node in world.nodes.items() if pool != HOGGED}
    world.wait("calm nodes", 60, lambda: max(world.node_values("node_contention").values()) < 0.3)
    service = (OPERATOR_NAMESPACE, f"service/{DEPLOYMENT}", 80)
    with watching(*service, world.token, entity="node/*", metric="node_contended") as seen:
        world.namespace.apply(hog(world.nodes[HOGGED]))
        world.wait("the event", 150, lambda: [event for _, event in seen if event["entity"] == hogged])
        contention = world.node_values("node_contention")
        capability = world.node_values("node_capability_cores")
        began = float(world.namespace.kubectl("logs", "hog").split()[0])
        [(told, event)] = [(at, event) for at, event in seen if event["entity"] == hogged]
        refresh = refresh_seconds(world, world.nodes[HOGGED], began, told)
        with capsys.disabled():
            print(
                f"\ntold {told - began:.1f} s after the hog began; cAdvisor looked each {refresh:.1f} s at most;",
                end=" ",
            )
            print(f"contention {rounded(contention)}", end=" ")
        world.wait("what its pod uses", 60, lambda: world.tenant.latest(metric="pod_cpu_cores"))
        assert list(world.tenant.latest()) == [f"pod/{world.namespace.name}/hog"]
        world.namespace.kubectl("delete", "pod", "hog")
        assert [event["value"] for _, event in seen if event["entity"] in others] == []
    assert event.items() >= {"value": "HOT", "previous": "OK", "rule": "node-contended"}.items()
    assert told - began <= 3 * max(refresh, SCRAPE_SECONDS)
    assert contention[HOGGED] > 0.5
    assert max(value for pool, value in contention.items() if pool != HOGGED) < 0.5
    assert capability[HOGGED] < 0.5 * CORES[HOGGED]


def refresh_seconds(world: World, node: str, began: float, told: float) -> float:
    """The longest time between two looks of the node's cAdvisor, from the one before the hog to the last one."""
    query = f'timestamp(container_cpu_usage_seconds_total{{id="/",node="{node}"}})'
    [series] = world.query(query, start=began - 25, end=told, step=1)
    looks = sorted({float(value) for _, value in series["values"]})
    return max(later - earlier for earlier, later in itertools.pairwise(looks))


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


def test_a_job_begins_by_what_prometheus_tells_and_is_scraped(world: World) -> None:
    rule = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "ProcessingRule",
        "metadata": {"name": "e2e-start"},
        "spec": {
            "inputs": {"cores": {"metric": "node_capability_cores"}},
            "chain": [{"operator": "expr", "expression": "cores"}],
            "output": {"metric": "node_training_speed"},
        },
    }
    SYSTEM.apply(rule)
    try:
        world.wait("the rule says both", 60, lambda: {"new", "old"} <= world.node_values("node_training_speed").keys())
        servers = {"replicas": 1, "resources": UNLIMITED}
        manifest = slow_digits(400, workers=[worker("new"), worker("old")], parameterServers=servers)
        # Steps of half a second: the operator hears of the training before any worker's speed is known.
        command = manifest["spec"]["command"]
        manifest["spec"]["command"] = [words.replace("sleep(0.05)", "sleep(0.5)") for words in command]
        world.namespace.apply(manifest)
        job = world.namespace.wait_for_job("digits", "trains", 120, lambda job: job.condition("Training")[0] == "True")
        said = world.wait(
            "a plan before any step",
            60,
            lambda: [
                d["message"]
                for d in world.namespace.job("digits").status.get("decisions", ())
                if "node_training_speed" in d["message"]
            ],
        )
        assert world.nodes["new"] in said[0]
        assert world.nodes["old"] in said[0]

        told = {
            "heterotrain_trainer_rounds",
            "heterotrain_trainer_shard_version",
            "heterotrain_trainer_worker_step_seconds_count",
        }
        names = "|".join(sorted(told))
        query = f'{{__name__=~"{names}",namespace="{world.namespace.name}"}}'
        world.wait(
            "all its processes are scraped", 60, lambda: told == {s["metric"]["__name__"] for s in world.query(query)}
        )
        pods = {pod["metadata"]["name"] for pod in world.namespace.pods(job)}
        world.wait("each of them is scraped", 60, lambda: pods == {s["metric"]["pod"] for s in world.query(query)})
        assert world.query("heterotrain_node_capability_cores"), "what the operator derives is kept by Prometheus too"
    finally:
        SYSTEM.kubectl("delete", "processingrule", "e2e-start")
        world.namespace.kubectl("delete", "htj", "digits", "--wait=false")


def worker(pool: str) -> Document:
    """A group of one worker, without a share of its own, on the node of the pool."""
    template = {"spec": {"nodeSelector": {"pool": pool}}}
    return {"name": pool, "batch": {"min": 5}, "resources": UNLIMITED, "template": template}


def test_without_prometheus_values_are_absent_and_its_rules_say_so(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = ("node-exporter", "cadvisor")
    world.wait(
        "its rules are ready", 30, lambda: set(ready(*rules)) <= {("True", "SamplesStored"), ("True", "SamplesMissing")}
    )
    MONITORING.kubectl("scale", "deployment/prometheus", "--replicas=0")
    MONITORING.kubectl("delete", "pod", "-l", "app.kubernetes.io/name=prometheus", "--force", "--grace-period=0")
    killed = time.monotonic()

    def gone() -> bool:
        for samples in world.api.latest(
            entity="node/*", metric=["node_contention", "node_cpu_busy_seconds_total"]
        ).values():
            for sample in samples.values():
                assert time.time() - sample["time"] < TTL_SECONDS + 1, "an old value is told as a present one"
        return not world.node_values("node_contention") and not world.node_values("node_cpu_busy_seconds_total")

    world.wait("the rules say so", 30, lambda: ready(*rules) == [("False", "SourceUnreachable")] * 2)
    said = time.monotonic()
    world.wait("no node has a contention", 90, gone)
    absent = time.monotonic()
    found = world.api.latest(entity="node/*", metric="node_contention", absent=True)
    assert {found[f"node/{node}"]["node_contention"]["value"] for node in world.nodes.values()} == {None}

    MONITORING.kubectl("scale", "deployment/prometheus", "--replicas=1")
    back = time.monotonic()
    world.wait(
        "contention of every node again", 120, lambda: world.node_values("node_contention").keys() == CORES.keys()
    )
    assert {status for status, _ in ready(*rules)} == {"True"}
    with capsys.disabled():
        print(f"\nrules said so {said - killed:.0f} s after Prometheus was killed, values were absent", end=" ")
        print(
            f"{absent - killed:.0f} s after; there again {time.monotonic() - back:.0f} s after it was started", end=" "
        )


def ready(*rules: str) -> list[tuple[str, str]]:
    """Status and reason of the condition Ready of collection rules."""
    statuses = [SYSTEM.get("collectionrule", rule).get("status", {}) for rule in rules]
    found: list[Document] = [next((c for c in s.get("conditions", ()) if c["type"] == "Ready"), {}) for s in statuses]
    return [(condition.get("status", ""), condition.get("reason", "")) for condition in found]
