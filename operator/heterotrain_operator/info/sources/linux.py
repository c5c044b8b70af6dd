"""Linux' own files: pressure and times below /proc, and the control group of this process in both versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from heterotrain_operator.info.sources.base import Row

_PRESSURES: Final = ("cpu", "memory", "io")
_CPU_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
_TICKS: Final = float(os.sysconf("SC_CLK_TCK"))


def procfs_series(root: Path) -> Mapping[str, list[Row]]:
    """``pressure_seconds_total`` by resource and kind, ``cpu_seconds_total`` by mode, ``load1``, ``memory_…_bytes``."""
    proc = root / "proc"
    series: dict[str, list[Row]] = {"pressure_seconds_total": [], "cpu_seconds_total": []}
    for resource in _PRESSURES:
        for line in _lines(proc / "pressure" / resource):  # "some avg10=0.00 avg60=0.00 avg300=0.00 total=123"
            kind, *fields = line.split()
            total = dict(field.split("=", 1) for field in fields if "=" in field).get("total")
            if total is not None:
                row = Row({"resource": resource, "kind": kind}, float(total) / 1e6)
                series["pressure_seconds_total"].append(row)
    for line in _lines(proc / "stat")[:1]:
        times = line.split()[1:]
        series["cpu_seconds_total"] = [
            Row({"mode": mode}, float(ticks) / _TICKS) for mode, ticks in zip(_CPU_MODES, times, strict=False)
        ]
    for line in _lines(proc / "loadavg"):
        series["load1"] = [Row({}, float(line.split()[0]))]
    for line in _lines(proc / "meminfo"):
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            key = "memory_total_bytes" if name == "MemTotal" else "memory_available_bytes"
            series[key] = [Row({}, float(rest.split()[0]) * 1024)]
    return series


def cgroup_series(root: Path) -> Mapping[str, list[Row]]:
    """CPU time used and throttled (s), CPU limit (cores), memory used and limit (bytes) of this process' group.

    A limit that is not set has no series.
    """
    base = root / "sys" / "fs" / "cgroup"
    places = _places(root / "proc" / "self" / "cgroup")
    found = _version2(_folder(base, places.get("", "/"))) if "" in places else {}
    if not found:
        cpu = _folder(base / "cpu", places.get("cpu", "/"))
        memory = _folder(base / "memory", places.get("memory", "/"))
        found = _version1(cpu, _folder(base / "cpuacct", places.get("cpuacct", "/")), memory)
    return {name: [Row({}, value)] for name, value in found.items() if value is not None}


def _folder(base: Path, place: str) -> Path:
    """The group's folder; in a container the path in /proc may be that of the host, and the mount is the group."""
    own = base / place.lstrip("/")
    return own if own.is_dir() else base


def _places(path: Path) -> dict[str, str]:
    """Paths of this process' groups by controller; version 2 has none."""
    places: dict[str, str] = {}
    for line in _lines(path):
        _, controllers, place = line.split(":", 2)
        places |= dict.fromkeys(controllers.split(","), place)
    return places


def _version2(folder: Path) -> dict[str, float | None]:
    stat = _fields(folder / "cpu.stat")
    if "usage_usec" not in stat:
        return {}
    return {
        "cpu_seconds_total": stat["usage_usec"] / 1e6,
        "cpu_throttled_seconds_total": _scaled(stat.get("throttled_usec"), 1e-6),
        "cpu_throttled_periods_total": stat.get("nr_throttled"),
        "cpu_limit_cores": _ratio(*(" ".join(_lines(folder / "cpu.max")) + " max max").split()[:2]),
        "memory_used_bytes": _number(folder / "memory.current"),
        "memory_limit_bytes": _number(folder / "memory.max"),
    }


def _version1(cpu: Path, account: Path, memory: Path) -> dict[str, float | None]:
    stat = _fields(cpu / "cpu.stat")
    quota, period = ("".join(_lines(cpu / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
    limit = _number(memory / "memory.limit_in_bytes")
    return {
        "cpu_seconds_total": _scaled(_number(account / "cpuacct.usage"), 1e-9),
        "cpu_throttled_seconds_total": _scaled(stat.get("throttled_time"), 1e-9),
        "cpu_throttled_periods_total": stat.get("nr_throttled"),
        "cpu_limit_cores": _ratio(quota, period),
        "memory_used_bytes": _number(memory / "memory.usage_in_bytes"),
        "memory_limit_bytes": limit if limit is not None and limit < 2**62 else None,
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _ratio(quota: str, period: str) -> float | None:
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:  # "max", "-1": no limit
        return None
    return int(quota) / int(period)


def _number(path: Path) -> float | None:
    text = "".join(_lines(path)).strip()
    return float(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, float]:
    pairs = (line.split() for line in _lines(path))
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _lines(path: Path) -> list[str]:
    """Lines of a small file; none if it is not there or not for us."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
