"""Names, labels and addresses of a job's children. Pure; the limits are in `heterotrain_api.names`."""

from __future__ import annotations

from typing import Any, Final

from heterotrain_api.contract import API_VERSION, Label, Port, ps_name
from heterotrain_api.names import pod_name
from heterotrain_api.v1alpha1 import KIND
from heterotrain_operator.job.slots import COORDINATOR_SLOT, Slot

MANAGER: Final = "heterotrain-operator"
"""Field manager of server-side apply, and the value of ``app.kubernetes.io/managed-by``."""

OWN_LABELS: Final = tuple(f"app.kubernetes.io/{key}" for key in ("name", "instance", "component", "managed-by"))
"""Labels outside our group that every child has."""

UID_DIGITS: Final = 8


def service_name(job: str, uid: str) -> str:
    """Name of the job's headless Service: one that a later job of the same name does not take over."""
    return f"{job}-{uid.replace('-', '')[:UID_DIGITS]}"


def secret_name(job: str, uid: str) -> str:
    """Name of the Secret with the certificates of the job's pods."""
    return service_name(job, uid)


def slot_pod_name(job: str, slot: Slot, attempt: int) -> str:
    """Name of a pod: ``fashion-cpu-0-1``."""
    return pod_name(job, slot.group, slot.index, attempt)


def pod_selector(uid: str) -> str:
    """Label selector of all pods of a job, and of no other job of the same name."""
    return f"{Label.JOB_UID}={uid}"


def job_labels(job: str, uid: str) -> dict[str, str]:
    """Labels of everything that belongs to a job."""
    return {
        "app.kubernetes.io/name": "heterotrain",
        "app.kubernetes.io/instance": job,
        "app.kubernetes.io/managed-by": MANAGER,
        Label.JOB: job,
        Label.JOB_UID: uid,
    }


def pod_labels(job: str, uid: str, slot: Slot, attempt: int) -> dict[str, str]:
    """Labels of a pod."""
    return {
        **job_labels(job, uid),
        "app.kubernetes.io/component": slot.role.value,
        Label.ROLE: slot.role.value,
        Label.GROUP: slot.group,
        Label.INDEX: str(slot.index),
        Label.ATTEMPT: str(attempt),
    }


def owner_reference(job: str, uid: str) -> dict[str, Any]:
    """The job as controller: garbage collection takes the child with it."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": job,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def pod_address(slot_name: str, service: str, namespace: str, port: int) -> str:
    """``host:port`` of a pod, from anywhere in the cluster. Without the cluster's domain: resolvers add it."""
    return f"{slot_name}.{service}.{namespace}.svc:{port}"


def coordinator_address(job: str, uid: str, namespace: str) -> str:
    """Where the job's coordinator answers."""
    return pod_address(COORDINATOR_SLOT.name, service_name(job, uid), namespace, Port.COORDINATOR)


def shard_addresses(index: int, job: str, uid: str, namespace: str) -> tuple[str, str]:
    """Where parameter server `index` answers: to the coordinator, and to workers."""
    service = service_name(job, uid)
    return (
        pod_address(ps_name(index), service, namespace, Port.SHARD),
        pod_address(ps_name(index), service, namespace, Port.TENSOR),
    )
