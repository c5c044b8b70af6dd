"""Manifests for tests: one that is valid, and a generator of good and bad ones."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

Document = dict[str, Any]


def make_group(name: str = "cpu", **fields: Any) -> Document:
    return {"name": name, **fields}


def batches(*batches: dict[str, int], replicas: int = 1) -> list[dict[str, Any]]:
    """Groups g0, g1, … with these batches, all of `replicas` workers."""
    return [make_group(f"g{i}", replicas=replicas, batch=batch) for i, batch in enumerate(batches)]


def make_manifest(name: str = "fashion", **spec: Any) -> Document:
    """A valid manifest: one group of two workers, batch 8; `spec` replaces fields, `None` takes one away."""
    fields = {
        "image": "heterotrain/examples:dev",
        "command": ["python", "-m", "fashion_cnn"],
        "globalBatchSize": 8,
        "workers": [make_group(replicas=2)],
        **spec,
    }
    return {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": name},
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def random_manifest(random: Random) -> Document:
    """A manifest with all kinds of fields, about half of them with a fault."""
    document = make_manifest(**random_spec(random))
    document["metadata"]["name"] = _pick(random, ["a", "fashion", "a-b-c", "x" * 40], ["x" * 53, "x" * 60, "A", "1a"])
    for _ in range(random.choice([0, 0, 0, 1, 2])):
        _mutate(document, random)
    return document


def _pick(random: Random, good: list[Any], bad: list[Any]) -> Any:
    return copy.deepcopy(random.choice(bad if random.random() < 0.06 else good))


def random_spec(random: Random) -> Document:
    grain = random.choice([1, 1, 2, 8])
    names = random.sample(["gpu", "cpu", "old", "a-1", "ps"], 3) if random.random() < 0.05 else ["gpu", "cpu", "a-1"]
    groups = [_random_group(random, name, grain) for name in names[: random.randint(1, 3)]]
    sums = {
        bound: sum(g["replicas"] * g["batch"].get(bound, g["batch"].get("min", 1)) for g in groups)
        for bound in ("min", "initial")
    }
    total = _pick(random, [sums["initial"], sums["initial"], sums["min"] + grain], [sums["min"] - 1, 10**4, 10**4 + 1])
    spec: Document = {"globalBatchSize": max(1, total), "batchGrain": grain, "workers": groups}
    volumes: list[Any] = [{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "c"}}, {"nfs": {"server": "s"}}]
    targets: list[Any] = [{"value": "a", "atLeast": 0.9}, {"value": "a", "atMost": 1}, None]
    optional: Document = {
        "imagePullPolicy": _pick(random, ["Always", "IfNotPresent", "Never"], ["always", ""]),
        "imagePullSecrets": [{"name": "pull"}],
        "args": _pick(random, [["--epochs", "3"], [], None], [["--epochs", 3], "--epochs"]),
        "env": [{"name": _pick(random, ["A", "a.b"], ["1A", "B", "HETEROTRAIN_X", ""]), "value": "1"}, {"name": "B"}],
        "seed": _pick(random, [0, 7, 2**32 - 1, None], [-1, 2**32, "7"]),
        "parameterServers": {"replicas": _pick(random, [1, 2, 64], [0, 65]), "resources": _random_resources(random)},
        "output": {"volume": _pick(random, volumes, [{}, volumes[0] | volumes[1], {"hostPath": {}}])},
        "synchronization": _random_synchronization(random),
        "stop": {"rounds": 3, "target": _pick(random, targets, [{"value": "a"}, targets[0] | targets[1]])},
    }
    return spec | {key: value for key, value in optional.items() if random.random() < 0.4}


def _random_synchronization(random: Random) -> Document:
    mode = _pick(random, ["BSP", "ASP", "SSP", "DSSP", "Delay", "Backup"], ["bsp", ""])
    bounds: list[Any] = [{"min": 0, "max": 8}, {"min": 3, "max": 3}, {"min": 4, "max": 9}]
    settings: Document = {
        "stalenessBound": (_pick(random, [0, 3, 8, "None"], [-1, 1.5, "none", "3"]), ("SSP", "Delay")),
        "adaptive": (_pick(random, bounds, [{"min": 4, "max": 3}, {"min": 1}]), ("SSP", "Delay")),
        "delayWindowMilliseconds": (_pick(random, [0, 50, "None"], [-1, "50"]), ("Delay",)),
        "discount": (_pick(random, ["None", "Inverse", "Polynomial"], ["inverse"]), ("ASP", "SSP", "DSSP", "Delay")),
        "discountExponent": (_pick(random, [0.5, 1], [-1, 11, "1"]), ("SSP", "Delay")),
        "normalization": (_pick(random, ["Target", "Arrived"], [""]), ("ASP", "SSP", "DSSP", "Delay")),
        "delayCompensation": (_pick(random, [0, 0.04], [-1, "x"]), ("ASP", "Delay")),
        "dssp": (_pick(random, [{}, {"lower": 1}, {"lower": 0, "range": 3}], [{"range": -1}]), ("DSSP",)),
        "backupWorkers": (_pick(random, [0, 1, 2], [-1, 257]), ("Backup",)),
    }
    document: Document = {"leaseSeconds": _pick(random, [2, 15, 600], [1, 601]), "mode": mode}
    for name, (value, modes) in settings.items():
        if random.random() < (0.4 if mode in modes else 0.02):
            document[name] = value
    return document


def _random_resources(random: Random) -> Document:
    return {"limits": {"cpu": _pick(random, [1, "500m", "1e3", "0.5", "2Gi", ".5"], ["x", -1, "-1", 0.5, "1 Gi"])}}


def _random_group(random: Random, name: str, grain: int) -> Document:
    low = random.randint(1, 8)
    batch: Document = {"min": low}
    if random.random() < 0.6:
        batch["initial"] = low + grain * random.randint(0, 4)
    if random.random() < 0.5:
        batch["max"] = _pick(random, [batch.get("initial", low) + random.randint(8, 40)], [low - 1, low])
    tolerations: list[Any] = [{"key": "k", "operator": "Exists"}, {"operator": "Exists"}, {"key": "k", "value": "v"}]
    optional: Document = {
        "device": _pick(random, ["CPU", "CUDA"], ["cuda", None]),
        "resources": _random_resources(random),
        "nodeSelector": {"pool": _pick(random, ["old", "", None], ["a b", "x" * 64, True])},
        "tolerations": [
            _pick(random, tolerations, [{}, tolerations[0] | tolerations[2], {"key": "k", "tolerationSeconds": 3}])
        ],
        "template": _pick(random, [{"spec": {"hostname": None}}, {"metadata": {}}, {}], [{"specs": {}}]),
        "env": [{"name": "A"}, {"name": _pick(random, ["B"], ["A"])}],
    }
    chosen = {key: value for key, value in optional.items() if random.random() < 0.4}
    return make_group(name, replicas=random.randint(1, 4), batch=batch) | chosen


_VALUES: tuple[Any, ...] = (None, 0, 1, -1, 2**40, 1.5, True, "", "x", "4", "x" * 5000, [], [None], {}, {"x": 1})


def _mutate(document: Document, random: Random) -> None:
    """Replace, remove, add or double something below spec."""
    containers = list(_containers(document["spec"])) or [document]
    target = random.choice(containers)
    keys = list(target) if isinstance(target, dict) else list(range(len(target)))
    kind = random.choice(["replace", "replace", "remove", "add", "double"])
    if kind == "add" or not keys:
        if isinstance(target, dict):
            target[random.choice(["replica", "globalbatchsize", "x"])] = 1
        else:
            target.append(copy.deepcopy(random.choice(_VALUES)))
        return
    key = random.choice(keys)
    if kind == "replace":
        target[key] = copy.deepcopy(random.choice(_VALUES))
    elif kind == "remove":
        del target[key]
    elif isinstance(target, list):
        target.append(copy.deepcopy(target[key]))


def _containers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(c for item in value.values() for c in _containers(item))]
    if isinstance(value, list):
        return [value, *(c for item in value for c in _containers(item))]
    return []
