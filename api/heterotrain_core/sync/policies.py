"""One name a mode, for whoever builds a policy of a fixed mode; `Policy` takes any `Synchronization`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from heterotrain_core.sync.policy import Policy
from heterotrain_core.synchronization import (
    INVERSE,
    NO_DISCOUNT,
    Asp,
    Backup,
    Delay,
    Discount,
    Dssp,
    Normalization,
    Ssp,
)
from heterotrain_core.types import Plan, SampleSource

_TARGET = Normalization.TARGET


class AspPolicy(Policy):
    """Every push is applied at once."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        *,
        discount: Discount = NO_DISCOUNT,
        normalization: Normalization = _TARGET,
        max_rounds: int | None = None,
    ) -> None:
        """See `Policy` and `Asp`."""
        super().__init__(Asp(discount, normalization), plan, names, cursor, max_rounds=max_rounds)


class SspPolicy(Policy):
    """Every push is applied at once, starts are bounded in iterations."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        *,
        staleness_bound: int | None = 3,
        discount: Discount = NO_DISCOUNT,
        normalization: Normalization = _TARGET,
        max_rounds: int | None = None,
    ) -> None:
        """See `Policy` and `Ssp`."""
        super().__init__(Ssp(staleness_bound, discount, normalization), plan, names, cursor, max_rounds=max_rounds)


class DsspPolicy(Policy):
    """SSP with a bound chosen inside a range by prediction."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        *,
        lower: int = 2,
        upper_range: int = 8,
        discount: Discount = NO_DISCOUNT,
        normalization: Normalization = _TARGET,
        max_rounds: int | None = None,
    ) -> None:
        """See `Policy` and `Dssp`."""
        super().__init__(Dssp(lower, upper_range, discount, normalization), plan, names, cursor, max_rounds=max_rounds)


class DelayPolicy(Policy):
    """Rounds close a window after their first gradient; staleness is bounded in rounds."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        *,
        window_seconds: float | None = 0.05,
        staleness_bound: int | None = 3,
        discount: Discount = INVERSE,
        normalization: Normalization = _TARGET,
        max_rounds: int | None = None,
    ) -> None:
        """See `Policy` and `Delay`."""
        super().__init__(
            Delay(window_seconds, staleness_bound, discount, normalization), plan, names, cursor, max_rounds=max_rounds
        )


class BackupPolicy(Policy):
    """Rounds take the first gradients and drop the rest."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        cursor: SampleSource,
        *,
        backup_workers: int = 1,
        max_rounds: int | None = None,
    ) -> None:
        """See `Policy` and `Backup`."""
        super().__init__(Backup(backup_workers), plan, names, cursor, max_rounds=max_rounds)
