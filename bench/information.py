"""What the information service costs: CPU microseconds per sample, and memory over a day of virtual time.

The network is scripted, the clock is virtual, so that all CPU time that is counted is the service's own: asking,
reading, mapping, storing and the derived rules. Usage: python bench/information.py [--quick] [--only cost|memory]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from heterotrain_core.info.values import Entity, Sample
from heterotrain_operator.info.rules import load_rules
from heterotrain_operator.info.store import Limits
from support.info_world import START, World, make_collection, virtual_seconds
from support.scripted_web import Scripted
from support.virtual_time import run_virtual

WAVE_HOURS = 5
"""Within which replacements of entities and hours are in step again."""
DERIVED = """
apiVersion: heterotrain.io/v1alpha1
kind: ProcessingRule
metadata: {{name: smooth-{index}}}
spec:
  inputs: {{x: {{metric: m{index}}}}}
  chain: [{{operator: ewma_t, half_life: 15}}]
  output: {{metric: smooth_m{index}}}
"""


def prometheus_answers(entities: int) -> Callable[[httpx.Request], Scripted]:
    """One vector for each query."""

    def answer(_: httpx.Request) -> Scripted:
        now = virtual_seconds()
        result = [
            {
                "metric": {"__name__": "m", "instance": f"n{index}:9100", "job": "node"},
                "value": [now, f"{now % 97:.3f}"],
            }
            for index in range(entities)
        ]
        return Scripted(json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode())

    return answer


def text_answers(metrics: int) -> Callable[[httpx.Request], Scripted]:
    """An exposition with the wanted series among ten times as many others."""
    others = "".join(f'other_{index}{{cpu="{index}",mode="idle"}} {index}.5\n' for index in range(metrics * 10))

    def answer(_: httpx.Request) -> Scripted:
        now = virtual_seconds()
        return Scripted((others + "".join(f"m{index} {now % 97:.3f}\n" for index in range(metrics))).encode())

    return answer


def make_rules(kind: str, entities: int, metrics: int) -> list[Any]:
    names = [f"m{index}" for index in range(metrics)]
    if kind == "Prometheus":
        return [
            make_collection(
                "all",
                source={"prometheus": {"url": "http://prom:9090"}},
                metrics=[{"name": name, "query": name} for name in names],
                cardinality=100_000,
                timeout=5,
            )
        ]
    return [
        make_collection(
            f"n{entity}",
            source={"endpoint": {"url": f"http://n{entity}:9100/metrics"}},
            metrics=[{"name": name} for name in names],
        )
        for entity in range(entities)
    ]


async def measure(kind: str, entities: int, metrics: int, seconds: float) -> dict[str, float]:
    answers = prometheus_answers(entities) if kind == "Prometheus" else text_answers(metrics)
    scripted = 0.0

    def timed(request: httpx.Request) -> Scripted:
        nonlocal scripted
        began = time.process_time()
        answer = answers(request)
        scripted += time.process_time() - began
        return answer

    world = World(timed)
    for rule in make_rules(kind, entities, metrics):
        world.service.set_rule(rule)
    for index in range(0, metrics, 10):
        world.service.set_rule(load_rules(DERIVED.format(index=index))[0])
    running = asyncio.create_task(world.service.run())
    await asyncio.sleep(10)
    began, before, scripted = time.process_time(), world.engine.outcomes.total(), 0.0
    await asyncio.sleep(seconds)
    used, samples = time.process_time() - began - scripted, world.engine.outcomes.total() - before
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await world.connections.close()
    return {"samples": samples, "microseconds": used / samples * 1e6, "share": used / seconds}


@dataclass(frozen=True, slots=True)
class Hour:
    """Memory of one hour, looked at each virtual minute."""

    number: int
    series: int
    lowest: float
    highest: float
    """MiB that Python has allocated since the start."""


async def day(series: int, hours: int) -> AsyncIterator[Hour]:
    """Each hour as it is over: samples of each series each 10 s, derived values, and all entities give way.

    All entities are replaced within eight minutes each hundred minutes, as pods are by a deployment: for an hour, which
    is how long they are kept, the old ones' samples are held beside the new ones'.
    """
    world = World(limits=Limits(retention_seconds=3600.0, samples_per_series=512))
    world.service.set_rule(load_rules(DERIVED.format(index=0))[0])
    names = [f"m{metric}" for metric in range(9)]
    tracemalloc.start()
    for hour in range(hours):
        sizes: list[float] = []
        for step in range(hour * 360, (hour + 1) * 360):
            now, value = START + step * 10.0, float(step % 89)
            entities = (Entity(f"pod/ns/p{entity}-{(step + entity) // 600}") for entity in range(series // 10))
            world.engine.ingest([Sample(entity, name, now, value) for entity in entities for name in names], now)
            if step % 6 == 0:
                world.engine.sweep(now)
                sizes.append(tracemalloc.get_traced_memory()[0] / 2**20)
        yield Hour(hour + 1, world.store.size[0], min(sizes), max(sizes))
    tracemalloc.stop()


async def print_day(series: int, hours: int) -> None:
    """A table, and whether the second half needs more than the first."""
    began, seen = time.perf_counter(), []
    print(f"\nmemory at {series} series, a sample each 10 s, for {hours} h\nhour   series   lowest MiB   highest MiB")
    async for hour in day(series, hours):
        print(f"{hour.number:4} {hour.series:8} {hour.lowest:12.2f} {hour.highest:13.2f}", flush=True)
        seen.append(hour)
    if hours >= 2 * WAVE_HOURS:
        first, second = (max(hour.highest for hour in part) for part in (seen[: hours // 2], seen[hours // 2 :]))
        print(
            f"highest of the first half {first:.2f} MiB, of the second half {second:.2f} MiB: {second / first - 1:+.1%}"
        )
    print(f"took {time.perf_counter() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the time")
    parser.add_argument("--only", choices=("cost", "memory"), help="one part")
    arguments = parser.parse_args()
    part = 0.1 if arguments.quick else 1.0
    if arguments.only != "memory":
        print("source      entities x metrics   samples   us/sample   CPU share at 5 s")
        for kind, entities, metrics in (("Prometheus", 100, 50), ("text", 100, 50), ("Prometheus", 1000, 50)):
            got = run_virtual(measure(kind, entities, metrics, 100 * part))
            size = f"{entities} x {metrics}"
            print(f"{kind:11} {size:>18} {got['samples']:10.0f} {got['microseconds']:11.1f} {got['share']:16.1%}")
    if arguments.only != "cost":
        run_virtual(print_day(500, round(24 * part)))


if __name__ == "__main__":
    main()
