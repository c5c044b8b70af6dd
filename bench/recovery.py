"""How long a job takes to go on without a parameter server, its coordinator, or a worker, lost at a set place.

Real processes of `heterotrain run` (2 parameter servers, 2 workers, a checkpoint every 10 rounds); the process dies by
SIGKILL at a set place of round 33 of 60. Recovery is the time from the kill to the first round trained after it: the
loss is noticed, the process started again (its imports are most of that), the checkpoint read, the scripts begin anew.

A job goes on without a worker: it is lost at round 12 of 60, by SIGKILL at its pull, computation, push or done, by
SIGSTOP for 60 s, or by a relay that stops forwarding and closes nothing. Then the times from the fault until the
coordinator has noticed (the others go on from there), and until the worker has joined again. Every run must end well,
with all samples used once.
Usage: bench/recovery.py [--times 20] [--only WORD] [--lease 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.recovery import ROUNDS, SAMPLES, run_job, write_job

FAULTS = {
    "parameter server 1 at a push": "ps-1:push:33",
    "parameter server 0 at a commit": "ps-0:commit:33",
    "parameter server 0 at a checkpoint": "ps-0:checkpoint:30",
    "coordinator": "ps-0:coordinator:33",
}
WORKER_FAULTS: dict[str, tuple[str, dict[str, float]]] = {
    "worker at its pull": ("small-0:worker-pull:12", {"pause": 0.3}),
    "worker at its computation": ("small-0:worker-compute:12", {"pause": 0.3}),
    "worker at its push": ("small-0:worker-push:12", {"pause": 0.3}),
    "worker at its done": ("small-0:worker-done:12", {"pause": 0.3}),
    "worker stopped for 60 s": ("small-0:worker-push:12", {"pause": 2.0, "stopped_seconds": 60.0}),
    "worker cut off": ("small-0:worker-cut:12", {"pause": 2.0}),
}
EPOCHS = 3


def measure(fault: str, times: int) -> tuple[list[float], list[int]]:
    """Recovery times in seconds, and rounds lost; every run must reach its end with all samples used."""
    seconds, lost = [], []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="heterotrain-recovery-") as folder:
            write_job(Path(folder))
            run = run_job(Path(folder), fault=fault)
            if run.code or run.recovery_seconds is None or run.report["rounds"] != ROUNDS:
                raise SystemExit(f"{fault}: the job did not go on:\n{run.output}")
            seconds.append(run.recovery_seconds)
            lost.append(run.report["rounds_lost"])
    return seconds, lost


def measure_worker(fault: str, options: Mapping[str, Any], times: int, lease: int) -> tuple[list[float], list[float]]:
    """Seconds until the loss was noticed, and until the worker was back; every run must use all samples."""
    noticed, back = [], []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="heterotrain-recovery-") as folder:
            write_job(Path(folder), synchronization={"leaseSeconds": lease})
            run = run_job(Path(folder), fault=fault, timeout=400.0, **options)
            if run.code or run.report["samples"] != EPOCHS * SAMPLES:
                raise SystemExit(f"{fault}: the job did not go on:\n{run.output}\n{run.coordinator_log}")
            noticed.append(run.seconds_until("WorkerLost"))
            back.append(run.seconds_until("takes part with a share"))
    return noticed, back


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="faults of each kind")
    parser.add_argument("--only", default="", help="only kinds with this word")
    parser.add_argument("--lease", type=int, default=3, help="leaseSeconds of the jobs that lose a worker")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    options = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    chosen = {name: fault for name, fault in FAULTS.items() if options.only in name}
    if chosen:
        print(f"{'killed':<36} {'times':>5} {'median s':>9} {'largest s':>9} {'rounds lost (median)':>21}")
    for name, fault in chosen.items():
        seconds, lost = measure(fault, options.times)
        figures[name] = {"recovery_seconds": seconds, "rounds_lost": lost}
        median, rounds = statistics.median(seconds), statistics.median(lost)
        print(f"{name:<36} {len(seconds):>5} {median:>9.1f} {max(seconds):>9.1f} {rounds:>21g}", flush=True)
    workers = {name: fault for name, fault in WORKER_FAULTS.items() if options.only in name}
    if workers:
        print(f"\n{'lost':<36} {'times':>5} {'noticed: median s':>18} {'largest s':>9} {'back: median s':>15}")
    for name, (fault, how) in workers.items():
        noticed, back = measure_worker(fault, how, options.times, options.lease)
        figures[name] = {"noticed_seconds": noticed, "back_seconds": back}
        median, returned = statistics.median(noticed), statistics.median(back)
        print(f"{name:<36} {len(noticed):>5} {median:>18.2f} {max(noticed):>9.2f} {returned:>15.1f}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
