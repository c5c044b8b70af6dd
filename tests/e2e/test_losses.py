"""Parts of a job that trains are lost: pods, a node, the way to a node. The job ends well and says what it lost."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Document, Job, Namespace, run, slow_digits

LONG, SHORTER = 70, 45
"""Epochs, of 1.6 s each: for two losses of servers, one after the other; for one of a worker, whom none waits for."""
SAMPLES = 1500
"""Of the example's data set."""
FOLDER = "/var/lib/heterotrain-e2e"
VICTIM = "tiny"
"""Pool of the node that is taken away; hack/test-e2e.sh keeps the pods of tests off it that run at the same time."""


@contextmanager
def victim() -> Iterator[None]:
    """One test at a time takes the node away: another process may run the other one."""
    with (Path(tempfile.gettempdir()) / "heterotrain-e2e-victim.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def claim(namespace: Namespace) -> Iterator[str]:
    """A claim on a folder of the control plane's node, which no test takes away."""
    node = run("kubectl", "get", "nodes", "-l", "pool=servers", "-o", "name").strip().removeprefix("node/")
    folder = f"{FOLDER}/{namespace.name}"
    run("docker", "exec", node, "mkdir", "-p", "-m", "777", folder)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace.name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "by-hand",
            "local": {"path": folder},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [pools("In", "servers")]}},
        },
    }
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    namespace.apply(volume)
    namespace.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "models"},
            "spec": {**wanted, "storageClassName": "by-hand", "volumeName": namespace.name},
        }
    )
    yield "models"
    run("kubectl", "delete", "pv", namespace.name, "--wait=false")
    run("docker", "exec", node, "rm", "-rf", folder)


def safe(claim: str, **spec: Any) -> Document:
    """The example with checkpoints that outlive every pod."""
    volume = {"persistentVolumeClaim": {"claimName": claim}}
    return slow_digits(LONG, checkpoint={"everyRounds": 50}, output={"volume": volume}, **spec)


def trains(namespace: Namespace, least_round: int = 1, seconds: float = 300) -> Job:
    return namespace.wait_for_job(
        "digits",
        f"trains beyond round {least_round}",
        seconds,
        lambda job: job.condition("Training")[0] == "True" and job.round >= least_round,
    )


def restarts(job: Job) -> dict[str, int]:
    return {entry["name"]: entry["count"] for entry in job.status.get("recovery", {}).get("restarts", [])}


def recovered(namespace: Namespace, want: dict[str, int], seconds: float = 180) -> Job:
    """The job, once all that was lost runs again and is in the training."""

    def holds(job: Job) -> bool:
        ready = job.condition("Recovering")[0] == "False" and job.status.get("readyWorkers") == "3/3"
        return restarts(job).keys() == want.keys() and ready

    return namespace.wait_for_job("digits", f"has made good {want}", seconds, holds)


def assert_succeeded(namespace: Namespace, want: dict[str, int]) -> Job:
    job = namespace.wait_until_over("digits", 420)
    assert job.condition("Succeeded")[:2] == ("True", "EpochsCompleted"), namespace.diagnosis()
    progress = job.status["progress"]
    assert progress["samples"] == progress["epochs"] * SAMPLES, "each once, whoever was lost"
    status, reason, message = job.condition("Recovering")
    assert (status, reason, restarts(job).keys()) == ("False", "Recovered", want.keys()), job.status["recovery"]
    assert [name for name in want if name not in message] == []
    namespace.told(job, "Warning PodRestarted")
    return job


def test_parameter_servers_are_deleted(namespace: Namespace, claim: str) -> None:
    namespace.apply(safe(claim))
    trains(namespace, 60)
    namespace.kubectl("delete", "pod", "digits-ps-1-1", "--wait=false")
    job = recovered(namespace, {"ps-1": 1})
    assert job.status["recovery"]["restores"] >= 1
    trains(namespace)
    namespace.kubectl("delete", "pod", "digits-ps-0-1", "--wait=false")
    recovered(namespace, {"ps-1": 1, "ps-0": 1})
    job = assert_succeeded(namespace, {"ps-0": 1, "ps-1": 1})
    assert job.status["recovery"]["restores"] >= 2
    assert job.status["model"]["durable"] is True


def test_a_worker_is_deleted(namespace: Namespace) -> None:
    namespace.apply(slow_digits(SHORTER))
    trains(namespace, 20)
    namespace.kubectl("delete", "pod", "digits-b-0-1", "--wait=false")
    recovered(namespace, {"b-0": 1})
    assert_succeeded(namespace, {"b-0": 1})


def test_a_node_is_drained(namespace: Namespace) -> None:
    """Nobody but the worker is on it: parameter servers are kept elsewhere."""
    manifest = slow_digits(SHORTER)
    servers = {"spec": {"nodeSelector": {"pool": "servers"}}}
    manifest["spec"]["parameterServers"]["template"] = servers
    manifest["spec"]["workers"][1]["template"] = {"spec": rather_on(VICTIM)}
    with victim():
        namespace.apply(manifest)
        trains(namespace, 20)
        node = node_of_victim(namespace)
        moved = [p for p in namespace.objects("pods") if p["spec"]["nodeName"] == node]
        lost = {f"{p['metadata']['labels']['heterotrain.io/group']}-0": 1 for p in moved}
        with drained(node):
            job = recovered(namespace, lost)
            running = [p for p in namespace.pods(job) if p["status"]["phase"] == "Running"]
            assert node not in {p["spec"]["nodeName"] for p in running}
    job = assert_succeeded(namespace, lost)
    assert "Evicted" in job.condition("Recovering")[2]


def test_a_node_is_cut_off(namespace: Namespace) -> None:
    """Its worker goes on somewhere else; the condition names the node; what is on it cannot push any more."""
    manifest = slow_digits(90)
    manifest["spec"]["parameterServers"]["template"] = {"spec": {"nodeSelector": {"pool": "servers"}}}
    for group in manifest["spec"]["workers"]:
        group["template"] = {"spec": {"nodeSelector": {"pool": "servers"}}}
    manifest["spec"]["workers"][1]["template"] = {"spec": rather_on(VICTIM)}
    with victim():
        namespace.apply(manifest)
        trains(namespace, 20)
        node = node_of_victim(namespace)
        with cut_off(node):
            job = namespace.wait_for_job("digits", "has lost it", 150, lambda job: restarts(job) == {"b-0": 1})
            (entry,) = job.status["recovery"]["restarts"]
            assert node in entry["message"]
            recovered(namespace, {"b-0": 1})
            seen = namespace.job("digits").round
            trains(namespace, seen + 20)
    assert_succeeded(namespace, {"b-0": 1})


@contextmanager
def drained(node: str) -> Iterator[None]:
    """As before a node is taken down for good or for repair."""
    try:
        run("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", seconds=180)
        yield
    finally:
        run("kubectl", "uncordon", node)


def rather_on(pool: str) -> Document:
    """Of a pod: there, or once that is not possible on another node, but not on that of the servers."""
    tolerated = {"key": "heterotrain.io/e2e", "operator": "Exists"}
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pools("NotIn", "servers")]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": pools("In", pool)}],
    }
    return {"affinity": {"nodeAffinity": affinity}, "tolerations": [tolerated]}


def pools(operator: str, pool: str) -> Document:
    return {"matchExpressions": [{"key": "pool", "operator": operator, "values": [pool]}]}


def node_of_victim(namespace: Namespace) -> str:
    node: str = namespace.get("pod", "digits-b-0-1")["spec"]["nodeName"]
    assert run("kubectl", "get", "nodes", "-l", f"pool={VICTIM}", "-o", "name").strip() == f"node/{node}"
    return node


@contextmanager
def cut_off(node: str) -> Iterator[None]:
    """Nothing passes between the node and the others, without a word to either side."""
    rules = [("INPUT", "-i"), ("OUTPUT", "-o"), ("FORWARD", "-i"), ("FORWARD", "-o")]
    for chain, direction in rules:
        run("docker", "exec", node, "iptables", "-I", chain, direction, "eth0", "-j", "DROP")
    try:
        yield
    finally:
        for chain, direction in rules:
            run("docker", "exec", node, "iptables", "-D", chain, direction, "eth0", "-j", "DROP")
        run("kubectl", "wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s", seconds=150)
