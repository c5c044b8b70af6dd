"""A whole job as processes on the loopback, for benchmarks: coordinator, shards, and workers that run a script."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

import grpc
import psutil

from heterotrain_api.contract import Env, Role, ps_name, worker_name
from heterotrain_api.trainer_config import ShardConfig, TrainerConfig, WorkerConfig
from heterotrain_rpc.certificates import Credentials, make_authority
from heterotrain_rpc.channels import make_sync_channel
from heterotrain_rpc.control_pb2 import JobState, WatchRequest
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub
from heterotrain_rpc.identity import Identity

JOB_UID: Final = "bench"
WORKER: Final = Path(__file__).parent / "_worker.py"
START_SECONDS: Final = 120.0
ANSWER_SECONDS: Final = 30.0
ANY_PORTS: Final = ("--host", "127.0.0.1", "--control-port", "0", "--tensor-port", "0")


@dataclass
class BenchJob:
    """A context manager: on entry shards and coordinator answer; on exit all processes are gone.

    Each worker has a share of one sample and runs ``_worker.py`` with `arguments` until it is stopped.
    """

    arguments: Sequence[str]
    num_workers: int
    num_shards: int
    environment: Mapping[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _channel: grpc.Channel | None = None

    def __enter__(self) -> Self:
        now = datetime.now(UTC)
        self._temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        self._authority = make_authority(JOB_UID, now, timedelta(hours=2))
        try:
            self._start_servers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.close()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self._temporary.cleanup()

    def start_workers(self) -> None:
        """Start all workers' processes."""
        own = {Env.COORDINATOR: self.address, Env.DEVICE: "CPU"}
        for name in self.worker_names:
            self._start(name, Role.WORKER, name, [str(WORKER), *self.arguments], own)

    def state(self, seconds: float = ANSWER_SECONDS) -> JobState:
        """The job's state now. Raises `RuntimeError` if a process has ended, `grpc.RpcError` for a late answer."""
        self._check_alive()
        (state,) = self._stub.Watch(WatchRequest(once=True), timeout=seconds)
        return state

    def state_at(self, version: int, seconds: float) -> JobState:
        """The state once `version` is published. Raises `TimeoutError`, and as `state`."""
        deadline = time.monotonic() + seconds
        while (state := self.state()).version < version:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"version {version} is not there after {seconds:g} s: {state.reason}, {state.message}"
                )
            time.sleep(0.1)
        return state

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds of every process that lives, so far."""
        times = {n: psutil.Process(p.pid).cpu_times() for n, p in self.processes.items() if p.poll() is None}
        return {name: t.user + t.system for name, t in times.items()}

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    @property
    def worker_names(self) -> list[str]:
        """In the order of summation."""
        return [worker_name("cpu", i) for i in range(self.num_workers)]

    def _start_servers(self) -> None:
        names = [ps_name(i) for i in range(self.num_shards)]
        for name in names:
            self._start(name, Role.PS, name, ["-m", "heterotrain.ps", *ANY_PORTS, "--threads", "1"], {})
        addresses = [{kind: f"127.0.0.1:{port}" for kind, port in self._ready(name).items()} for name in names]
        config = TrainerConfig(
            job_name="bench",
            job_uid=JOB_UID,
            seed=7,
            global_batch_size=self.num_workers,
            workers=tuple(WorkerConfig(name=n, group="cpu", share=1, minimum=1, maximum=1) for n in self.worker_names),
            shards=tuple(ShardConfig(control_address=a["control"], tensor_address=a["tensor"]) for a in addresses),
            output=str(self.folder / "output"),
        )
        path = self.folder / "config.json"
        path.write_text(config.model_dump_json())
        own = {Env.CONFIG: str(path), Env.TERMINATION_LOG: str(self.folder / "outcome.json")}
        arguments = ["-m", "heterotrain.coordinator", "--host", "127.0.0.1", "--port", "0"]
        self._start("coordinator", Role.PS, ps_name(0), arguments, own)
        self.address = f"127.0.0.1:{self._ready('coordinator')['control']}"
        self._channel = make_sync_channel(self.address, ps_name(0), self._issue(Role.OPERATOR, "operator"))
        self._stub = CoordinatorStub(self._channel)

    def _check_alive(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended with exit code {process.returncode}: {self.log(name)[-2000:]}")

    def _issue(self, role: Role, name: str) -> Credentials:
        return self._authority.issue(Identity(JOB_UID, role, name), datetime.now(UTC), timedelta(hours=1))

    def _start(self, process: str, role: Role, name: str, arguments: Sequence[str], own: Mapping[str, str]) -> None:
        folder = self.folder / "certificates" / name
        self._issue(role, name).write(folder)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HETEROTRAIN_")} | {
            Env.JOB_NAME: "bench",
            Env.JOB_UID: JOB_UID,
            Env.NAME: name,
            Env.CERTIFICATES: str(folder),
            "OMP_NUM_THREADS": "1",
            **own,
            **self.environment,
        }
        with (self.folder / f"{process}.log").open("wb") as log:
            self.processes[process] = subprocess.Popen(
                [sys.executable, *arguments], env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def _ready(self, process: str) -> dict[str, int]:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.processes[process].poll() is None:
            for line in self.log(process).splitlines():
                if line.startswith("ready "):
                    return {key: int(port) for key, port in (pair.split("=") for pair in line.split()[1:])}
            time.sleep(0.02)
        raise RuntimeError(f"{process} does not answer: {self.log(process)[-2000:]}")
