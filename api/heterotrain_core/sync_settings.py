"""A mode of synchronisation with all settings side by side, as files and messages carry it. Pure.

`Synchronization` has for each mode just what means something in it; this form is for what crosses a process's border,
and for changing one setting and keeping the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from heterotrain_core.synchronization import (
    INVERSE,
    Asp,
    Backup,
    Bsp,
    Delay,
    Discount,
    DiscountKind,
    Dssp,
    Normalization,
    Ssp,
    Synchronization,
    SyncMode,
)

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSettings:
    """Settings that mean nothing in `mode` are passed over. Defaults are those of a job that names the mode alone."""

    mode: SyncMode = SyncMode.BSP
    staleness_bound: int | None = 3
    """SSP: iterations; Delay: rounds. `None`: no bound."""
    delay_window_seconds: float | None = 0.05
    """Delay. `None`: wait for everybody."""
    discount: DiscountKind | None = None
    """`None`: the mode's own default."""
    discount_exponent: float = 1.0
    normalization: Normalization = Normalization.TARGET
    delay_compensation: float = 0.0
    dssp_lower: int = 2
    dssp_range: int = 8
    backup_workers: int = 1

    def synchronization(self) -> Synchronization:
        """The mode as a value; raises `ValueError` for numbers that cannot be."""
        discount = self._discount()
        common = (discount, self.normalization, self.delay_compensation)
        match self.mode:
            case SyncMode.BSP:
                return Bsp()
            case SyncMode.ASP:
                return Asp(*common)
            case SyncMode.SSP:
                return Ssp(self.staleness_bound, *common)
            case SyncMode.DSSP:
                return Dssp(self.dssp_lower, self.dssp_range, *common)
            case SyncMode.DELAY:
                return Delay(self.delay_window_seconds, self.staleness_bound, *common)
            case SyncMode.BACKUP:
                return Backup(self.backup_workers)

    def _discount(self) -> Discount:
        if self.discount is None:
            return INVERSE if self.mode is SyncMode.DELAY else Discount()
        return Discount(self.discount, self.discount_exponent)


def settings_of(value: Synchronization) -> SyncSettings:
    """The inverse of `SyncSettings.synchronization`: what means nothing in the mode has its default."""
    match value:
        case Asp(discount=discount) | Ssp(discount=discount) | Dssp(discount=discount) | Delay(discount=discount):
            return SyncSettings(
                mode=value.mode,
                discount=discount.kind,
                discount_exponent=discount.exponent,
                normalization=value.normalization,
                delay_compensation=value.delay_compensation,
                staleness_bound=value.staleness_bound if isinstance(value, Ssp | Delay) else 3,
                delay_window_seconds=value.window_seconds if isinstance(value, Delay) else 0.05,
                dssp_lower=value.lower if isinstance(value, Dssp) else 2,
                dssp_range=value.range if isinstance(value, Dssp) else 8,
            )
        case Backup(workers=workers):
            return SyncSettings(mode=value.mode, backup_workers=workers)
        case _:
            return SyncSettings(mode=value.mode)


def to_fields(settings: SyncSettings) -> dict[str, str | int | float]:
    """The settings under the names of ``control.proto``; a limit that is `None` is left out."""
    fields: dict[str, str | int | float | None] = {
        "mode": settings.mode.value,
        "staleness_bound": settings.staleness_bound,
        "delay_window_seconds": settings.delay_window_seconds,
        "discount": None if settings.discount is None else settings.discount.value,
        "discount_exponent": settings.discount_exponent,
        "normalization": settings.normalization.value,
        "delay_compensation": settings.delay_compensation,
        "dssp_lower": settings.dssp_lower,
        "dssp_range": settings.dssp_range,
        "backup_workers": settings.backup_workers,
    }
    return {name: value for name, value in fields.items() if value is not None}


def from_fields(fields: Mapping[str, Any]) -> SyncSettings:
    """The inverse: limits that are not there are `None`, numbers 0. Raises `ValueError` that names the setting."""
    discount = fields.get("discount")
    return SyncSettings(
        mode=_choice(SyncMode, "mode", fields.get("mode", "")),
        staleness_bound=fields.get("staleness_bound"),
        delay_window_seconds=fields.get("delay_window_seconds"),
        discount=_choice(DiscountKind, "discount", discount) if discount else None,
        discount_exponent=fields.get("discount_exponent", 0.0),
        normalization=_choice(Normalization, "normalization", fields.get("normalization") or Normalization.TARGET),
        delay_compensation=fields.get("delay_compensation", 0.0),
        dssp_lower=fields.get("dssp_lower", 0),
        dssp_range=fields.get("dssp_range", 0),
        backup_workers=fields.get("backup_workers", 0),
    )


def _choice(choices: type[E], setting: str, text: str) -> E:
    try:
        return choices(text)
    except ValueError:
        raise ValueError(f"{setting} must be one of {', '.join(choices)}, not {text[:40]!r}") from None
