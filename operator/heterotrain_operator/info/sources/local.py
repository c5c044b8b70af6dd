"""The machine itself: psutil, /proc, control groups, and NVIDIA devices by nvidia-smi.

Every reader gives series by fixed names (`psutil_series` and so on); a rule's metric takes one by ``from``.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import psutil

from heterotrain_api.info_collection import CollectionRuleSpec, Reader
from heterotrain_operator.info.sources.base import Reason, Reply, Row, SourceError
from heterotrain_operator.info.sources.linux import cgroup_series, procfs_series
from heterotrain_operator.info.sources.nvidia import nvidia_series

Series: TypeAlias = Mapping[str, list[Row]]

_ROOT: Final = Path("/")


class LocalReader:
    """Reads rules with a local source."""

    def __init__(self, node: str | None = None, root: Path = _ROOT) -> None:
        """`node`: name of this machine; `root`: where proc and sys lie, another one in tests."""
        self._node = node or platform.node() or "localhost"
        self._root = root

    async def read(self, spec: CollectionRuleSpec, now: float) -> Reply:
        """The series that the rule names, with the label ``node``."""
        del now
        source = spec.source.local
        if source is None:
            raise TypeError("not a rule of local")
        series = await self._series(source.reader)
        label = {"node": self._node}
        rows = {
            metric.name: [
                Row({**row.labels, **label}, row.value) for row in series.get(metric.from_ or metric.name, ())
            ]
            for metric in spec.metrics
        }
        return Reply(rows)

    async def _series(self, reader: Reader) -> Series:
        if reader is Reader.NVIDIA:
            return await nvidia_series()
        readers: Mapping[Reader, Callable[[], Series]] = {
            Reader.PSUTIL: psutil_series,
            Reader.PROCFS: lambda: procfs_series(self._root),
            Reader.CGROUP: lambda: cgroup_series(self._root),
        }
        try:
            return await asyncio.to_thread(readers[reader])
        except OSError as error:
            raise SourceError(Reason.CONNECT, f"{reader.value} cannot be read here: {error}") from error


def psutil_series() -> Series:
    """What psutil tells of any system: seconds, bytes, hertz."""
    times, memory, network = psutil.cpu_times(), psutil.virtual_memory(), psutil.net_io_counters(pernic=True)
    frequency = psutil.cpu_freq()
    load = psutil.getloadavg()
    series = {
        "cpu_seconds_total": [Row({"mode": mode}, float(seconds)) for mode, seconds in times._asdict().items()],
        "cpu_count": [Row({}, float(psutil.cpu_count() or 1))],
        "memory_total_bytes": [Row({}, float(memory.total))],
        "memory_available_bytes": [Row({}, float(memory.available))],
        "load1": [Row({}, load[0])],
        "load5": [Row({}, load[1])],
        "network_receive_bytes_total": [Row({"device": nic}, float(n.bytes_recv)) for nic, n in network.items()],
        "network_transmit_bytes_total": [Row({"device": nic}, float(n.bytes_sent)) for nic, n in network.items()],
    }
    if frequency is not None and frequency.current:
        series["cpu_frequency_hertz"] = [Row({}, frequency.current * 1e6)]
    return series
