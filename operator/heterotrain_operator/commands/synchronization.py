"""Options of the command line that describe a mode of synchronisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from heterotrain_api.v1alpha1 import MAX_STALENESS
from heterotrain_core.synchronization import (
    INVERSE,
    NO_DISCOUNT,
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

MAX_WINDOW_SECONDS: Final = 3600
"""As a manifest takes it."""
_ASYNCHRONOUS: Final = frozenset({SyncMode.ASP, SyncMode.SSP, SyncMode.DSSP, SyncMode.DELAY})
_MEANINGFUL: Final[dict[str, frozenset[SyncMode]]] = {
    "--staleness-bound": frozenset({SyncMode.SSP, SyncMode.DELAY}),
    "--delay-window": frozenset({SyncMode.DELAY}),
    "--dssp": frozenset({SyncMode.DSSP}),
    "--discount": _ASYNCHRONOUS,
    "--normalization": _ASYNCHRONOUS,
    "--backup": frozenset({SyncMode.BACKUP}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronizationOptions:
    """As given on the command line; `None`: not given."""

    mode: SyncMode
    staleness_bound: str | None = None
    delay_window: str | None = None
    dssp: str | None = None
    discount: str | None = None
    normalization: str | None = None
    backup: int | None = None

    def parse(self) -> Synchronization:
        """Return the mode with its settings; raises `ValueError` for wrong values and for options without meaning."""
        self._refuse_without_meaning()
        normalization = _normalization(self.normalization)
        discount = _discount(self.discount, INVERSE if self.mode is SyncMode.DELAY else NO_DISCOUNT)
        match self.mode:
            case SyncMode.BSP:
                return Bsp()
            case SyncMode.ASP:
                return Asp(discount, normalization)
            case SyncMode.SSP:
                return Ssp(_bound(self.staleness_bound), discount, normalization)
            case SyncMode.DSSP:
                lower, width = parse_pair("--dssp", "2,8" if self.dssp is None else self.dssp)
                return Dssp(_whole("--dssp", lower), _whole("--dssp", width), discount, normalization)
            case SyncMode.DELAY:
                return Delay(_window(self.delay_window), _bound(self.staleness_bound), discount, normalization)
            case SyncMode.BACKUP:
                return Backup(1 if self.backup is None else self.backup)

    def _refuse_without_meaning(self) -> None:
        given = {
            "--staleness-bound": self.staleness_bound,
            "--delay-window": self.delay_window,
            "--dssp": self.dssp,
            "--discount": self.discount,
            "--normalization": self.normalization,
            "--backup": self.backup,
        }
        for option, value in given.items():
            modes = _MEANINGFUL[option]
            if value is not None and self.mode not in modes:
                names = ", ".join(mode for mode in SyncMode if mode in modes)
                raise ValueError(f"{option} means nothing in mode {self.mode}; it belongs to {names}")


def change_of(
    *,
    mode: SyncMode | None = None,
    staleness_bound: str | None = None,
    delay_window: str | None = None,
    dssp: str | None = None,
    discount: str | None = None,
    normalization: str | None = None,
    backup: int | None = None,
) -> dict[str, Any]:
    """The options that are given, as fields of ``spec.synchronization``; whether they mean something in the mode says
    who knows it. Raises `ValueError` for what cannot be read.
    """
    change: dict[str, Any] = {} if mode is None else {"mode": mode.value}
    if staleness_bound is not None:
        bound = _bound(staleness_bound)
        change["stalenessBound"] = "None" if bound is None else bound
    if delay_window is not None:
        change["delayWindowMilliseconds"] = _milliseconds(_window(delay_window))
    if dssp is not None:
        lower, width = parse_pair("--dssp", dssp)
        change["dssp"] = {"lower": _whole("--dssp", lower), "range": _whole("--dssp", width)}
    if discount is not None:
        parsed = _discount(discount, NO_DISCOUNT)
        change["discount"] = parsed.kind.value
        if parsed.kind is DiscountKind.POLYNOMIAL:
            change["discountExponent"] = parsed.exponent
    if normalization is not None:
        change["normalization"] = _normalization(normalization).value
    if backup is not None:
        change["backupWorkers"] = backup
    return change


def _milliseconds(seconds: float | None) -> int | str:
    if seconds is None:
        return "None"
    milliseconds = round(1000 * seconds)
    if not math.isclose(milliseconds, 1000 * seconds, abs_tol=1e-6):
        raise ValueError(f"--delay-window {seconds:g}: on a cluster write whole milliseconds, for example 0.02")
    return milliseconds


def parse_pair(option: str, text: str) -> tuple[float, float]:
    """Read ``a,b``; raises `ValueError`."""
    try:
        first, second = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"{option} {text}: write two numbers separated by a comma") from None
    return first, second


def _bound(text: str | None) -> int | None:
    if text is None:
        return 3
    if text == "none":
        return None
    # Beyond the largest bound of a manifest a number binds nobody.
    if not (
        text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_STALENESS)) and int(text) <= MAX_STALENESS
    ):
        raise ValueError(
            f"--staleness-bound {text[:40]}: write a whole number from 0 to {MAX_STALENESS}, or none for no bound"
        )
    return int(text)


def _window(text: str | None) -> float | None:
    if text is None:
        return 0.05
    if text == "none":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_WINDOW_SECONDS:
        raise ValueError(
            f"--delay-window {text[:40]}: write 0 to {MAX_WINDOW_SECONDS} seconds, or none to wait for everybody"
        )
    return seconds


def _whole(option: str, number: float) -> int:
    if not (0 <= number <= MAX_STALENESS and number.is_integer()):
        raise ValueError(f"{option}: {number:g} must be a whole number from 0 to {MAX_STALENESS}")
    return int(number)


def _discount(text: str | None, default: Discount) -> Discount:
    if text is None:
        return default
    named = {
        "none": NO_DISCOUNT,
        "inverse": INVERSE,
        "staleness-aware": Discount(DiscountKind.STALENESS_AWARE),
    }
    if text in named:
        return named[text]
    try:
        exponent = float(text)
    except ValueError:
        raise ValueError(
            f"--discount {text}: write the exponent a of (1 + tau)^-a, or one of {', '.join(named)}"
        ) from None
    return Discount(DiscountKind.POLYNOMIAL, exponent)


def _normalization(text: str | None) -> Normalization:
    if text is None:
        return Normalization.TARGET
    for choice in Normalization:
        if choice.lower() == text.lower():
            return choice
    raise ValueError(f"--normalization {text}: choose target or arrived")
