"""Every example, with less to do: started side by side, trained, and told about as a user sees it."""

from __future__ import annotations

import re

import pytest

from support.cluster import EXAMPLES, Document, Namespace, example

pytestmark = pytest.mark.alone

ARGUMENTS = {
    "charlm": ["--epochs", "1", "--megabytes", "0.2"],
    "digits": ["--epochs", "4"],
    "fashion": ["--epochs", "1"],
}
"""Per example: options of its script that make it quick."""
REPORTS = {"charlm": ["bits_per_character", "loss"], "digits": ["accuracy"], "fashion": ["accuracy"]}
MILESTONES = ("PodsCreated", "AllPodsReady", "Started", "Succeeded")
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.yaml") if path.stem != "fashion_gpu")
"""All that need no GPU: no node of kind has one."""


@pytest.fixture(scope="module")
def started(shared_namespace: Namespace) -> dict[str, Document]:
    manifests = {name: example(name, args=ARGUMENTS[name]) for name in NAMES}
    for manifest in manifests.values():
        shared_namespace.apply(manifest)
    return manifests


@pytest.mark.parametrize("name", NAMES)
def test_example_trains_to_its_end(name: str, started: dict[str, Document], shared_namespace: Namespace) -> None:
    job = shared_namespace.wait_until_over(name, 600)
    status, reason, message = job.condition("Succeeded")
    assert (status, reason) == ("True", "EpochsCompleted"), f"{message}\n{shared_namespace.diagnosis()}"
    assert job.status["state"] == "Succeeded"
    assert job.round == job.status["progress"]["rounds"] > 0
    assert sorted(value["name"] for value in job.status["reported"]) == REPORTS[name]
    assert job.status["model"]["path"] == "/output/model.safetensors"

    spec = started[name]["spec"]
    groups = [(f"{group['name']}-{i}", group) for group in spec["workers"] for i in range(group.get("replicas", 1))]
    rows = job.status["workers"]
    assert [(row["name"], row["phase"]) for row in rows] == [(worker, "Finished") for worker, _ in groups]
    # Whatever the adaptation made of the start shares, they add up and keep to what the manifest allows.
    assert sum(row["share"] for row in rows) == spec["globalBatchSize"]
    for row, (worker, group) in zip(rows, groups, strict=True):
        assert group["batch"]["min"] <= row["share"] <= group["batch"].get("max", spec["globalBatchSize"]), worker
    assert job.status["attempt"] == 1, "a pod was made again"

    events = shared_namespace.told(job, "Warning ModelNotDurable")
    first, *between, last = (e.split()[1] for e in events if e.split()[1] in MILESTONES)
    # The training may begin before the kubelets have said that its pods are ready.
    assert (first, sorted(between), last) == ("PodsCreated", ["AllPodsReady", "Started"], "Succeeded")
    # Three jobs share the machine: that a worker holds the others up may well be so.
    warnings = [e for e in events if e.startswith("Warning") and e != "Warning Straggler"]
    assert warnings == ["Warning ModelNotDurable"]


def test_the_example_for_a_gpu_says_that_no_node_has_one(namespace: Namespace) -> None:
    namespace.apply(example("fashion_gpu"))
    job = namespace.wait_for_job(
        "fashion-gpu", "PodsReady says so", 60, lambda job: job.condition("PodsReady")[1] == "Unschedulable"
    )
    message = job.condition("PodsReady")[2]
    assert "fashion-gpu-gpu-0-1" in message
    assert "nvidia.com/gpu" in message


def test_kubectl_get_shows_the_columns_of_the_resource(
    started: dict[str, Document], shared_namespace: Namespace
) -> None:
    shared_namespace.wait_until_over("digits", 240)
    shown = cells(shared_namespace.kubectl("get", "htj", "digits"))
    assert list(shown) == ["NAME", "STATE", "STEP", "SAMPLES/S", "WORKERS", "PS", "STALENESS", "AGE"]
    rounds = 4 * 1500 // 60
    assert {name: shown[name] for name in ("NAME", "STATE", "STEP", "WORKERS", "PS", "STALENESS")} == {
        "NAME": "digits",
        "STATE": "Succeeded",
        "STEP": f"{rounds}/{rounds}",
        "WORKERS": "",  # nothing is to be ready any more
        "PS": "",
        "STALENESS": "0 (bound 0)",
    }
    assert float(shown["SAMPLES/S"]) > 0


def cells(table: str) -> dict[str, str]:
    """The one line of a table of kubectl, by the names of its columns, which begin where their cells do."""
    header, line = table.splitlines()
    starts = [match.start() for match in re.finditer(r"\S+", header)]
    ends = [*starts[1:], None]
    return {header[a:b].strip(): line[a:b].strip() for a, b in zip(starts, ends, strict=True)}


def test_workers_go_to_the_nodes_that_the_manifest_names(
    started: dict[str, Document], shared_namespace: Namespace
) -> None:
    job = shared_namespace.wait_until_over("fashion", 240)
    pools = {
        node["metadata"]["name"]: node["metadata"]["labels"].get("pool") for node in shared_namespace.objects("nodes")
    }
    assert {row["group"]: pools[row["node"]] for row in job.status["workers"]} == {
        pool: pool for pool in ("new", "mid", "old", "tiny")
    }


def test_kubectl_wait_and_diff_behave(started: dict[str, Document], shared_namespace: Namespace) -> None:
    shared_namespace.kubectl("wait", "htj/digits", "--for=condition=Succeeded", "--timeout=240s", seconds=250)
    assert shared_namespace.diff(started["digits"]) == ""
    before = shared_namespace.get("htj", "digits")
    shared_namespace.apply(started["digits"])
    after = shared_namespace.get("htj", "digits")
    assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], before["metadata"]["generation"])
    more = {**started["digits"], "metadata": {"name": "digits", "labels": {"team": "a"}}}
    assert "+    team: a" in shared_namespace.diff(more)
