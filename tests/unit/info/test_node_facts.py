"""What the adaptation is told of nodes: fresh values by the names that the rule packs give."""

from __future__ import annotations

import pytest

from heterotrain_api.info_rules import ProcessingRule
from heterotrain_core.adaptation.detect import cause
from heterotrain_core.adaptation.values import NodeFact
from heterotrain_core.info.values import Entity, Metric, Sample
from heterotrain_operator.info.node_facts import node_fact
from heterotrain_operator.info.packs import load_packs
from heterotrain_operator.info.store import Store

NODE, POD = "node/x", "pod/ml/fashion-cpu-0-1"


def store_with(*values: tuple[str, str, float], ttl: float = 45.0) -> Store:
    store = Store()
    for entity, metric, value in values:
        store.declare(Metric(metric, ttl=ttl))
        store.put(Sample(Entity(entity), metric, 100.0, value), 100.0)
    return store


@pytest.mark.parametrize(
    ("values", "want", "words"),
    [
        pytest.param(
            [(NODE, "node_capacity_cores", 4), (NODE, "node_cgroup_busy_cores", 3.9), (NODE, "node_contention", 0.93)],
            NodeFact("x", busy=0.975, others_busy=0.93),
            "node x is 93% busy with other pods",
            id="others",
        ),
        pytest.param(
            [(NODE, "node_capacity_cores", 4), (NODE, "node_cpu_busy_cores", 5), (NODE, "node_contention", 0.1)],
            NodeFact("x", busy=1.0, others_busy=0.1),
            "node x is 100% busy",
            id="busy with us alone, as the node exporter tells",
        ),
        pytest.param(
            [(POD, "pod_cpu_throttled", 0.4), (NODE, "node_capability_cores", 3.0)],
            NodeFact("x", throttled=0.4, capability_cores=3.0),
            "its CPU quota on node x held it up for 40% of the time",
            id="its own quota",
        ),
        pytest.param(
            [(NODE, "node_training_speed", 9.0)], NodeFact("x", training_speed=9.0), "", id="what a user's rule says"
        ),
        pytest.param([("node/y", "node_contention", 0.9)], None, "", id="only of another node"),
    ],
)
def test_facts_become_causes(values: list[tuple[str, str, float]], want: NodeFact | None, words: str) -> None:
    fact = node_fact(store_with(*values), "ml", "fashion-cpu-0-1", "x", 110.0)

    assert fact == want
    assert cause(fact) == words


def test_what_is_no_longer_fresh_explains_nothing() -> None:
    assert node_fact(store_with((NODE, "node_contention", 0.9)), "ml", "p", "x", 146.0) is None


def test_a_name_that_no_entity_may_have_is_not_asked_for() -> None:
    assert node_fact(Store(), "ml", "p", "a node", 0.0) is None


def test_the_names_are_those_of_the_packs() -> None:
    given = {rule.spec.output.metric for rule in load_packs(["derived-node"]) if isinstance(rule, ProcessingRule)}

    assert {"node_contention", "node_capacity_cores", "node_capability_cores", "pod_cpu_throttled"} <= given
    assert {"node_cgroup_busy_cores", "node_cpu_busy_cores"} <= given
