"""The rule packs that come with the program: which there are, and their rules."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from typing import Final

from heterotrain_api.info_collection import CollectionRule
from heterotrain_api.info_rules import ProcessingRule
from heterotrain_operator.info.rules import load_rules

LOCAL: Final = ("local", "trainer", "transfers", "derived-node", "derived-trainer", "derived-link", "derived-service")
"""Without a cluster; ``local-nvidia`` and ``derived-accelerator`` where there is a GPU."""
CLUSTER: Final = (
    "kubernetes",
    "cadvisor",
    "trainer",
    "transfers",
    "derived-node",
    "derived-trainer",
    "derived-link",
    "derived-service",
)
"""In a cluster without a Prometheus."""
PROMETHEUS: Final = (
    "kubernetes",
    "node-exporter",
    "cadvisor-prometheus",
    "dcgm",
    "trainer",
    "transfers",
    "derived-node",
    "derived-accelerator",
    "derived-trainer",
    "derived-link",
    "derived-service",
)
"""In a cluster with a Prometheus; ``kube-state-metrics`` instead of ``kubernetes`` where nodes may not be read."""


def pack_names() -> list[str]:
    """All packs."""
    folder = files("heterotrain_operator.info") / "packs"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def pack_text(name: str) -> str:
    """A pack as its file has it; raises `ValueError` if there is none of the name."""
    if name not in pack_names():
        raise ValueError(f"there is no rule pack {name!r}; there are {', '.join(pack_names())}")
    return (files("heterotrain_operator.info") / "packs" / f"{name}.yaml").read_text()


def load_packs(names: Iterable[str]) -> list[CollectionRule | ProcessingRule]:
    """The rules of some packs, in their order."""
    return [rule for name in names for rule in load_rules(pack_text(name))]
