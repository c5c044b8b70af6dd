"""NVIDIA devices of this machine, as nvidia-smi tells them: one series by name, with labels ``gpu`` and ``uuid``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heterotrain_operator.info.sources.base import Reason, Row, SourceError
from heterotrain_operator.info.sources.process import output_of

_FIELDS: Final[Mapping[str, tuple[str, float]]] = {
    "gpu_utilization_ratio": ("utilization.gpu", 0.01),
    "gpu_memory_used_bytes": ("memory.used", 2**20),
    "gpu_memory_total_bytes": ("memory.total", 2**20),
    "gpu_sm_clock_hertz": ("clocks.sm", 1e6),
    "gpu_sm_clock_max_hertz": ("clocks.max.sm", 1e6),
    "gpu_temperature_celsius": ("temperature.gpu", 1.0),
    "gpu_power_watts": ("power.draw", 1.0),
    "gpu_power_limit_watts": ("power.limit", 1.0),
}
"""Series, with nvidia-smi's name of it and what its numbers are multiplied by."""
_THROTTLE: Final = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The name since driver 535, and the one before: nvidia-smi refuses a query for one name that it does not know."""
_IDLE: Final = 0x1
"""Of the throttle reasons' bits: the clock is low because there is nothing to do."""


async def nvidia_series() -> Mapping[str, list[Row]]:
    """All devices; raises `SourceError` if there is no nvidia-smi or it fails."""
    newer, older = map(_arguments, _THROTTLE)
    try:
        output = await output_of(newer)
    except SourceError:
        output = await output_of(older)
    return parse_csv(output.decode(errors="replace"))


def _arguments(throttle: str) -> tuple[str, ...]:
    query = ",".join(("index", "uuid", *(name for name, _ in _FIELDS.values()), throttle))
    return ("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits")


def parse_csv(text: str) -> Mapping[str, list[Row]]:
    """nvidia-smi's lines as series; what a device does not tell (``[N/A]``) has no row. Pure."""
    series: dict[str, list[Row]] = {name: [] for name in (*_FIELDS, "gpu_throttled")}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_FIELDS) + 3:
            raise SourceError(Reason.MALFORMED, f"nvidia-smi gives a line of another form: {line[:80]!r}")
        labels = {"gpu": cells[0], "uuid": cells[1]}
        for (name, (_, factor)), cell in zip(_FIELDS.items(), cells[2:-1], strict=True):
            number = _number(cell)
            if number is not None:
                series[name].append(Row(labels, number * factor))
        if cells[-1].startswith("0x"):
            series["gpu_throttled"].append(Row(labels, float(bool(int(cells[-1], 16) & ~_IDLE))))
    return series


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
