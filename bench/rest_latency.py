"""Latency of the REST API while it collects: 100 entities x 50 metrics each 5 s, 50 requests a second.

The server is a real `heterotrain info serve` that collects from an exporter of this process; requests are a
scheduler's: newest values of one metric, of one entity, a page of everything, a span of one series. Latencies mean
something on a quiet machine only, so the CPU time that the server takes for a request is printed too.
Usage: python bench/rest_latency.py [--seconds 30] [--entities 100]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.info_server import TOKEN, InfoServer, chain, collection, info_server, processing

METRICS = 50
RATE = 50.0
INTERVAL = 5.0


def exposition(entities: int) -> bytes:
    """All series of one scrape; the values change with time."""
    now = time.time()
    return "".join(
        f'm{metric}{{instance="n{entity}"}} {(now * (metric + 1) + entity) % 97:.3f}\n'
        for metric in range(METRICS)
        for entity in range(entities)
    ).encode()


async def serve_exposition(entities: int) -> tuple[asyncio.Server, int]:
    """One answer for each connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" + exposition(entities))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


def rules(port: int) -> list[dict[str, Any]]:
    source = {"endpoint": {"url": f"http://127.0.0.1:{port}/metrics"}}
    collect = collection(
        "all",
        source=source,
        metrics=[{"name": f"m{index}"} for index in range(METRICS)],
        entity=[{"name": "node/{instance}"}],
        interval=INTERVAL,
        cardinality=100_000,
    )
    smooth = [
        processing(f"smooth-{index}", **chain(f"m{index}", f"smooth_{index}", {"operator": "ewma_t", "half_life": 15}))
        for index in range(0, METRICS, 10)
    ]
    return [collect, *smooth]


def questions(entities: int) -> Sequence[tuple[str, dict[str, Any]]]:
    return [
        ("/v1/latest", {"metric": "m7"}),
        ("/v1/latest", {"entity": f"node/n{entities // 2}"}),
        ("/v1/latest", {"entity": "node/*", "metric": ["m1", "m2", "smooth_10"], "limit": 300}),
        ("/v1/samples", {"entity": "node/n3", "metric": "m3"}),
        ("/v1/latest", {"limit": 1000}),
    ]


class Wire:
    """One connection. A client that costs little, so that it is the server that is measured."""

    def __init__(self, server: InfoServer) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, path: str) -> bytes:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._server.port)
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        return await reader.readexactly(int(length.split(b":")[1]))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def ask(server: InfoServer, entities: int, seconds: float) -> list[tuple[str, float]]:
    """(question, seconds) of each request, sent at a steady rate whatever the answers take."""
    took: list[tuple[str, float]] = []
    idle: list[Wire] = []

    async def one(due: float, path: str) -> None:
        wire = idle.pop() if idle else Wire(server)
        body = await wire.get(path)
        took.append((path, time.perf_counter() - due))
        assert b'"value":' in body
        idle.append(wire)

    paths = [f"{path}?{urlencode(parameters, doseq=True)}" for path, parameters in questions(entities)]
    async with asyncio.TaskGroup() as group:
        began = time.perf_counter()
        for index, path in zip(range(int(seconds * RATE)), itertools.cycle(paths), strict=False):
            due = began + index / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            group.create_task(one(due, path))
    for wire in idle:
        wire.close()
    return took


def figures(times: Sequence[float]) -> str:
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{len(ordered):7d} {statistics.median(ordered) * 1e3:8.1f} {p99 * 1e3:8.1f} {ordered[-1] * 1e3:8.1f}"


def wait_for(server: InfoServer, entity: str, metric: str) -> None:
    while server.value(entity, metric) is None:
        time.sleep(0.2)


async def measure(folder: Path, entities: int, seconds: float) -> None:
    exporter, port = await serve_exposition(entities)
    with await asyncio.to_thread(info_server, folder, rules=rules(port)) as server:
        print(f"{entities} entities x {METRICS} metrics each {INTERVAL:g} s, {RATE:g} requests/s for {seconds:g} s")
        await asyncio.to_thread(wait_for, server, f"node/n{entities - 1}", f"m{METRICS - 1}")
        process = psutil.Process(server.process.pid)
        await asyncio.sleep(3 * INTERVAL)
        idle = sum(process.cpu_times()[:2])
        await asyncio.sleep(2 * INTERVAL)
        idle = (sum(process.cpu_times()[:2]) - idle) / (2 * INTERVAL)
        before, began = sum(process.cpu_times()[:2]), time.perf_counter()
        took = await ask(server, entities, seconds)
        busy = (sum(process.cpu_times()[:2]) - before) - idle * (time.perf_counter() - began)
        cost = await asyncio.to_thread(server.value, "service/information", "service_microseconds_per_sample")
    exporter.close()
    print(f"{'':84}      n   p50 ms   p99 ms   max ms")
    for question in dict.fromkeys(question for question, _ in took):
        print(f"{question:84} {figures([time for name, time in took if name == question])}")
    print(f"{'all':84} {figures([time for _, time in took])}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"CPU of the server: {busy / len(took) * 1e3:.1f} ms a request, {idle:.1%} of a core for collecting;")
    print(f"storing and processing a sample: {cost:.1f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--entities", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), arguments.entities, arguments.seconds))


if __name__ == "__main__":
    main()
