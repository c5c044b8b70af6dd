"""Workers prefer nodes that the information service finds capable; the event says which."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from builders_operator import decided, pods
from heterotrain_core.info.values import Entity, Metric, Sample
from heterotrain_operator.info.node_facts import capabilities
from heterotrain_operator.info.store import Store
from heterotrain_operator.job.placement import Wish, placed, preference_words

KEY = "preferredDuringSchedulingIgnoredDuringExecution"


def weights(spec: Mapping[str, Any]) -> dict[str, int]:
    terms = spec.get("affinity", {}).get("nodeAffinity", {}).get(KEY, [])
    return {term["preference"]["matchFields"][0]["values"][0]: term["weight"] for term in terms}


@pytest.mark.parametrize(
    ("known", "want"),
    [
        pytest.param({"a": 4.0, "b": 1.0, "c": 0.02}, {"a": 50, "b": 12, "c": 1}, id="in proportion"),
        pytest.param({"a": 4.0, "b": 4.0}, {}, id="all alike: no preference"),
        pytest.param({"a": 4.0}, {}, id="one node: none to choose"),
        pytest.param({"a": 0.0, "b": 0.0}, {}, id="nothing free anywhere"),
        pytest.param({}, {}, id="nothing known"),
    ],
)
def test_the_more_capable_a_node_the_more_it_is_preferred(known: dict[str, float], want: dict[str, int]) -> None:
    assert weights(placed({}, Wish(capabilities=known))) == want


def test_of_a_large_cluster_the_best_nodes_are_named() -> None:
    known = {f"n{n}": float(n) for n in range(100)}

    assert sorted(weights(placed({}, Wish(capabilities=known)))) == sorted(f"n{n}" for n in range(84, 100))


def test_workers_get_the_preference_and_the_event_explains_it() -> None:
    known = {"fast": 3.75, "slow": 0.5}

    first = decided(capabilities=known)
    then = decided(pods=pods(), capabilities=known)

    found = {child.manifest["metadata"]["name"]: weights(child.manifest["spec"]) for child in first.make}
    assert found == {
        "fashion-ps-0-1": {},
        "fashion-cpu-0-1": {"fast": 50, "slow": 7},
        "fashion-cpu-1-1": {"fast": 50, "slow": 7},
    }
    (words,) = [event.message for event in then.events if event.reason == "PodsCreated"]
    assert words.endswith("; workers prefer nodes by the cores that are free for them: fast (3.8), slow (0.5)")


def test_the_words_name_the_best_three() -> None:
    assert preference_words({"a": 1, "b": 2, "c": 3, "d": 4}).endswith("d (4.0), c (3.0), b (2.0) and 1 more")
    assert preference_words({"a": 1}) == ""


def test_only_fresh_values_of_nodes_count() -> None:
    store = Store()
    store.declare(Metric("node_capability_cores", ttl=45.0))
    for node, at in (("a", 100.0), ("b", 60.0)):
        store.put(Sample(Entity(f"node/{node}"), "node_capability_cores", at, 2.0), at)

    assert capabilities(store, 120.0) == {"a": 2.0}
