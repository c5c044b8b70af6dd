"""Kubernetes memory quantities (``512Mi``, ``2G``, ``1e9``) as bytes, and bytes as text. Pure."""

from __future__ import annotations

import math
from typing import Final

from heterotrain_operator.job.quantity import parse_quantity

_PARTS_OF_A_BYTE: Final = ("n", "u")
"""Suffixes that a quantity may have and an amount of memory does not."""


def parse_bytes(text: str | float) -> int:
    """Return the bytes that a memory quantity stands for, rounded up; raises `ValueError` if it is none."""
    try:
        amount = parse_quantity(text)
    except ValueError:
        amount = None
    if amount is None or str(text).strip().endswith(_PARTS_OF_A_BYTE):
        raise ValueError(f"{text!r} is not an amount of memory; write for example 512Mi or 2Gi")
    return math.ceil(amount)


def format_bytes(count: int) -> str:
    """Return `count` bytes in the largest binary unit that leaves a whole part: ``1.5 GiB``."""
    value, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if value >= 100 or unit == "bytes" else f"{value:.1f} {unit}"
