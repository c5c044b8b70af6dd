"""Where a training stands before its first round. Pure."""

from __future__ import annotations

from heterotrain_core.progress import Progress
from heterotrain_core.run_values import Manifest, RunConfig, RunFault, RunReason
from heterotrain_core.types import Plan


def first_progress(config: RunConfig, manifest: Manifest | None, plan: Plan) -> Progress:
    """Version 0, nothing used. Raises `RunFault` without a model: there is nothing to keep then."""
    if manifest is None:
        raise RunFault(RunReason.COORDINATOR_FAILED, "a checkpoint before there is a model")
    return Progress(
        version=0,
        epoch=0,
        used=(),
        manifest=manifest,
        groups=manifest.groups,
        plan=plan,
        synchronization=config.synchronization,
        global_batch_size=config.global_batch_size,
        seed=config.seed,
    )
