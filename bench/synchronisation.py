"""Every mode of synchronisation beside PyTorch DDP (gloo): equal shares on purpose, four unequal workers.

    python bench/synchronisation.py [--speeds 1:1:1:0.25] [--step 0.25] [--seeds 1] [--modes BSP,Delay] [--out DIR]

Each worker computes real gradients of a small network on the digits and sleeps until its step has lasted `--step`
seconds divided by its speed, so that processes that share cores do not disturb each other (the real work's part of the
steps is printed). Steps and samples are the same for all modes and for DDP. Accuracy is measured afterwards on the
parameters that the first worker held, so that no evaluation costs time. Prints a table; writes ``synchronisation.json``
and ``synchronisation.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
import torch
import yaml
from _sync_worker import data, network

SHARE: Final = 15
TARGET: Final = 0.85
TIMEOUT_SECONDS: Final = 900.0
WORKER: Final = Path(__file__).parent / "_sync_worker.py"
MODES: Final[dict[str, dict[str, Any]]] = {
    "BSP": {"mode": "BSP"},
    "SSP": {"mode": "SSP", "stalenessBound": 3},
    "DSSP": {"mode": "DSSP"},
    "ASP": {"mode": "ASP"},
    "Delay": {"mode": "Delay", "stalenessBound": 8, "delayWindowMilliseconds": 5},
    "Backup": {"mode": "Backup", "backupWorkers": 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run. Waiting: mean over the workers of the median step's part without computing; staleness in versions."""

    name: str
    speeds: str
    seed: int
    training_seconds: float
    gradients_per_second: float
    rounds_per_second: float
    waiting_fraction: float
    largest_staleness: int
    mean_staleness: float
    seconds_to_target: float | None
    samples_to_target: float | None
    final_accuracy: float
    cpu_seconds: float
    """Of all processes."""


def s_balance(speeds: Sequence[float]) -> float:
    """What perfect balance gives over equal shares under BSP."""
    return sum(speeds) / (len(speeds) * min(speeds))


def accuracies(folder: Path) -> tuple[list[float], list[float]]:
    """Times and test accuracies of what the first worker held."""
    model, (_, test) = network(0), data()
    images, labels = test.tensors
    times: list[float] = json.loads((folder / "times.json").read_text())
    found = []
    with torch.no_grad():
        for values in torch.load(folder / "values.pt", weights_only=True):
            torch.nn.utils.vector_to_parameters(values, model.parameters())
            found.append(float((model(images).argmax(1) == labels).float().mean()))
    return times, found


def to_target(times: Sequence[float], found: Sequence[float]) -> float | None:
    """First time that two measurements in a row reach the target."""
    return next((t for t, a, b in zip(times, found, found[1:], strict=False) if min(a, b) >= TARGET), None)


def figures(  # one figure each
    name: str, speeds: str, seed: int, folder: Path, *, seconds: float, gradients: int, rounds: int, waiting: float,
    staleness: Mapping[int, int], cpu: float,
) -> Figures:  # fmt: skip
    """Put a run's figures together."""
    times, found = accuracies(folder)
    reached = to_target(times, found)
    return Figures(
        name=name,
        speeds=speeds,
        seed=seed,
        training_seconds=seconds,
        gradients_per_second=gradients / seconds,
        rounds_per_second=rounds / seconds,
        waiting_fraction=waiting,
        largest_staleness=max(staleness, default=0),
        mean_staleness=sum(t * n for t, n in staleness.items()) / max(1, sum(staleness.values())),
        seconds_to_target=reached,
        samples_to_target=None if reached is None else gradients * SHARE * reached / seconds,
        final_accuracy=found[-1],
        cpu_seconds=cpu,
    )


def environment(folder: Path, steps: Sequence[float], seed: int) -> dict[str, str]:
    """What every worker is told."""
    return {
        "BENCH_OUT": str(folder),
        "BENCH_SECONDS": json.dumps(list(steps)),
        "BENCH_SHARE": str(SHARE),
        "BENCH_SEED": str(seed),
        "OMP_NUM_THREADS": "1",
    }


def run_job(name: str, speeds: str, seed: int, steps: Sequence[float], folder: Path) -> Figures:
    """One mode, as ``heterotrain run`` runs it."""
    own = environment(folder, steps, seed)
    manifest = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": f"bench-{name.lower()}"},
        "spec": {
            "image": "bench",
            "command": ["python", str(WORKER)],
            "env": [{"name": key, "value": value} for key, value in own.items()],
            "globalBatchSize": SHARE * len(steps),
            "seed": seed,
            "parameterServers": {"replicas": 1},
            "workers": [{"name": "w", "replicas": len(steps), "batch": {"initial": SHARE, "min": SHARE, "max": SHARE}}],
            "synchronization": MODES[name],
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(manifest))
    command = [sys.executable, "-c", "from heterotrain_operator import cli; cli.main()", "run", str(path), "--plain"]
    before = _children_cpu()
    home = {**os.environ, "HETEROTRAIN_HOME": str(folder / "home")}
    done = subprocess.run(
        [*command, "--report", str(folder / "report")],
        env=home, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    report = json.loads((folder / "report" / "report.json").read_text())
    seen = report["synchronization"]
    workers = report["workers"]
    return figures(
        name, speeds, seed, folder,
        seconds=report["training_seconds"],
        gradients=seen["gradients"],
        rounds=report["rounds"],
        waiting=sum(w["wait_seconds"] / w["step_seconds"] for w in workers) / len(workers),
        staleness={int(tau): n for tau, n in seen["staleness_histogram"].items()},
        cpu=_children_cpu() - before,
    )  # fmt: skip


def run_ddp(speeds: str, seed: int, steps: Sequence[float], folder: Path) -> Figures:
    """PyTorch DDP with the same steps."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(steps))}
    before = _children_cpu()
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER)],
            env={**os.environ, **environment(folder, steps, seed), **shared, "RANK": str(rank)},
        )
        for rank in range(len(steps))
    ]
    deadline = time.monotonic() + TIMEOUT_SECONDS
    codes = [p.wait(max(1.0, deadline - time.monotonic())) for p in processes]
    if any(codes):
        raise SystemExit(f"DDP failed with exit codes {codes}")
    told = [json.loads((folder / f"ddp-{rank}.json").read_text()) for rank in range(len(steps))]
    seconds, rounds = told[0]["seconds"], told[0]["rounds"]
    gradients = rounds * len(steps)
    return figures(
        "DDP", speeds, seed, folder,
        seconds=seconds,
        gradients=gradients,
        rounds=rounds,
        waiting=sum(t["waiting_seconds"] * rounds / seconds for t in told) / len(told),
        staleness={0: gradients},
        cpu=_children_cpu() - before,
    )  # fmt: skip


def _children_cpu() -> float:
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)


def table(runs: Sequence[Figures], speeds: str) -> str:
    """Medians over the seeds, a row a mode."""
    base = median(r.gradients_per_second for r in runs if r.name == "BSP") if _has(runs, "BSP") else None
    lines = [
        f"speeds {speeds}: S_balance {s_balance([float(s) for s in speeds.split(':')]):.2f}, target {TARGET:.0%}",
        "mode      grad/s  x BSP  rounds/s  waiting  tau max   mean  s to target  samples  accuracy",
    ]
    for name in dict.fromkeys(r.name for r in runs):
        mine = [r for r in runs if r.name == name]
        rate = median(r.gradients_per_second for r in mine)
        reached = [r.seconds_to_target for r in mine if r.seconds_to_target is not None]
        samples = [r.samples_to_target for r in mine if r.samples_to_target is not None]
        lines.append(
            f"{name:8}{rate:9.2f}{'' if base is None else f'{rate / base:.2f}':>7}"
            f"{median(r.rounds_per_second for r in mine):10.2f}{median(r.waiting_fraction for r in mine):9.1%}"
            f"{max(r.largest_staleness for r in mine):9}{median(r.mean_staleness for r in mine):7.2f}"
            f"{median(reached) if reached else float('nan'):13.1f}{median(samples) if samples else float('nan'):9.0f}"
            f"{median(r.final_accuracy for r in mine):10.1%}"
        )
    busy = median(r.cpu_seconds / (r.training_seconds * (os.cpu_count() or 1)) for r in runs)
    return "\n".join([*lines, f"CPU time of all processes, starts included: {busy:.0%} of the machine's"])


def _has(runs: Sequence[Figures], name: str) -> bool:
    return any(r.name == name for r in runs)


def plot(runs: Sequence[Figures], path: Path) -> None:
    """Gradients a second and seconds to the target, a bar a mode."""
    import matplotlib as mpl  # seconds to import

    mpl.use("Agg")
    from matplotlib import pyplot

    settings = list(dict.fromkeys(r.speeds for r in runs))
    figure, axes = pyplot.subplots(len(settings), 2, figsize=(9, 3.2 * len(settings)), squeeze=False)
    for row, speeds in zip(axes, settings, strict=True):
        names = list(dict.fromkeys(r.name for r in runs if r.speeds == speeds))
        groups = [[r for r in runs if r.speeds == speeds and r.name == name] for name in names]
        row[0].bar(names, [median(r.gradients_per_second for r in g) for g in groups])
        row[0].set_title(f"gradients/s at {speeds}")
        row[1].bar(names, [median(r.seconds_to_target or 0.0 for r in g) for g in groups])
        row[1].set_title(f"seconds to {TARGET:.0%} at {speeds}")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeds", action="append", help="may be repeated; default 1:1:1:0.25 and 4:3:2:1")
    parser.add_argument("--step", type=float, default=0.25, help="seconds of the fastest worker's step")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--modes", default=",".join(["DDP", *MODES]))
    parser.add_argument("--out", type=Path, default=Path("bench-report"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    runs: list[Figures] = []
    for speeds in options.speeds or ["1:1:1:0.25", "4:3:2:1"]:
        ratios = [float(s) for s in speeds.split(":")]
        steps = [options.step * max(ratios) / ratio for ratio in ratios]
        for seed in range(options.seeds):
            for name in options.modes.split(","):
                with tempfile.TemporaryDirectory() as temporary:
                    folder = Path(temporary)
                    ddp = name == "DDP"
                    run = run_ddp(speeds, seed, steps, folder) if ddp else run_job(name, speeds, seed, steps, folder)
                runs.append(run)
                print(f"{speeds} seed {seed} {name}: {run.gradients_per_second:.2f} gradients/s", flush=True)
                document = {"step_seconds": options.step, "share": SHARE, "runs": [asdict(r) for r in runs]}
                (options.out / "synchronisation.json").write_text(json.dumps(document, indent=2))
        print(table([r for r in runs if r.speeds == speeds], speeds), flush=True)
    plot(runs, options.out / "synchronisation.png")


if __name__ == "__main__":
    main()
