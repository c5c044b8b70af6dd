"""The information source on a real device: what it reads is what the device does."""

from __future__ import annotations

import threading

import torch

from heterotrain_operator.info.sources.nvidia import nvidia_series


async def test_utilization_memory_and_clocks_follow_the_load() -> None:
    stop = threading.Event()
    held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    matrix = torch.randn(4096, 4096, device="cuda")

    def work() -> None:
        while not stop.is_set():
            torch.mm(matrix, matrix)
            torch.cuda.synchronize()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        # The driver's figure is a mean over up to a second: the last of several is of the load alone.
        for _ in range(8):
            series = await nvidia_series()
    finally:
        stop.set()
        worker.join()
    figures = {name: rows[0].value for name, rows in series.items() if rows}
    print(figures)
    _, total = torch.cuda.mem_get_info()
    assert figures["gpu_utilization_ratio"] > 0.5
    assert figures["gpu_utilization_ratio"] <= 1.0
    assert figures["gpu_memory_used_bytes"] >= held.nbytes
    assert abs(figures["gpu_memory_total_bytes"] - total) < 0.05 * total
    assert 0 < figures["gpu_sm_clock_hertz"] <= figures["gpu_sm_clock_max_hertz"] < 5e9
    assert {row.labels["gpu"] for row in series["gpu_utilization_ratio"]} >= {"0"}
