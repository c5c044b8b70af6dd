"""Nodes of the kind cluster made unequal, a Prometheus that looks at them, and pods that are in the way."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from support.cluster import Document, Namespace, run

KUSTOMIZATION: Final = Path(__file__).parents[2] / "hack" / "monitoring"
MONITORING: Final = Namespace("monitoring")
HOG: Final = "import time\nprint(time.time(), flush=True)\nwhile True: pass"


@contextmanager
def unequal_nodes(cores: Mapping[str, float]) -> Iterator[dict[str, str]]:
    """The node of each pool, with its cores; afterwards with all of the machine's."""
    nodes = {pool: node_of(pool) for pool in cores}
    try:
        for pool, node in nodes.items():
            set_cores(node, cores[pool])
        yield nodes
    finally:
        for node in nodes.values():
            set_cores(node, os.cpu_count() or 1)


def node_of(pool: str) -> str:
    """The name of the one node with this label."""
    return run("kubectl", "get", "nodes", "-o", "jsonpath={.items[0].metadata.name}", "-l", f"pool={pool}")


def set_cores(node: str, cores: float) -> None:
    """Hold a node, which is a container here, to so many cores."""
    run("docker", "update", "--cpus", f"{cores:g}", node)


@contextmanager
def monitoring() -> Iterator[None]:
    """Prometheus and the node_exporters."""
    run("kubectl", "apply", "-k", str(KUSTOMIZATION))
    try:
        yield
    finally:
        run("kubectl", "delete", "-k", str(KUSTOMIZATION), "--timeout=100s")


def program(name: str, source: str, **spec: object) -> Document:
    """A pod that runs Python source, as `restricted` namespaces take it; `spec` replaces fields of its spec."""
    container = {
        "name": name,
        "image": "heterotrain/trainer:dev",
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", source],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    base = {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    metadata = {"name": name, "labels": {"app.kubernetes.io/name": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": base | spec}


def hog(node: str, *, cpu: str = "0") -> Document:
    """A pod that takes all that the node has; beside others its part by what it asks for, `cpu`."""
    pod = program("hog", HOG, nodeSelector={"kubernetes.io/hostname": node})
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
    return pod
