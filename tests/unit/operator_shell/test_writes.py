"""What a running job costs the API server: ten minutes of it, with the real decisions, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from heterotrain_api.contract import Role
from heterotrain_api.v1alpha1 import HeteroTrainJob
from heterotrain_operator.job.context import PodContext
from heterotrain_operator.job.decide import decide
from heterotrain_operator.job.manifests import service
from heterotrain_operator.job.memory import JobKey
from heterotrain_operator.job.names import owner_reference, pod_labels, service_name, slot_pod_name
from heterotrain_operator.job.observed import TrainingSeen
from heterotrain_operator.job.reconcile import Reconciler, World
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.slots import COORDINATOR_SLOT, Slot
from heterotrain_operator.link import Links
from heterotrain_operator.metrics import Metrics
from heterotrain_operator.settings import OperatorSettings
from heterotrain_operator.supervisor import Supervisor
from heterotrain_rpc import control_pb2
from manifests import make_group, make_manifest
from support.fake_kube import FakeKube
from support.virtual_time import run_virtual, virtual_now

KEY = JobKey("ml", "fashion")
UID = "6d0f3c1e-0000-4000-8000-000000000001"
WORKERS = tuple(f"cpu-{index}" for index in range(8))
MINUTES = 10
SETTINGS = OperatorSettings()


class TalkativeLinks(Links):
    """The coordinator has something new to say whenever it is asked."""

    def seen(self, job_uid: str) -> TrainingSeen:
        now = virtual_now()
        seconds = asyncio.get_running_loop().time()
        return TrainingSeen(_state(int(seconds)), now, connected=True)

    def keep(self, *_: Any) -> None:
        pass


def test_a_running_job_costs_at_most_four_writes_a_minute() -> None:
    async def main() -> Sequence[tuple[float, str]]:
        kube = _cluster()
        written: list[tuple[float, str]] = []
        kube.before = lambda verb, resource, _: (
            written.append((asyncio.get_running_loop().time(), f"{verb} {resource}")) if verb != "get" else None
        )
        world = World(
            kube=kube,
            links=TalkativeLinks(SETTINGS, virtual_now, lambda: 0.5),
            decide=decide,
            settings=SETTINGS,
            job_settings=JobSettings(trainer_image="trainer:test"),
            now=virtual_now,
            wake=lambda _: None,
            saw_pods=lambda _uid, _pods: None,
            forget=lambda _: None,
        )

        async def jobs() -> list[JobKey]:
            return [KEY]

        supervisor = Supervisor(
            Reconciler(world).run, jobs, settings=SETTINGS, metrics=Metrics(), now=virtual_now, random=lambda: 0.5
        )
        loop = asyncio.create_task(supervisor.run())
        ticking = asyncio.create_task(_tick(lambda: supervisor.wake(KEY)))
        await asyncio.sleep(60 * MINUTES)
        for task in (loop, ticking):
            task.cancel()
        await supervisor.stop()
        return written

    writes = run_virtual(main())

    a_minute = Counter(int(at // 60) for at, _ in writes if at >= 60)
    assert {what for at, what in writes if at >= 60} == {"update heterotrainjobs/status"}
    assert max(a_minute.values()) <= 4
    assert min(a_minute[minute] for minute in range(1, MINUTES)) >= 1  # and the user sees it move


async def _tick(wake: Callable[[], None]) -> None:
    """More often than a link wakes: each status write is an event of the watch too."""
    while True:
        wake()
        await asyncio.sleep(SETTINGS.link_wake_seconds / 5)


def _cluster() -> FakeKube:
    manifest = make_manifest(workers=[make_group(replicas=len(WORKERS))], globalBatchSize=64)
    kube = FakeKube()
    kube.put("heterotrainjobs", manifest | {"metadata": {"name": "fashion", "namespace": "ml", "uid": UID}})
    shared = {"name": service_name("fashion", UID), "ownerReferences": [owner_reference("fashion", UID)]}
    job = HeteroTrainJob.model_validate(manifest)
    settings = JobSettings(trainer_image="trainer:test")
    kube.put("services", service(PodContext(job="fashion", namespace="ml", uid=UID, spec=job.spec, settings=settings)))
    kube.put("secrets", {"metadata": shared})
    for slot in (COORDINATOR_SLOT, *(Slot(Role.WORKER, "cpu", index) for index in range(len(WORKERS)))):
        kube.put("pods", _pod(slot))
    return kube


def _pod(slot: Slot) -> dict[str, Any]:
    return {
        "metadata": {
            "name": slot_pod_name("fashion", slot, 1),
            "namespace": "ml",
            "labels": pod_labels("fashion", UID, slot, 1),
            "ownerReferences": [owner_reference("fashion", UID)],
        },
        "spec": {"nodeName": "one"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "trainer", "state": {"running": {}}}],
        },
    }


def _state(version: int) -> control_pb2.JobState:
    return control_pb2.JobState(
        phase=control_pb2.PHASE_TRAINING,
        epochs=9,
        version=version,
        samples=64 * version,
        dataset_size=64_000,
        global_batch_size=64,
        rounds_planned=9000,
        samples_per_second=64.0 + version % 7,
        ideal_samples_per_second=80.0 + version % 5,
        workers=[
            control_pb2.WorkerState(
                name=name,
                group="cpu",
                phase=control_pb2.WORKER_PHASE_TRAINING,
                share_wanted=8,
                share_applied=8,
                samples_per_second=10.0 + version % 3,
            )
            for name in WORKERS
        ],
        plan=control_pb2.PlanState(generation=1, shares=[control_pb2.PlanShare(worker=w, samples=8) for w in WORKERS]),
        shards=1,
    )
