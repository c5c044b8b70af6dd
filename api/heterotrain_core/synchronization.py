"""How gradients of unequal workers are brought together: one frozen value a mode, with only what means something in it.

A plan carries one of these to change bounds, window or mode while the job runs. Units of staleness: SSP and DSSP bound
*iterations a worker may start ahead* of the slowest, Delay bounds *rounds* between the version a gradient was computed
on and the one it is applied to (design §1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

MAX_EXPONENT: Final = 10
"""Of a discount, as a manifest takes it: with more a stale gradient's weight is lost in rounding, to the last one."""


class SyncMode(StrEnum):
    """Names of the modes, as users write them."""

    BSP = "BSP"
    ASP = "ASP"
    SSP = "SSP"
    DSSP = "DSSP"
    DELAY = "Delay"
    BACKUP = "Backup"


class Normalization(StrEnum):
    """What the weights of a commit's gradients are divided by (algorithms.md D7.3)."""

    TARGET = "Target"
    """The global batch: parameters move per sample as under BSP."""
    ARRIVED = "Arrived"
    """What has arrived: a full step each round, noisier."""


class DiscountKind(StrEnum):
    """How much less a stale gradient counts (algorithms.md E)."""

    NONE = "None"
    POLYNOMIAL = "Polynomial"
    """``(1 + tau) ** -exponent``."""
    STALENESS_AWARE = "StalenessAware"
    """``1 / tau`` from tau 1 on (Zhang et al. 2016); tau 0 and 1 count in full."""


@dataclass(frozen=True, slots=True)
class Discount:
    """The factor by which the weight of a gradient of staleness tau (in versions) is multiplied; 1 for tau 0."""

    kind: DiscountKind = DiscountKind.NONE
    exponent: float = 1.0
    """Of `POLYNOMIAL`, usually 0.5 to 1; without meaning in the others."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for an exponent out of range."""
        if not 0 <= self.exponent <= MAX_EXPONENT:
            raise ValueError(f"discount exponent must be from 0 to {MAX_EXPONENT}, not {self.exponent:g}")

    def factor(self, tau: int) -> float:
        """Factor for staleness `tau` >= 0."""
        match self.kind:
            case DiscountKind.NONE:
                return 1.0
            case DiscountKind.POLYNOMIAL:
                return float((1 + tau) ** -self.exponent)
            case DiscountKind.STALENESS_AWARE:
                return 1.0 / max(1, tau)


NO_DISCOUNT = Discount()
INVERSE = Discount(DiscountKind.POLYNOMIAL, 1.0)
"""``1 / (1 + tau)``, the default of Delay."""


@dataclass(frozen=True, slots=True)
class Synchronization:
    """A mode with its settings; always one of the subclasses below."""

    mode: ClassVar[SyncMode]

    @property
    def bound(self) -> int | None:
        """Largest staleness allowed, in the mode's unit; `None`: no bound."""
        return 0

    @property
    def lockstep(self) -> bool:
        """Whether every round waits for everybody, so that an epoch has ceil(n / B) rounds."""
        return False


@dataclass(frozen=True, slots=True)
class Bsp(Synchronization):
    """Every round waits for everybody (D1)."""

    mode: ClassVar[SyncMode] = SyncMode.BSP

    @property
    def lockstep(self) -> bool:
        """Always."""
        return True


BSP = Bsp()


@dataclass(frozen=True, slots=True)
class Backup(Synchronization):
    """A round takes the first N - `workers` gradients; later ones are dropped, their samples handed out again (D6)."""

    mode: ClassVar[SyncMode] = SyncMode.BACKUP
    workers: int = 0

    def __post_init__(self) -> None:
        """Raise `ValueError` for a negative number."""
        _at_least(0, "backup workers", self.workers)

    @property
    def lockstep(self) -> bool:
        """Without backup workers."""
        return self.workers == 0


@dataclass(frozen=True, slots=True)
class Asp(Synchronization):
    """Every push is applied at once (D2)."""

    mode: ClassVar[SyncMode] = SyncMode.ASP
    discount: Discount = NO_DISCOUNT
    normalization: Normalization = Normalization.TARGET
    delay_compensation: float = 0.0
    """Strength of DC-ASGD's compensation of stale gradients (E); 0: none."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a strength that cannot be."""
        _strength(self.delay_compensation)

    @property
    def bound(self) -> int | None:
        """None."""
        return None


@dataclass(frozen=True, slots=True)
class Ssp(Synchronization):
    """Every push is applied at once; who has completed c iterations starts another iff c - least c <= bound (D4)."""

    mode: ClassVar[SyncMode] = SyncMode.SSP
    staleness_bound: int | None = 3
    """Iterations; `None`: no bound, which is ASP."""
    discount: Discount = NO_DISCOUNT
    normalization: Normalization = Normalization.TARGET
    delay_compensation: float = 0.0
    """Strength of DC-ASGD's compensation of stale gradients (E); 0: none."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a negative bound, or a strength that cannot be."""
        _at_least(0, "staleness bound", self.staleness_bound)
        _strength(self.delay_compensation)

    @property
    def bound(self) -> int | None:
        """In iterations."""
        return self.staleness_bound


@dataclass(frozen=True, slots=True)
class Dssp(Synchronization):
    """SSP with a bound between `lower` and `lower` + `range`, chosen for the fastest by least predicted wait (D5)."""

    mode: ClassVar[SyncMode] = SyncMode.DSSP
    lower: int = 2
    """Iterations that everybody may be ahead."""
    range: int = 8
    """Largest number of iterations beyond."""
    discount: Discount = NO_DISCOUNT
    normalization: Normalization = Normalization.TARGET
    delay_compensation: float = 0.0
    """Strength of DC-ASGD's compensation of stale gradients (E); 0: none."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for negative numbers."""
        _at_least(0, "DSSP lower bound", self.lower)
        _at_least(0, "DSSP range", self.range)
        _strength(self.delay_compensation)

    @property
    def bound(self) -> int | None:
        """In iterations: what no start goes beyond."""
        return self.lower + self.range


@dataclass(frozen=True, slots=True)
class Delay(Synchronization):
    """A round closes a window after its first gradient, or later for who would exceed the bound (D7)."""

    mode: ClassVar[SyncMode] = SyncMode.DELAY
    window_seconds: float | None = 0.05
    """`None`: wait for everybody, which is BSP."""
    staleness_bound: int | None = 3
    """Rounds; `None`: no bound; 0 is BSP."""
    discount: Discount = INVERSE
    normalization: Normalization = Normalization.TARGET
    delay_compensation: float = 0.0
    """Strength of DC-ASGD's compensation of stale gradients (E); 0: none."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for negative numbers."""
        _at_least(0, "staleness bound", self.staleness_bound)
        _strength(self.delay_compensation)
        if self.window_seconds is not None and not 0 <= self.window_seconds < float("inf"):
            raise ValueError(
                f"delay window must be at least 0 seconds and finite, or none to wait for everybody, "
                f"not {self.window_seconds}"
            )

    @property
    def bound(self) -> int | None:
        """In rounds."""
        return self.staleness_bound

    @property
    def lockstep(self) -> bool:
        """Whether every round waits for everybody, as under BSP."""
        return self.window_seconds is None or self.staleness_bound == 0


def describe(value: Synchronization) -> str:
    """Mode and bounds in words, for events and progress: ``Delay, window 0.05 s, at most 3 rounds stale``."""
    match value:
        case Ssp(staleness_bound=bound):
            return f"SSP, {'no bound' if bound is None else f'at most {bound} iterations ahead'}"
        case Dssp(lower=lower, range=width):
            return f"DSSP, {lower} to {lower + width} iterations ahead"
        case Delay(window_seconds=window, staleness_bound=bound):
            until = "no window" if window is None else f"window {window:g} s"
            return f"Delay, {until}, {'no bound' if bound is None else f'at most {bound} rounds stale'}"
        case Backup(workers=workers):
            return f"Backup, {workers} workers not waited for"
        case _:
            return str(value.mode)


def _at_least(least: int, what: str, value: int | None) -> None:
    if value is not None and value < least:
        raise ValueError(f"{what} must be at least {least}, not {value}")


def _strength(value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ValueError(f"delay compensation must be at least 0 (none) and finite, not {value}")
