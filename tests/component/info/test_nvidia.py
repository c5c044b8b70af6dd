"""The NVIDIA source asks a real program; drivers before 535 know one of the names as another."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain_operator.info.sources.base import Reason, Row, SourceError
from heterotrain_operator.info.sources.nvidia import nvidia_series

LINE = "0, GPU-aa, 37, 1024, 81559, 1410, 1980, 44, 120.50, 700.00, 0x0000000000000004"
OF_DRIVER = {
    "new": f"case $1 in *clocks_event_reasons.active*) echo '{LINE}';; *) exit 2;; esac",
    "old": f"case $1 in *clocks_throttle_reasons.active*) echo '{LINE}';; *) exit 2;; esac",
}


def install(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("driver", ["new", "old"])
async def test_devices_are_read_with_new_and_with_old_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    install(tmp_path, OF_DRIVER[driver])
    monkeypatch.setenv("PATH", str(tmp_path))
    labels = {"gpu": "0", "uuid": "GPU-aa"}
    series = await nvidia_series()
    assert series["gpu_utilization_ratio"] == [Row(labels, 0.37)]
    assert series["gpu_throttled"] == [Row(labels, 1.0)]


@pytest.mark.parametrize("script", [None, "exit 9"], ids=["there is no nvidia-smi", "it reaches no driver"])
async def test_a_machine_without_devices_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    if script is not None:
        install(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="nvidia-smi") as caught:
        await nvidia_series()
    assert caught.value.reason is Reason.COMMAND
