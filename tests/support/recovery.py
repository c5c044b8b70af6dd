"""Local jobs of which one process is killed at a set place: how long they take to go on, and what they end with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import yaml

from support.zygote import Process, Zygote

FAULTS = Path(__file__).parent / "faults"
FORKED_RUN = Path(__file__).parent / "scripts" / "forked_run.py"
ROUNDS = 60
SAMPLES = 160
BATCH = 8
SECONDS_TO_END = 60.0
SCRIPT = """
import os, time
import torch
from torch import nn
import heterotrain

made = torch.Generator().manual_seed(1)
data = torch.utils.data.TensorDataset(
    torch.randn(160, 8, generator=made), torch.randint(0, 3, (160,), generator=made))
session = heterotrain.join(batch_size=8, seed=3)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
model, optimizer, loader = session.prepare(net, torch.optim.AdamW, data, lr=0.01)
scheduler = session.schedule(torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5))
for epoch in session.epochs(3):
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        scheduler.step()
        time.sleep(0 if os.path.exists("hurry") else float(os.environ.get("PAUSE", "0")))
    session.report(accuracy=session.evaluate(lambda m, x, y: (m(x).argmax(1) == y).sum(), data))
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A job that has ended."""

    code: int
    output: str
    folder: Path
    recovery_seconds: float | None
    """From the kill to the first round that was trained after it."""
    killed_at: float | None = None
    """Seconds since the epoch."""

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / "out" / "report.json").read_text())
        return report

    @property
    def restored_version(self) -> int:
        """Version of the checkpoint that the job went back to."""
        [words] = [event["message"] for event in self.report["events"] if event["reason"] == "Restored"]
        found = re.search(r"goes on from version (\d+)", words)
        return int(found[1]) if found else 0

    @property
    def coordinator_log(self) -> str:
        return (self.folder / "out" / "logs" / "coordinator.log").read_text()

    def seconds_until(self, event: str) -> float:
        """From the kill until the coordinator logged a line with `event` that is not older."""
        assert self.killed_at is not None
        for line in self.coordinator_log.splitlines():
            if event in line:
                at = datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp()
                if at >= self.killed_at - 0.01:
                    return at - self.killed_at
        raise AssertionError(f"no {event} after the fault:\n{self.coordinator_log}")

    @property
    def samples(self) -> dict[int, tuple[int, list[int]]]:
        """Epoch and samples of each round, those of its last time."""
        lines = [
            [*map(int, line.split())]
            for path in sorted((self.folder / "out" / "logs").glob("*.samples"))
            for line in dict.fromkeys(path.read_text().splitlines())
        ]
        rounds: dict[int, tuple[int, list[int]]] = {}
        for epoch, iteration, *indices in lines:
            rounds.setdefault(iteration, (epoch, []))[1].extend(indices)
        return {iteration: (epoch, sorted(indices)) for iteration, (epoch, indices) in sorted(rounds.items())}


def write_job(folder: Path, *, servers: int = 2, script: str = SCRIPT, **spec: Any) -> Path:
    """Write the script and a manifest beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recovering.py").write_text(script)
    document = {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": "recovering"},
        "spec": {
            "image": "x",
            "command": ["python", "-m", "recovering"],
            "globalBatchSize": BATCH,
            "seed": 3,
            "adaptation": {"mode": "Off"},
            "parameterServers": {"replicas": servers},
            "workers": [{"name": "big", "batch": {"initial": 5}}, {"name": "small"}],
            "checkpoint": {"everyRounds": 10, "keep": 3},
            **spec,
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


class Runner(Protocol):
    """The part of `subprocess.Popen` that is used of the process of ``heterotrain run``."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True)
class ForkedRunner:
    """A runner that a zygote forked, used as one that was started."""

    process: Process

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self.process.wait(SECONDS_TO_END if timeout is None else timeout)

    def send_signal(self, sig: int) -> None:
        self.process.kill(sig)

    def kill(self) -> None:
        self.process.kill()


@dataclass
class Job:
    """A job that runs in `folder`."""

    process: Runner
    folder: Path

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def wait_for(self, words: str, *, times: int = 1, seconds: float = 120.0) -> None:
        """Wait until the coordinator has logged `words` so often."""
        log, until = self.folder / "out" / "logs" / "coordinator.log", time.monotonic() + seconds
        while not log.exists() or log.read_text().count(words) < times:
            if time.monotonic() > until or self.process.poll() is not None:
                raise TimeoutError(f"no {words}: {self.output}\n{log.read_text() if log.exists() else ''}")
            time.sleep(0.05)

    def hurry(self) -> None:
        """Have the workers pause no more."""
        (self.folder / "hurry").touch()

    def finish(self, recovered: float | None = None, timeout: float = 200.0) -> Run:
        """Wait for the end."""
        code = self.process.wait(timeout)
        killed = self.folder / "killed"
        killed_at = killed.stat().st_mtime if killed.exists() else None
        return Run(code, self.output, self.folder, recovered, killed_at)


def fork_run(zygote: Zygote, folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> ForkedRunner:
    """``heterotrain`` with these words in `folder`, forked as its job's processes are (`scripts.forked_run`).

    What it says is in the file ``output`` there.
    """
    return ForkedRunner(zygote.start([str(FORKED_RUN), str(folder), *words], environment, folder, "forked"))


@contextmanager
def start_job(
    folder: Path,
    *arguments: str,
    fault: str = "",
    fault_signal: str = "SIGKILL",
    pause: float = 0.0,
    zygote: Zygote | None = None,
) -> Iterator[Job]:
    """Run the job in `folder`; with `fault` (see `faults.sitecustomize`) a process dies, or worse, on the way.

    With `zygote` all processes are forked rather than started.
    """
    environment: Mapping[str, str] = {
        **os.environ,
        "HETEROTRAIN_HOME": str(folder / "home"),
        "PAUSE": str(pause),
        **(
            {
                "FAULT": fault,
                "FAULT_FILE": str(folder / "killed"),
                "FAULT_SIGNAL": fault_signal,
                "PYTHONPATH": str(FAULTS),
            }
            if fault
            else {}
        ),
    }
    command = "import sys; from heterotrain_operator import cli; cli.main(sys.argv[1:])"
    words = ["run", "job.yaml", "--plain", "--report", "out", "--log-samples", *arguments]
    if zygote is not None:
        process: Runner = fork_run(zygote, folder, words, environment)
    else:
        with (folder / "output").open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", command, *words],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
    try:
        yield Job(process, folder)
    finally:
        process.kill()
        process.wait()


def run_job(
    folder: Path,
    *arguments: str,
    fault: str = "",
    told: bool = False,
    stopped_seconds: float | None = None,
    pause: float = 0.0,
    timeout: float = 200.0,
    zygote: Zygote | None = None,
) -> Run:
    """Run the job in `folder` to its end.

    `told`: the process of `fault` dies by SIGTERM. `stopped_seconds`: it does not die, but stands still for so long.
    """
    number = "SIGTERM" if told else "SIGKILL" if stopped_seconds is None else "SIGSTOP"
    with start_job(folder, *arguments, fault=fault, fault_signal=number, pause=pause, zygote=zygote) as job:
        recovered = _wait(job.process, folder, folder / "killed", timeout, stopped_seconds)
        return job.finish(recovered)


def _wait(process: Runner, folder: Path, killed: Path, timeout: float, stopped_seconds: float | None) -> float | None:
    """Wait for the end; returns the time from the kill to the first round after it."""
    until = time.monotonic() + timeout
    size_before, recovered = 0, None
    while process.poll() is None:
        if time.monotonic() > until:
            raise TimeoutError((folder / "output").read_text())
        size = sum(path.stat().st_size for path in (folder / "out" / "logs").glob("*.samples"))
        if stopped_seconds is not None and killed.exists() and time.time() - killed.stat().st_mtime > stopped_seconds:
            with suppress(ProcessLookupError):
                os.kill(int(killed.read_text()), signal.SIGCONT)
            stopped_seconds = None
        if recovered is None and killed.exists():
            since = time.time() - killed.stat().st_mtime
            if since < 1.0:
                size_before = size  # what was under way may still have been written down
            elif size > size_before:
                recovered = since
        time.sleep(0.05)
    return recovered
