from __future__ import annotations

from typing import Any

import pytest

from heterotrain_api.trainer_config import ShardConfig, StopConfig, TrainerConfig, WorkerConfig
from heterotrain_api.v1alpha1 import HeteroTrainJob
from heterotrain_api.validation import parse
from heterotrain_operator.job.trainer_config import (
    Membership,
    coordinator_environment,
    ps_environment,
    trainer_config,
    worker_environment,
    worker_slots,
)

SHARD = ShardConfig(control_address="127.0.0.1:1", tensor_address="127.0.0.1:2")
MEMBER = Membership(job_name="tiny", job_uid="u1", name="cpu-1", certificates="/c/cpu-1")


def make_job(**spec: Any) -> HeteroTrainJob:
    document = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": "tiny"},
        "spec": {
            "image": "x",
            "command": ["python", "x.py"],
            "globalBatchSize": 16,
            "workers": [{"name": "gpu", "device": "CUDA"}, {"name": "cpu", "replicas": 2}],
            **spec,
        },
    }
    return parse(document)


def test_workers_are_named_and_ordered_as_in_the_manifest() -> None:
    slots = worker_slots(make_job().spec)
    assert [(slot.name, slot.group.name) for slot in slots] == [("gpu-0", "gpu"), ("cpu-0", "cpu"), ("cpu-1", "cpu")]


def test_the_whole_configuration() -> None:
    job = make_job(
        seed=7,
        batchGrain=2,
        workers=[
            {"name": "gpu", "batch": {"initial": 8, "min": 4, "max": 12}},
            {"name": "cpu", "replicas": 2, "batch": {"min": 2}},
        ],
        synchronization={"leaseSeconds": 9},
        stop={"rounds": 20, "seconds": 30, "target": {"value": "accuracy", "atLeast": 0.9}},
    )
    assert trainer_config(job, uid="u1", shards=[SHARD], output="/out") == TrainerConfig(
        job_name="tiny",
        job_uid="u1",
        seed=7,
        global_batch_size=16,
        batch_grain=2,
        workers=(
            WorkerConfig(name="gpu-0", group="gpu", share=8, minimum=4, maximum=12),
            WorkerConfig(name="cpu-0", group="cpu", share=4, minimum=2, maximum=16),
            WorkerConfig(name="cpu-1", group="cpu", share=4, minimum=2, maximum=16),
        ),
        shards=(SHARD,),
        stop=StopConfig(rounds=20, seconds=30.0, target_name="accuracy", target_at_least=0.9),
        lease_seconds=9.0,
        output="/out",
    )


@pytest.mark.parametrize(
    ("workers", "want"),
    [
        pytest.param([{"name": "a", "replicas": 3}], [6, 5, 5], id="equal parts, the odd sample to the first"),
        pytest.param(
            [{"name": "a", "batch": {"initial": 10}}, {"name": "b", "replicas": 2}],
            [10, 3, 3],
            id="the rest in equal parts",
        ),
        pytest.param(
            [{"name": "a", "batch": {"max": 2}}, {"name": "b", "replicas": 2}],
            [2, 7, 7],
            id="no more than the most allowed",
        ),
    ],
)
def test_start_shares(workers: list[dict[str, Any]], want: list[int]) -> None:
    config = trainer_config(make_job(workers=workers), uid="u", shards=[SHARD], output="")
    assert [worker.share for worker in config.workers] == want


def test_a_workers_environment_has_the_groups_variables_over_the_jobs_and_our_own_over_all() -> None:
    job = make_job(
        env=[{"name": "A", "value": "job"}, {"name": "B", "value": "job"}],
        workers=[{"name": "cpu", "replicas": 2, "env": [{"name": "B", "value": "group"}]}],
    )
    assert worker_environment(MEMBER, job.spec, job.spec.workers[0], coordinator="127.0.0.1:9") == {
        "A": "job",
        "B": "group",
        "HETEROTRAIN_JOB_NAME": "tiny",
        "HETEROTRAIN_JOB_UID": "u1",
        "HETEROTRAIN_NAME": "cpu-1",
        "HETEROTRAIN_CERTIFICATES": "/c/cpu-1",
        "HETEROTRAIN_COORDINATOR": "127.0.0.1:9",
        "HETEROTRAIN_DEVICE": "CPU",
    }


def test_the_other_processes_are_told_what_they_need_and_no_more() -> None:
    common = {
        "HETEROTRAIN_JOB_NAME": "tiny",
        "HETEROTRAIN_JOB_UID": "u1",
        "HETEROTRAIN_NAME": "cpu-1",
        "HETEROTRAIN_CERTIFICATES": "/c/cpu-1",
    }
    assert ps_environment(MEMBER, output="/out") == {**common, "HETEROTRAIN_OUTPUT": "/out"}
    assert coordinator_environment(MEMBER, config="/c.json", termination_log="/o.json") == {
        **common,
        "HETEROTRAIN_CONFIG": "/c.json",
        "HETEROTRAIN_TERMINATION_LOG": "/o.json",
    }
