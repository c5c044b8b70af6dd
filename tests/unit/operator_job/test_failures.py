"""What is said of a container that ended badly: who, where, why, and what to change."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from builders_operator import make_end, make_job, make_pod, pods, training_status, viewed
from heterotrain_api.contract import Container
from heterotrain_operator.job.failures import causes
from heterotrain_operator.job.observed import ContainerSeen, PodSeen

KILLED = make_end(137, reason="OOMKilled")


def killed(name: str, limit: str, container: str = Container.TRAINER) -> PodSeen:
    seen = ContainerSeen(container, "terminated", end=KILLED, memory_limit=limit)
    return make_pod(name, phase="Failed", containers=(seen,))


class Case(NamedTuple):
    text: str
    pod: PodSeen
    want: str
    status: Any = None


SHARES = training_status(workers=[{"name": "cpu-1", "group": "cpu", "share": 96}])
CASES = [
    Case(
        "a worker at its limit, with the share that it had",
        killed("cpu-1", "512Mi"),
        "worker cpu-1 (pod fashion-cpu-1-1) ran out of memory (OOMKilled) at its limit of 512Mi, with a share of 96 "
        "samples: raise resources.limits.memory, or lower batch.max of group cpu",
        SHARES,
    ),
    Case(
        "a worker that had no share yet",
        killed("cpu-1", "512Mi"),
        "worker cpu-1 (pod fashion-cpu-1-1) ran out of memory (OOMKilled) at its limit of 512Mi: raise "
        "resources.limits.memory, or lower batch.max of group cpu",
    ),
    Case(
        "a parameter server, which has no batch",
        killed("ps-0", "1Gi"),
        "parameter server ps-0 (pod fashion-ps-0-1) ran out of memory (OOMKilled) at its limit of 1Gi: raise "
        "resources.limits.memory",
    ),
    Case(
        "a worker without a limit: its node was full",
        killed("cpu-1", ""),
        "worker cpu-1 (pod fashion-cpu-1-1) ran out of memory (OOMKilled), with a share of 96 samples: it has "
        "no limit, its node had no memory left; give it resources.requests.memory",
        SHARES,
    ),
    Case(
        "an init container of the user's",
        killed("cpu-1", "64Mi", "fetch"),
        "worker cpu-1 (pod fashion-cpu-1-1, container fetch) ran out of memory (OOMKilled) at its limit of 64Mi: raise "
        "resources.limits.memory, or lower batch.max of group cpu",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.text for case in CASES])
def test_out_of_memory(case: Case) -> None:
    view = viewed(make_job(status=case.status), pods(case.pod))
    (cause,) = causes(view, gone=True)
    assert (cause.failure.reason, cause.failure.exit_code) == ("OutOfMemory", 137)
    assert cause.failure.message == case.want


def test_of_a_gpu_without_memory_it_is_said_what_to_change() -> None:
    end = make_end(1, message="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.")
    (cause,) = causes(viewed(make_job(), pods(make_pod("cpu-1", phase="Failed", trainer=end))), gone=True)
    assert cause.failure.reason == "WorkerFailed"
    assert cause.failure.message == (
        "worker cpu-1 (pod fashion-cpu-1-1) exited with code 1: torch.OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 2 GiB.; lower batch.max of group cpu, or use a GPU with more memory"
    )
