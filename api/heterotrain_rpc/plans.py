"""Plans as messages, from plain values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from heterotrain_rpc import control_pb2

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


def plan_message(
    shares: Mapping[str, int] = _NONE,
    micro_batches: Mapping[str, int] = _NONE,
    *,
    reason: str,
    synchronization: Mapping[str, Any] | None = None,
    generation: int = 0,
) -> control_pb2.Plan:
    """A plan: samples, and micro-batches where they are wanted, by worker.

    What it leaves out stays as it is. `synchronization`: see `synchronization_message`; `generation` 0: the coordinator
    numbers the plan.
    """
    return control_pb2.Plan(
        generation=generation,
        shares=[
            control_pb2.PlanShare(worker=worker, samples=samples, micro_batch=micro_batches.get(worker))
            for worker, samples in shares.items()
        ],
        reason=reason,
        synchronization=None if synchronization is None else synchronization_message(synchronization),
    )


def synchronization_message(fields: Mapping[str, Any]) -> control_pb2.Synchronization:
    """Mode and bounds by the names of ``control.proto`` (`heterotrain_core.sync_settings.to_fields`)."""
    return control_pb2.Synchronization(**fields)
