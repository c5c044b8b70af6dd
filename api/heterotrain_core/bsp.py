"""Bulk synchronous parallel: every worker of a round computes on the same version (algorithms.md D1). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_core.sync.policy import DRAINED, EPOCHS_OVER, ROUNDS_OVER, Policy
from heterotrain_core.synchronization import Bsp
from heterotrain_core.types import Plan, SampleSource

__all__ = ["DRAINED", "EPOCHS_OVER", "ROUNDS_OVER", "BspPolicy"]


class BspPolicy(Policy):
    """`rounds_ahead` rounds beyond the one being computed are kept open (see `sync.lockstep`)."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        *,
        rounds_ahead: int = 1,
        max_rounds: int | None = None,
        version: int = 0,
    ) -> None:
        """See `Policy`."""
        super().__init__(Bsp(), plan, names, cursor, rounds_ahead=rounds_ahead, max_rounds=max_rounds, version=version)
