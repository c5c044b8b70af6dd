"""What the information service knows of the node below a pod, for the causes that the adaptation names. Pure.

Only fresh values count: a node that nobody has told anything of lately explains nothing.
"""

from __future__ import annotations

from typing import Final

from heterotrain_core.adaptation.values import NodeFact
from heterotrain_core.info.values import Entity
from heterotrain_operator.info.store import Store

_BUSY: Final = ("node_cgroup_busy_cores", "node_cpu_busy_cores")
"""Cores in use by anybody; a node that is a container itself is told by its control group."""


def node_fact(store: Store, namespace: str, pod: str, node: str, now: float) -> NodeFact | None:
    """The node's and the pod's newest values (`packs/derived-node.yaml`); `None`: nothing fresh is known."""
    try:
        machine, place = Entity(f"node/{node}"), Entity(f"pod/{namespace}/{pod}")
    except ValueError:
        return None
    capacity = _number(store, machine, "node_capacity_cores", now)
    busy = next((value for name in _BUSY if (value := _number(store, machine, name, now)) is not None), None)
    fact = NodeFact(
        name=node,
        busy=min(1.0, busy / capacity) if busy is not None and capacity else None,
        others_busy=_number(store, machine, "node_contention", now),
        throttled=_number(store, place, "pod_cpu_throttled", now),
        capability_cores=_number(store, machine, "node_capability_cores", now),
        training_speed=_number(store, machine, "node_training_speed", now),
    )
    return fact if fact != NodeFact(node) else None


def capabilities(store: Store, now: float) -> dict[str, float]:
    """Cores that a trainer can count on now, of each node of which that is known (`node_capability_cores`)."""
    found = store.latest(now, "node/*", "node_capability_cores")
    return {r.entity.removeprefix("node/"): float(r.value) for r in found if isinstance(r.value, float | int)}


def _number(store: Store, entity: Entity, metric: str, now: float) -> float | None:
    reading = store.get(entity, metric, now)
    return float(reading.value) if reading is not None and isinstance(reading.value, float | int) else None
