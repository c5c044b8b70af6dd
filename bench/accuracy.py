"""Does a job reach the accuracy of the same script run alone? Fashion-MNIST, three seeds; exits with 1 if it does not.

    python bench/accuracy.py                                # 3 seeds, about a quarter of an hour on two cores
    python bench/accuracy.py --seeds 1 --epochs 1 --json accuracy.json

Alone: ``python examples/fashion_cnn.py``. As a job: examples/fashion.yaml, two parameter servers and four workers of
speeds 4:3:2:1. Both have the same global batch, seed, initial values and sample order; what differs is the order in
which floating-point numbers are added. Compared: the test accuracy after the last epoch, in points (0 to 100).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
SCRIPT: Final = ROOT / "examples" / "fashion_cnn.py"
MANIFEST: Final = ROOT / "examples" / "fashion.yaml"
RUN_JOB: Final = "import sys; from heterotrain_operator.cli import main; main(sys.argv[1:])"
TOLERANCE_POINTS: Final = 0.5


@dataclass(frozen=True)
class Pair:
    """One seed: test accuracy in points and seconds, alone and as a job."""

    seed: int
    alone: float
    job: float
    alone_seconds: float
    job_seconds: float

    @property
    def difference(self) -> float:
        return self.job - self.alone


def run(command: Sequence[str], home: Path) -> tuple[str, float]:
    """Output and seconds of a command; raises `SystemExit` with its last words if it fails."""
    began = time.monotonic()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HETEROTRAIN_") or k == "HETEROTRAIN_DATA"}
    environment["HETEROTRAIN_HOME"] = str(home)
    words = [sys.executable, *command]
    done = subprocess.run(
        words, check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout, time.monotonic() - began


def run_alone(seed: int, epochs: int, batch_size: int, home: Path) -> tuple[float, float]:
    """Accuracy in points, seconds."""
    arguments = ["--seed", str(seed), "--epochs", str(epochs), "--batch-size", str(batch_size)]
    output, seconds = run([str(SCRIPT), *arguments], home)
    found = re.findall(r"test accuracy ([\d.]+)", output)
    if len(found) != epochs:
        raise SystemExit(f"{SCRIPT} printed {len(found)} accuracies in {epochs} epochs:\n{output[-2000:]}")
    return 100 * float(found[-1]), seconds


def run_job(seed: int, epochs: int, speeds: str, home: Path) -> tuple[float, float]:
    """Accuracy in points, seconds."""
    report = home / f"report-{seed}"
    overrides = ["--set", f"spec.seed={seed}", "--set", f'spec.args=["--epochs", "{epochs}"]']
    arguments = ["run", str(MANIFEST), "--speeds", speeds, "--report", str(report), "--quiet", *overrides]
    _, seconds = run(["-c", RUN_JOB, *arguments], home)
    return 100 * float(json.loads((report / "report.json").read_text())["accuracy"]), seconds


def table(pairs: Sequence[Pair]) -> str:
    lines = [f"{'seed':>6}{'alone':>9}{'job':>9}{'job - alone':>13}{'alone s':>10}{'job s':>8}"]
    lines += [
        f"{p.seed:6}{p.alone:9.2f}{p.job:9.2f}{p.difference:+13.2f}{p.alone_seconds:10.0f}{p.job_seconds:8.0f}"
        for p in pairs
    ]
    alone, job = statistics.mean(p.alone for p in pairs), statistics.mean(p.job for p in pairs)
    return "\n".join([*lines, f"{'mean':>6}{alone:9.2f}{job:9.2f}{job - alone:+13.2f}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--speeds", default="4:3:2:1", help="relative speeds of the job's workers")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    batch_size = yaml.safe_load(MANIFEST.read_text())["spec"]["globalBatchSize"]
    pairs = []
    with tempfile.TemporaryDirectory() as name:
        for seed in options.seeds:
            alone, alone_seconds = run_alone(seed, options.epochs, batch_size, Path(name))
            job, job_seconds = run_job(seed, options.epochs, options.speeds, Path(name))
            pairs.append(Pair(seed, alone, job, alone_seconds, job_seconds))
            print(f"seed {seed}: alone {alone:.2f}, job {job:.2f}", flush=True)
    difference = statistics.mean(p.difference for p in pairs)
    print(f"test accuracy after {options.epochs} epochs, points; workers of speeds {options.speeds}")
    print(table(pairs))
    if options.json:
        circumstances = {
            "epochs": options.epochs,
            "batch_size": batch_size,
            "speeds": options.speeds,
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "machine": platform.machine(),
        }
        figures = {"seeds": [asdict(p) | {"difference": p.difference} for p in pairs], "mean_difference": difference}
        options.json.write_text(json.dumps({"circumstances": circumstances, "results": figures}, indent=2) + "\n")
    return 1 if abs(difference) > TOLERANCE_POINTS else 0


if __name__ == "__main__":
    sys.exit(main())
