"""Kubernetes quantities (``500m``, ``2Gi``, ``1e3``) as numbers. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_SUFFIXES: Final = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{suffix: Decimal(10 ** (3 * (n + 1))) for n, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Decimal(2 ** (10 * (n + 1))) for n, suffix in enumerate("KMGTPE")},
}
_QUANTITY: Final = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?:(?P<exponent>[eE][+-]?\d+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?"
)


def parse_quantity(value: str | float) -> Decimal:
    """Return the number that a quantity stands for; raises `ValueError` if it is none."""
    match = _QUANTITY.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is not a quantity; write for example 500m, 2 or 2Gi")
    return Decimal(match["number"] + (match["exponent"] or "")) * _SUFFIXES[match["suffix"] or ""]


def whole_cpus(value: str | float) -> int:
    """Return how many threads an amount of CPU keeps busy without being throttled: at least one."""
    return max(1, int(parse_quantity(value)))
