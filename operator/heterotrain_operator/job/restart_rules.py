"""Which parts of a job may be started again once it trains, and how often, by its manifest. Pure."""

from __future__ import annotations

from heterotrain_api.contract import Role
from heterotrain_api.v1alpha1 import HeteroTrainJobSpec
from heterotrain_operator.job.slots import COORDINATOR_SLOT, Slot
from heterotrain_operator.job.trainer_config import backoff_limit, rejoin_limit


def limit_of(spec: HeteroTrainJobSpec, slot: Slot) -> int:
    """How often the pod of a place may be lost and started again."""
    return backoff_limit(spec) if slot.role is Role.PS else rejoin_limit(spec)


def is_output_durable(spec: HeteroTrainJobSpec) -> bool:
    """Whether what is written to the output volume outlives the pod of ps-0."""
    volume = spec.output.volume
    return volume is not None and (volume.persistent_volume_claim is not None or volume.nfs is not None)


def obstacle(spec: HeteroTrainJobSpec, slot: Slot) -> str:
    """Why the loss of a place's pod ends the job, with what to do about it; empty: it does not."""
    if slot.role is Role.PS and spec.checkpoint is None:
        return "what it held is lost with it; with spec.checkpoint a job goes back to a checkpoint"
    if slot == COORDINATOR_SLOT and not is_output_durable(spec):
        return "the checkpoints are lost with its pod; with a claim in spec.output.volume they outlive it"
    return "" if limit_of(spec, slot) else "spec.runPolicy.backoffLimit is 0"
