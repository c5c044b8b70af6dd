"""How many rounds a second a job makes when nobody computes anything: the fixed cost of a round.

    python bench/rounds.py                                   # 4 workers, 100 KB, 1 and 2 shards, about half a minute
    python bench/rounds.py --workers 8 --bytes 4000000 --shards 4 --json rounds.json

Real processes on the loopback: coordinator, shards, workers that push a constant gradient. Beside rounds a second: CPU
milliseconds a round of each kind of process, which a busy machine disturbs less; and where a worker's round goes,
medians of all workers: *push* (to all shards, with their answers), *wait + pull* (the other workers, the coordinator's
decision, the shards' update, the new version's transfer), *rest* (loader, optimizer proxy, messages).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from _job import BenchJob

WARM_UP_ROUNDS = 30
START_SECONDS = 300.0


def measure(num_workers: int, num_bytes: int, num_shards: int, seconds: float) -> dict[str, Any]:
    """Figures of one job; times in seconds a round."""
    arguments = [str(num_bytes), "SGD", json.dumps({"lr": 0.1})]
    with BenchJob(arguments, num_workers, num_shards) as job:
        job.start_workers()
        job.state_at(WARM_UP_ROUNDS, START_SECONDS)
        cpu, first, began = job.cpu_seconds(), job.state(), time.monotonic()
        time.sleep(seconds)
        lasted, last = time.monotonic() - began, job.state()
        spent = {name: used - cpu[name] for name, used in job.cpu_seconds().items()}
    rounds = last.version - first.version
    if rounds < 1:
        raise SystemExit(f"no round in {seconds:g} s: {last.reason}, {last.message}")
    step, push, pull = (
        statistics.median(getattr(w, f"{what}_seconds") for w in last.workers) for what in ("step", "push", "pull")
    )
    return {
        "shards": num_shards,
        "rounds": rounds,
        "seconds": lasted,
        "rounds_per_second": rounds / lasted,
        "cpu_seconds_a_round": {
            "workers": sum(spent[n] for n in job.worker_names) / rounds,
            "shards": sum(spent[f"ps-{i}"] for i in range(num_shards)) / rounds,
            "coordinator": spent["coordinator"] / rounds,
        },
        "worker_seconds_a_round": {"step": step, "push": push, "wait_and_pull": pull, "rest": step - push - pull},
    }


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        f"{'':8}{'':>10}{'a worker’s round, ms':^38}{'CPU ms a round':^34}",
        (
            f"{'shards':8}{'rounds/s':>10}{'round':>8}{'push':>8}{'wait + pull':>14}{'rest':>8}"
            f"{'workers':>12}{'shards':>9}{'coordinator':>13}"
        ),
    ]
    for r in results:
        worker = {k: 1000 * v for k, v in r["worker_seconds_a_round"].items()}
        cpu = {k: 1000 * v for k, v in r["cpu_seconds_a_round"].items()}
        lines.append(
            f"{r['shards']:<8}{r['rounds_per_second']:10.0f}{worker['step']:8.2f}{worker['push']:8.2f}"
            f"{worker['wait_and_pull']:14.2f}{worker['rest']:8.2f}"
            f"{cpu['workers']:12.2f}{cpu['shards']:9.2f}{cpu['coordinator']:13.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=100_000, help="size of the model (default 100000)")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2], help="parameter servers, a job each")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each job is measured (default 5)")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    results = [measure(options.workers, options.bytes, n, options.seconds) for n in options.shards]
    print(
        f"{options.workers} workers, a model of {options.bytes:,} bytes, no compute; {os.cpu_count()} cores, "
        f"load {load:.1f} before the run"
    )
    print(table(results))
    if options.json:
        circumstances = {
            "workers": options.workers,
            "bytes": options.bytes,
            "cores": os.cpu_count(),
            "load_before": load,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        options.json.write_text(json.dumps({"circumstances": circumstances, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
