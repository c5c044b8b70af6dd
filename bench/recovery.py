"""How long a job takes to go on without a parameter server (lost at a push, commit, checkpoint) or its coordinator.

Real processes of `heterotrain run` (2 parameter servers, 2 workers, a checkpoint every 10 rounds); the process dies by
SIGKILL at a set place of round 33 of 60. Recovery is the time from the kill to the first round trained after it: the
loss is noticed, the process started again (its imports are most of that), the checkpoint read, the scripts begin anew.
Usage: bench/recovery.py [--times 20] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.recovery import ROUNDS, run_job, write_job

FAULTS = {
    "parameter server 1 at a push": "ps-1:push:33",
    "parameter server 0 at a commit": "ps-0:commit:33",
    "parameter server 0 at a checkpoint": "ps-0:checkpoint:30",
    "coordinator": "ps-0:coordinator:33",
}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="kills of each kind")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    options = parser.parse_args()
    figures = {}
    print(f"{'killed':<36} {'times':>5} {'median s':>9} {'largest s':>9} {'rounds lost (median)':>21}")
    for name, fault in FAULTS.items():
        seconds, lost = measure(fault, options.times)
        figures[name] = {"recovery_seconds": seconds, "rounds_lost": lost}
        median, rounds = statistics.median(seconds), statistics.median(lost)
        print(f"{name:<36} {len(seconds):>5} {median:>9.1f} {max(seconds):>9.1f} {rounds:>21g}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
