"""Kubernetes memory quantities (``512Mi``, ``2G``, ``1e9``) as bytes, and bytes as text. Pure."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

_SUFFIXES: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(10 ** (3 * (n + 1))) for n, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Decimal(2 ** (10 * (n + 1))) for n, suffix in enumerate("KMGTPE")},
}
_QUANTITY: Final = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?:(?P<exponent>[eE][+-]?\d+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?"
)


def parse_bytes(text: str | float) -> int:
    """Return the bytes that a memory quantity stands for, rounded up; raises `ValueError` if it is none."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or (match["suffix"] or "") not in _SUFFIXES:
        raise ValueError(f"{text!r} is not an amount of memory; write for example 512Mi or 2Gi")
    return math.ceil(Decimal(match["number"] + (match["exponent"] or "")) * _SUFFIXES[match["suffix"] or ""])


def format_bytes(count: int) -> str:
    """Return `count` bytes in the largest binary unit that leaves a whole part: ``1.5 GiB``."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "bytes" else f"{value:.1f} {unit}"
