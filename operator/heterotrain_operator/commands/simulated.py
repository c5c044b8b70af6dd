"""What a simulation or a replay came to, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from heterotrain_core.simulate_values import SimulationResult, Start

ROWS: Final = 20
"""Workers shown in the table; `--json` has all."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What the simulation took on this machine."""

    seconds: float
    arrivals_per_second: float
    peak_memory_mebibytes: float


def result_document(mode: str, result: SimulationResult, cost: Cost, *, log: bool) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    document: dict[str, Any] = {
        "mode": mode,
        "seconds": result.seconds,
        "end_reason": result.end_reason,
        "rounds": result.rounds,
        "gradients": result.gradients,
        "dropped": result.dropped,
        "samples": result.samples,
        "largest_staleness": result.largest_staleness,
        "staleness_histogram": {str(tau): count for tau, count in result.staleness_histogram.items()},
        "workers": [
            {"name": w.name, "iterations": w.iterations, "waiting_seconds": w.waiting_seconds} for w in result.workers
        ],
        "cost": {
            "seconds": round(cost.seconds, 3),
            "arrivals_per_second": round(cost.arrivals_per_second),
            "peak_memory_mebibytes": round(cost.peak_memory_mebibytes, 1),
        },
    }
    if log:
        document["log"] = [
            {"event": "start", "seconds": e.seconds, "worker": e.worker, "clock": e.clock, "version": e.version}
            if isinstance(e, Start)
            else {"event": "close", "seconds": e.seconds, "version": e.version, "staleness": dict(e.staleness)}
            for e in result.log
        ]
    return document


def print_result(console: Console, mode: str, result: SimulationResult, cost: Cost, *, log: bool) -> None:
    """A few lines, a table of the workers, and the log if wanted."""
    mean = sum(tau * n for tau, n in result.staleness_histogram.items()) / max(1, result.gradients)
    histogram = "  ".join(f"{tau}: {n}" for tau, n in result.staleness_histogram.items()) or "none"
    dropped = f", {result.dropped} dropped" if result.dropped else ""
    ended = f" ({result.end_reason})" if result.end_reason else ""
    for line in (
        f"{mode}, {len(result.workers)} workers, {result.seconds:g} s{ended}",
        f"rounds {result.rounds}, gradients {result.gradients}{dropped}, samples {result.samples}",
        f"staleness: largest {result.largest_staleness}, mean {mean:.2f}; {histogram}",
        _cost_line(cost),
    ):
        console.print(line, soft_wrap=True, highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker", overflow="fold")
    for column in ("iterations", "waiting (s)"):
        table.add_column(column, justify="right")
    for worker in result.workers[:ROWS]:
        table.add_row(worker.name, str(worker.iterations), f"{worker.waiting_seconds:g}")
    if len(result.workers) > ROWS:
        table.add_row(f"… {len(result.workers) - ROWS} more", "", "")
    console.print(table)
    if log:
        for line in _log_lines(result):
            console.print(line, soft_wrap=True, highlight=False)


def _cost_line(cost: Cost) -> str:
    speed, memory = cost.arrivals_per_second, cost.peak_memory_mebibytes
    return f"simulated in {cost.seconds:.2f} s, {speed:.0f} arrivals/s, peak memory {memory:.0f} MiB"


def _log_lines(result: SimulationResult) -> Iterator[str]:
    for entry in result.log:
        if isinstance(entry, Start):
            yield f"{entry.seconds:g}  start {entry.worker}  clock {entry.clock}  version {entry.version}"
        else:
            members = ", ".join(f"{worker} (tau {tau})" for worker, tau in entry.staleness.items())
            yield f"{entry.seconds:g}  close {entry.version}: {members or 'nobody'}"
