"""Does the coordinator answer while shard 0, beside it, is busy with a large update? Exits with 1 if an answer is late.

    python bench/busy_shard.py                       # 1 GB of parameters: about 8 GB of memory, a minute
    python bench/busy_shard.py --megabytes 4000 --optimizer Adam --rounds 5

One worker pushes constant gradients as fast as it can; meanwhile the state is asked for every few milliseconds, each
call with a deadline. *During an update*: answers between the worker's last gradient byte and the new version, told by
what the coordinator itself says (a gradient is done, its version is not there yet).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from _job import BenchJob

START_SECONDS = 600.0
PAUSE_SECONDS = 0.01
OPTIMIZERS = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 1e-3}, "AdamW": {"lr": 1e-3}}


@dataclass
class Answers:
    """Seconds that answers took, and how many did not come in time."""

    seconds: list[float] = field(default_factory=list)
    late: int = 0

    def summary(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        if not ordered:
            return {"answers": 0, "late": self.late}
        return {
            "answers": len(ordered),
            "late": self.late,
            "median": statistics.median(ordered),
            "p99": ordered[int(0.99 * (len(ordered) - 1))],
            "longest": ordered[-1],
        }


def measure(num_bytes: int, optimizer: str, rounds: int, limit: float) -> dict[str, Any]:
    """Answer times over `rounds` rounds, as a whole and during updates only."""
    everything, updating = Answers(), Answers()
    with BenchJob([str(num_bytes), optimizer, json.dumps(OPTIMIZERS[optimizer])], 1, 1) as job:
        job.start_workers()
        first = job.state_at(1, START_SECONDS).version
        cpu, began, in_update = job.cpu_seconds()["ps-0"], time.monotonic(), False
        version = first
        while version < first + rounds:
            asked = time.monotonic()
            try:
                state = job.state(limit)
            except grpc.RpcError as error:
                if not isinstance(error, grpc.Call) or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                everything.late += 1
                updating.late += in_update
                continue
            took = time.monotonic() - asked
            version, in_update = state.version, state.workers[0].rounds > state.version
            everything.seconds.append(took)
            if in_update:
                updating.seconds.append(took)
            time.sleep(PAUSE_SECONDS)
        lasted, spent = time.monotonic() - began, job.cpu_seconds()["ps-0"] - cpu
    return {
        "rounds": rounds,
        "seconds_a_round": lasted / rounds,
        "shard_cpu_seconds_a_second": spent / lasted,
        "all": everything.summary(),
        "during_updates": updating.summary(),
    }


def table(result: dict[str, Any], limit: float) -> str:
    lines = [f"{'':16}{'answers':>9}{'median ms':>11}{'p99 ms':>9}{'longest ms':>12}{f'over {limit:g} s':>11}"]
    for title, key in (("all", "all"), ("during updates", "during_updates")):
        r = result[key]
        times = [f"{1000 * r[k]:.1f}" if k in r else "-" for k in ("median", "p99", "longest")]
        lines.append(f"{title:16}{r['answers']:9}{times[0]:>11}{times[1]:>9}{times[2]:>12}{r['late']:11}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the parameters, 10^6 bytes each")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="SGD")
    parser.add_argument("--rounds", type=int, default=4, help="updates to watch (default 4)")
    parser.add_argument("--limit", type=float, default=1.0, help="seconds that an answer may take (default 1)")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    result = measure(options.megabytes * 1_000_000, options.optimizer, options.rounds, options.limit)
    print(
        f"{options.optimizer} on {options.megabytes} MB, {options.rounds} rounds of {result['seconds_a_round']:.1f} s; "
        f"the shard used {result['shard_cpu_seconds_a_second']:.2f} cores; {os.cpu_count()} cores, load {load:.1f}"
    )
    print(table(result, options.limit))
    if options.json:
        circumstances = {
            "megabytes": options.megabytes,
            "optimizer": options.optimizer,
            "limit_seconds": options.limit,
            "cores": os.cpu_count(),
            "load_before": load,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        options.json.write_text(json.dumps({"circumstances": circumstances, "result": result}, indent=2) + "\n")
    if not result["during_updates"]["answers"]:
        print("no answer fell into an update: ask for a larger model or more rounds")
        return 1
    return 1 if result["all"]["late"] else 0


if __name__ == "__main__":
    sys.exit(main())
