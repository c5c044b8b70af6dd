from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterotrain_api.validation import parse
from heterotrain_operator.local.cause import Kind
from heterotrain_operator.local.job_folder import JobFolder
from heterotrain_operator.local.manifest import without_meaning_here
from heterotrain_operator.local.process_plan import ProcessPlan, base_environment, ready_ports
from heterotrain_operator.local.supervisor import Command


def make_plan(environment: dict[str, str] | None = None, **spec: Any) -> ProcessPlan:
    document = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": "tiny"},
        "spec": {
            "image": "x",
            "command": ["python", "train.py"],
            "args": ["--lr", "1"],
            "globalBatchSize": 16,
            "workers": [{"name": "cpu", "replicas": 2, "resources": {"limits": {"memory": "1Mi"}}}],
            **spec,
        },
    }
    return ProcessPlan(
        job=parse(document),
        uid="u1",
        folder=JobFolder(Path("/home/jobs/tiny"), Path("/report")),
        source=Path("/src"),
        python="/venv/bin/python",
        environment=environment or {},
        stretches={},
    )


def test_a_worker_is_the_users_command_beside_the_manifest() -> None:
    plan = make_plan({"HOME": "/home/me", "PATH": "/bin"})
    assert plan.worker_command(plan.slots[1], "127.0.0.1:9") == Command(
        name="cpu-1",
        kind=Kind.WORKER,
        arguments=["/venv/bin/python", "train.py", "--lr", "1"],
        environment={
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "HOME": "/home/me",
            "PATH": "/venv/bin:/bin",
            "PYTHONUNBUFFERED": "1",
            "HETEROTRAIN_JOB_NAME": "tiny",
            "HETEROTRAIN_JOB_UID": "u1",
            "HETEROTRAIN_NAME": "cpu-1",
            "HETEROTRAIN_CERTIFICATES": "/home/jobs/tiny/certificates/cpu-1",
            "HETEROTRAIN_COORDINATOR": "127.0.0.1:9",
            "HETEROTRAIN_DEVICE": "CPU",
        },
        folder=Path("/src"),
        log=Path("/report/logs/cpu-1.log"),
        memory_limit_bytes=2**20,
    )


def test_pace_and_sample_log_reach_the_worker_that_they_are_for() -> None:
    plan = replace(make_plan(), stretches={"cpu-0": 2.5}, log_samples=True)
    first, second = (plan.worker_command(slot, "x").environment for slot in plan.slots)
    assert (first["HETEROTRAIN_STRETCH"], "HETEROTRAIN_STRETCH" in second) == ("2.5", False)
    assert second["HETEROTRAIN_SAMPLE_LOG"] == "/report/logs/cpu-1.samples"


def test_workers_on_cuda_are_counted_so_that_each_takes_a_device_of_its_own() -> None:
    groups = [{"name": "a", "device": "CUDA"}, {"name": "b"}, {"name": "c", "device": "CUDA", "replicas": 2}]
    plan = make_plan(workers=groups)
    ordinals = {s.name: plan.worker_command(s, "x").environment.get("HETEROTRAIN_CUDA_ORDINAL") for s in plan.slots}
    assert ordinals == {"a-0": "0", "b-0": None, "c-0": "1", "c-1": "2"}


def test_metrics_have_ports_in_a_row_if_they_are_asked_for() -> None:
    plan = replace(make_plan(parameterServers={"replicas": 2}), metrics_port=9700)
    assert plan.metrics_ports == {"coordinator": 9700, "ps-0": 9701, "ps-1": 9702, "cpu-0": 9703, "cpu-1": 9704}
    commands = [plan.coordinator_command(), plan.ps_command(1), plan.worker_command(plan.slots[1], "x")]
    assert [command.environment["HETEROTRAIN_METRICS"] for command in commands] == [
        "127.0.0.1:9700", "127.0.0.1:9702", "127.0.0.1:9704",
    ]  # fmt: skip
    inherited = make_plan({"HETEROTRAIN_METRICS": "127.0.0.1:1"})
    assert "HETEROTRAIN_METRICS" not in inherited.coordinator_command().environment


def test_another_command_than_python_is_taken_as_it_is() -> None:
    plan = make_plan(command=["sh", "-c", "python x.py"], args=[])
    assert list(plan.worker_command(plan.slots[0], "x").arguments) == ["sh", "-c", "python x.py"]


def test_the_coordinator_has_the_certificate_of_the_first_shard_and_only_it_is_given_the_configuration() -> None:
    plan = make_plan()
    coordinator, shard = plan.coordinator_command(), plan.ps_command(0)
    assert coordinator.environment["HETEROTRAIN_NAME"] == shard.environment["HETEROTRAIN_NAME"] == "ps-0"
    assert coordinator.environment["HETEROTRAIN_CONFIG"] == "/home/jobs/tiny/config.json"
    assert "HETEROTRAIN_CONFIG" not in shard.environment
    assert shard.environment["HETEROTRAIN_OUTPUT"] == "/report"


@pytest.mark.parametrize(
    ("environment", "name", "want"),
    [
        pytest.param({}, "OMP_NUM_THREADS", "1", id="one thread a worker, since they share the machine"),
        pytest.param({"OMP_NUM_THREADS": "3"}, "OMP_NUM_THREADS", "3", id="the user's own choice holds"),
        pytest.param({"HETEROTRAIN_JOB_UID": "outer"}, "HETEROTRAIN_JOB_UID", None, id="no other job's variables"),
        pytest.param({"HETEROTRAIN_HOME": "/h"}, "HETEROTRAIN_HOME", "/h", id="what is no job's variable stays"),
        pytest.param({}, "PATH", "/venv/bin", id="an empty PATH"),
        pytest.param({"PATH": "/bin"}, "PATH", "/venv/bin:/bin", id="our interpreter first"),
        pytest.param({"PYTHONPATH": "/p"}, "PYTHONPATH", "/p", id="PYTHONPATH is left alone"),
    ],
)
def test_base_environment(environment: dict[str, str], name: str, want: str | None) -> None:
    assert base_environment(environment, "/venv/bin/python").get(name) == want


@pytest.mark.parametrize(
    ("log", "want"),
    [
        ("", None),
        ("a warning\nready control=5 tensor=6\n", {"control": 5, "tensor": 6}),
        ("ready control=5\n", {"control": 5}),
        ("ready control=5", None),  # of 50123, perhaps
        ("ready when you are\n", None),
    ],
)
def test_ready_line(log: str, want: dict[str, int] | None) -> None:
    assert ready_ports(log) == want


def test_settings_for_clusters_are_named() -> None:
    plan = make_plan(
        imagePullPolicy="Never",
        parameterServers={"resources": {"limits": {"memory": "1Gi", "cpu": "1"}}, "template": {"spec": {}}},
        workers=[
            {"name": "a", "nodeSelector": {"pool": "x"}, "resources": {"requests": {"cpu": "1"}}},
            {"name": "b", "tolerations": [{"operator": "Exists"}], "resources": {"requests": {"cpu": "2"}}},
        ],
        output={"volume": {"emptyDir": {}}},
    )
    assert without_meaning_here(plan.job.spec) == (
        "image",
        "imagePullPolicy",
        "parameterServers.resources.limits.cpu",
        "parameterServers.template",
        "workers.*.resources.requests",
        "workers.a.nodeSelector",
        "workers.b.tolerations",
        "output.volume",
    )
