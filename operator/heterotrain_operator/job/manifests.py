"""The objects of a job as plain values: pods and the headless Service. Pure; the shell sends them as they are."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

from heterotrain_api.contract import Annotation, Container, Label, MountPath, Port
from heterotrain_api.trainer_config import ShardConfig
from heterotrain_api.v1alpha1 import HeteroTrainJob
from heterotrain_operator.job.context import PodContext
from heterotrain_operator.job.names import (
    job_labels,
    owner_reference,
    pod_labels,
    shard_addresses,
    slot_pod_name,
)
from heterotrain_operator.job.placement import Wish, placed
from heterotrain_operator.job.podspec import pod_spec
from heterotrain_operator.job.slots import COORDINATOR_SLOT, Slot
from heterotrain_operator.job.template import pod_parts
from heterotrain_operator.job.trainer_config import trainer_config, with_replicas

Manifest = dict[str, Any]
NO_WISH: Final = Wish()


def pod(context: PodContext, job: HeteroTrainJob, slot: Slot, attempt: int, *, wish: Wish = NO_WISH) -> Manifest:
    """The pod that fills `slot`, as it is sent to the API server."""
    metadata, _ = pod_parts(context.template(slot))
    annotations = {"kubectl.kubernetes.io/default-container": Container.TRAINER, **metadata.get("annotations", {})}
    if slot == COORDINATOR_SLOT:
        annotations[Annotation.TRAINER_CONFIG] = _config(context, job)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": slot_pod_name(context.job, slot, attempt),
            "namespace": context.namespace,
            "labels": metadata.get("labels", {}) | pod_labels(context.job, context.uid, slot, attempt),
            "annotations": annotations,
            "ownerReferences": [owner_reference(context.job, context.uid)],
        },
        "spec": placed(pod_spec(context, slot), wish),
    }


def with_attempt(manifest: Mapping[str, Any], attempt: int) -> Manifest:
    """The same pod under the name of another attempt: for when a stranger has the name."""
    other = copy.deepcopy(dict(manifest))
    metadata = other["metadata"]
    metadata["name"] = f"{metadata['name'].rpartition('-')[0]}-{attempt}"
    metadata["labels"][Label.ATTEMPT] = str(attempt)
    return other


def service(context: PodContext) -> Manifest:
    """The headless Service by which the job's pods find each other, ready or not."""
    ports = [("coordinator", Port.COORDINATOR), ("shard", Port.SHARD), ("tensor", Port.TENSOR)]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": context.service,
            "namespace": context.namespace,
            "labels": job_labels(context.job, context.uid),
            "ownerReferences": [owner_reference(context.job, context.uid)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {Label.JOB_UID: context.uid},
            "ports": [{"name": name, "port": port, "targetPort": port} for name, port in ports],
        },
    }


def _config(context: PodContext, job: HeteroTrainJob) -> str:
    """What the coordinator is configured with, as JSON."""
    count = context.spec.parameter_servers.replicas
    addresses = [shard_addresses(index, context.job, context.uid, context.namespace) for index in range(count)]
    shards = [ShardConfig(control_address=control, tensor_address=tensor) for control, tensor in addresses]
    config = trainer_config(
        with_replicas(job, context.replicas), uid=context.uid, shards=shards, output=MountPath.OUTPUT, restarts=True
    )
    return config.model_copy(update={"recovery_seconds": context.settings.recovery_seconds}).model_dump_json()
