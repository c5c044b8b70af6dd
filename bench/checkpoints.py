"""Whether the last good checkpoint always loads: its writer killed at random points, and the disk full.

1. A process that writes checkpoints one after another dies by SIGKILL after a random time, again and again in the same
   folder. Whatever it had called written must load, every byte verified, and nothing that has its name may be damaged.
2. The same with a small tmpfs (needs the right to mount one): its size is random, so that the disk is full at a random
   place of a checkpoint. What was written before must load, and the failed write must have left no trace.
3. A real job (`heterotrain run`, 2 parameter servers, 2 workers, a checkpoint every two rounds): its parameter server
   0, which writes them, dies by SIGKILL at random times. Each time the job must go on from the newest checkpoint that
   loaded when the process was dead.
4. A real job whose checkpoints lie on a tmpfs that is full after a few: it must train on, say that checkpoints fail,
   and after its parameter server 1 is killed go on from the last good one.
Usage: bench/checkpoints.py [--times 50] [--only writer|disk|job|full] [--seed 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from heterotrain.checkpoint.folder import CheckpointFolder
from support.killed_writer import fill_disk, kill_writer, look, seconds_of_a_write
from support.recovery import SCRIPT, Job, run_job, start_job, write_job

WRITER_BYTES = 24_000_000
LARGE = SCRIPT.replace("nn.Linear(8, 16), nn.BatchNorm1d(16)", "nn.Linear(8, 4096), nn.BatchNorm1d(4096)").replace(
    "nn.Linear(16, 3)", "nn.Linear(4096, 64), nn.Linear(64, 3)"
)
"""300,000 parameters, so that a checkpoint takes a while."""
FOR_LONG = LARGE.replace("session.epochs(3)", "session.epochs(100_000)")
GOES_ON = re.compile(r"term (\d+) goes on from version (\d+)")


def killed_writer(times: int, random: Random) -> dict[str, Any]:
    """Part 1."""
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="heterotrain-checkpoints-") as folder:
        path = Path(folder) / "checkpoints"
        seconds = seconds_of_a_write(path, WRITER_BYTES)
        for number in range(times):
            killed = kill_writer(path, num_bytes=WRITER_BYTES, seconds=random.uniform(0.0, 3.0 * seconds))
            if not killed.whole:
                raise SystemExit(f"kill {number}: {killed}")
            found.append(", ".join(killed.unfinished) or "nothing half done")
            print(f"  kill {number + 1:>2}: version {killed.newest:>3} loads; left behind: {found[-1]}", flush=True)
    return {"kills": times, "seconds_of_a_write": seconds, "left_behind": dict(Counter(found))}


def full_disk(times: int, random: Random) -> dict[str, Any]:
    """Part 2."""
    errors: Counter[str] = Counter()
    for number in range(times):
        with tempfile.TemporaryDirectory(prefix="heterotrain-full-") as folder:
            # Three are kept and a fourth is written beside them: any size below four is too small, above one enough.
            size = random.randrange(1_100_000, 3_900_000)
            with tmpfs(Path(folder), size):
                killed, error = fill_disk(Path(folder) / "checkpoints", num_bytes=1_000_000)
                again = look(Path(folder) / "checkpoints", killed.announced)
                if not killed.whole or killed.newest < 1 or killed.unfinished or again.newest != killed.announced:
                    raise SystemExit(f"disk {number} of {size} bytes: {killed}")
                errors[error.strerror or str(error)] += 1
                print(f"  disk {number + 1:>2}: {size:>9,} bytes, version {killed.newest} loads", flush=True)
    return {"disks": times, "errors": dict(errors)}


def killed_job(times: int, random: Random) -> dict[str, Any]:
    """Part 3."""
    half_written, behind, seconds = 0, [], []
    with tempfile.TemporaryDirectory(prefix="heterotrain-checkpoints-") as name:
        folder = Path(name)
        write_job(
            folder, script=FOR_LONG, checkpoint={"everyRounds": 2, "keep": 3}, runPolicy={"backoffLimit": times + 1}
        )
        checkpoints = folder / "out" / "checkpoints"
        with start_job(folder, pause=0.02) as job:
            for number in range(times):
                wait_until(job, partial(saved_since, job, number, checkpoints))
                time.sleep(random.uniform(0.0, 1.0))
                began = time.monotonic()
                kill(server_of(job, "ps-0"))
                half_written += any(entry.suffix == ".part" for entry in checkpoints.iterdir())
                expected = newest(checkpoints)
                wait_until(job, partial(went_back, job, number + 1))
                seconds.append(time.monotonic() - began)
                if expected_of(job) != expected:
                    raise SystemExit(f"kill {number}: version {expected} loads, the job took {expected_of(job)}")
                behind.append(expected)
                print(f"  kill {number + 1:>2}: goes on from version {expected} after {seconds[-1]:.1f} s", flush=True)
            wait_until(job, partial(saved_since, job, times, checkpoints))  # else there is no model to save yet
            job.process.send_signal(signal.SIGINT)
            run = job.finish(timeout=120.0)
        report = run.report
        if (
            report["state"] != "Stopped"
            or report["restores"] != times
            or not (folder / "out" / "model.safetensors").exists()
        ):
            raise SystemExit(f"the job did not end well:\n{run.output}")
    return {
        "kills": times,
        "half_written": half_written,
        "versions": behind,
        "median_seconds": statistics.median(seconds),
        "rounds_lost": report["rounds_lost"],
    }


def full_job(_times: int, _random: Random) -> dict[str, Any]:
    """Part 4."""
    with tempfile.TemporaryDirectory(prefix="heterotrain-full-") as name:
        folder = Path(name)
        write_job(folder, script=LARGE, checkpoint={"everyRounds": 5, "keep": 3})
        checkpoints = folder / "out" / "checkpoints"
        checkpoints.mkdir(parents=True)
        with tmpfs(checkpoints, 9_500_000):  # two checkpoints of 3.6 MB, and a part of a third
            run = run_job(folder, fault="ps-1:commit:43", pause=0.02)
            report, log = run.report, run.coordinator_log
            last = newest(checkpoints)
        restored = [int(version) for _, version in GOES_ON.findall(log)]
        failed = log.count("CheckpointFailed")
        if run.code or report["restores"] != 1 or not failed or restored != [10] or last != 10:
            raise SystemExit(f"restored {restored}, {failed} failed, newest {last}:\n{run.output}\n{log}")
    print(f"  {failed} checkpoints failed for want of room; went on from version {restored[0]}; {report['reason']}")
    return {"checkpoints_failed": failed, "restored": restored, "rounds": report["rounds"]}


@contextmanager
def tmpfs(path: Path, num_bytes: int) -> Iterator[None]:
    """A disk of its own at `path`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def newest(checkpoints: Path) -> int:
    """Version of the newest that loads; -1: none."""
    found = CheckpointFolder(checkpoints).newest().checkpoint
    return found.manifest.progress.version if found is not None else -1


def went_back(job: Job, times: int) -> bool:
    """Whether the job has gone back to a checkpoint so often."""
    return len(GOES_ON.findall(log_of(job))) >= times


def saved_since(job: Job, times: int, checkpoints: Path) -> bool:
    """Whether it has done that, and written a checkpoint since."""
    return went_back(job, times) and newest(checkpoints) > expected_of(job)


def expected_of(job: Job) -> int:
    """The version that the job went back to last; -1: it has not."""
    return max([(int(term), int(version)) for term, version in GOES_ON.findall(log_of(job))], default=(0, -1))[1]


def log_of(job: Job) -> str:
    log = job.folder / "out" / "logs" / "coordinator.log"
    return log.read_text() if log.exists() else ""


def server_of(job: Job, name: str) -> psutil.Process:
    """The process of a parameter server of the job."""
    for process in psutil.Process(job.process.pid).children(recursive=True):
        try:
            if "heterotrain.ps" in process.cmdline() and process.environ().get("HETEROTRAIN_NAME") == name:
                return process
        except psutil.Error:
            continue
    raise SystemExit(f"no {name}:\n{job.output}")


def kill(process: psutil.Process) -> None:
    """Kill it, and wait until it is dead."""
    os.kill(process.pid, signal.SIGKILL)
    until = time.monotonic() + 10.0
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.01)


def wait_until(job: Job, condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait while the job runs."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until or job.process.poll() is not None:
            raise SystemExit(f"the job does not go on:\n{job.output}\n{log_of(job)}")
        time.sleep(0.05)


PARTS: dict[str, tuple[str, Callable[[int, Random], dict[str, Any]]]] = {
    "writer": ("a writer killed at random times", killed_writer),
    "disk": ("a disk that is full at random places", full_disk),
    "job": ("parameter server 0 of a job killed at random times", killed_job),
    "full": ("a job whose disk for checkpoints is full", full_job),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50, help="kills, and disks")
    parser.add_argument("--only", choices=PARTS, help="only this part")
    parser.add_argument("--seed", type=int, default=1, help="of the random times")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    options = parser.parse_args()
    figures: dict[str, Any] = {"seed": options.seed}
    for name, (title, measure) in PARTS.items():
        if options.only in {None, name}:
            print(f"{title}:", flush=True)
            figures[name] = measure(options.times, Random(options.seed))
            print(f"  {json.dumps({k: v for k, v in figures[name].items() if k != 'versions'})}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
