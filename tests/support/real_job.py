"""A whole job as real processes on loopback: coordinator, shards and workers that run a script."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterotrain_api.contract import Env, Role, ps_name
from heterotrain_api.trainer_config import ShardConfig, StopConfig, SynchronizationConfig, TrainerConfig, WorkerConfig
from support.credentials import JOB_UID, credentials
from support.zygote import ONE_THREAD_AND_FORKS, Process, Zygote, until

SECONDS = 60.0
"""For anything that a process has to do; generous, since machines that test are busy."""


@dataclass
class JobResult:
    """How a job ended. `codes`, `output` and `errors` are the workers', by name."""

    outcome: dict[str, Any]
    codes: dict[str, int]
    output: dict[str, str]
    errors: dict[str, str]
    model: Path


@dataclass
class RealJob:
    """Processes in `folder`; a context manager, which ends whatever still runs."""

    zygote: Zygote
    folder: Path
    shares: Mapping[str, int]
    num_shards: int = 2
    seed: int = 7
    stop: StopConfig = field(default_factory=StopConfig)
    synchronization: SynchronizationConfig = field(default_factory=SynchronizationConfig)
    shard_program: tuple[str, ...] = ("-m", "heterotrain.ps")
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further variables of a process, by its name: ps-0, coordinator, a worker's."""
    workers: dict[str, Process] = field(default_factory=dict)
    shards: list[Process] = field(default_factory=list)

    def __enter__(self) -> RealJob:
        self.folder.mkdir(exist_ok=True)
        ports = ["--control-port", "0", "--tensor-port", "0", "--threads", "1"]
        for i in range(self.num_shards):
            self.shards.append(self._start(ps_name(i), Role.PS, [*self.shard_program, "--host", "127.0.0.1", *ports]))
        path = self.folder / "config.json"
        path.write_text(self._config().model_dump_json())
        own = {Env.CONFIG: str(path), Env.TERMINATION_LOG: str(self.folder / "outcome.json")}
        argv = ["-m", "heterotrain.coordinator", "--host", "127.0.0.1", "--port", "0"]
        self.coordinator = self._start("ps-0", Role.PS, argv, own, "coordinator")
        self.address = f"127.0.0.1:{_ready(self.coordinator)['control']}"
        return self

    def __exit__(self, *_: object) -> None:
        processes = [self.coordinator, *self.shards, *self.workers.values()]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait(SECONDS)

    def start_worker(self, name: str, script: Path, environment: Mapping[str, str] | None = None) -> Process:
        """Start the worker's process on the script."""
        own = {Env.COORDINATOR: self.address, Env.DEVICE: "CPU"} | dict(environment or {})
        self.workers[name] = self._start(name, Role.WORKER, [str(script)], own)
        return self.workers[name]

    def finish(self) -> JobResult:
        """Wait for workers and coordinator to end by themselves."""
        codes = {n: p.wait(SECONDS) for n, p in self.workers.items()}
        self.coordinator.wait(SECONDS)
        return JobResult(
            outcome=json.loads((self.folder / "outcome.json").read_text()),
            codes=codes,
            output={n: p.stdout.read_text() for n, p in self.workers.items()},
            errors={n: p.stderr.read_text() for n, p in self.workers.items()},
            model=self.folder / "output" / "model.safetensors",
        )

    def _config(self) -> TrainerConfig:
        batch = sum(self.shares.values())
        ready = [_ready(p) for p in self.shards]
        return TrainerConfig(
            job_name="test",
            job_uid=JOB_UID,
            seed=self.seed,
            global_batch_size=batch,
            workers=tuple(
                WorkerConfig(name=n, group=n.rpartition("-")[0], share=s, minimum=1, maximum=batch)
                for n, s in self.shares.items()
            ),
            shards=tuple(
                ShardConfig(control_address=f"127.0.0.1:{r['control']}", tensor_address=f"127.0.0.1:{r['tensor']}")
                for r in ready
            ),
            stop=self.stop,
            synchronization=self.synchronization,
            output=str(self.folder / "output"),
        )

    def _start(
        self, name: str, role: Role, argv: list[str], own: Mapping[str, str] | None = None, files: str | None = None
    ) -> Process:
        folder = self.folder / "credentials" / name
        credentials(role, name).write(folder)
        environment = clean_environment() | {
            Env.JOB_NAME: "test", Env.JOB_UID: JOB_UID, Env.NAME: name, Env.CERTIFICATES: str(folder),
        }  # fmt: skip
        own = dict(own or {}) | dict(self.extra.get(files or name, {}))
        return self.zygote.start(argv, environment | own, self.folder, files or name)


def clean_environment() -> dict[str, str]:
    """This process's environment without anything of a job."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HETEROTRAIN_")}
    return kept | ONE_THREAD_AND_FORKS


def _ready(process: Process) -> dict[str, str]:
    def look() -> dict[str, str] | None:
        words = process.stdout.read_text().split()
        return dict(word.split("=") for word in words[1:]) if words[:1] == ["ready"] and len(words) > 1 else None

    return until(look, SECONDS, lambda: f"did not start: {process.stderr.read_text()}")
