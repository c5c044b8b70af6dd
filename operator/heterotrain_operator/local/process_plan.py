"""Which processes a local job consists of, and what each is started with. Pure: the runner's own environment is an
argument.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from heterotrain_api.contract import Env, ps_name
from heterotrain_api.v1alpha1 import Device, HeteroTrainJob, Resources
from heterotrain_operator.job.trainer_config import (
    THREAD_VARIABLES,
    Membership,
    WorkerSlot,
    coordinator_environment,
    ps_environment,
    worker_environment,
    worker_slots,
)
from heterotrain_operator.local.cause import Kind
from heterotrain_operator.local.job_folder import JobFolder
from heterotrain_operator.local.quantity import parse_bytes
from heterotrain_operator.local.supervisor import Command

COORDINATOR: Final = "coordinator"
LOOPBACK: Final = "127.0.0.1"
ANY_PORTS: Final[Mapping[str, int]] = MappingProxyType({"control": 0, "tensor": 0})
_OWN_VARIABLES: Final = frozenset(value for name, value in vars(Env).items() if name.isupper())
_PYTHON_NAMES: Final = frozenset({"python", "python3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """What is the same for all processes of one job."""

    job: HeteroTrainJob
    uid: str
    folder: JobFolder
    source: Path
    """Folder of the manifest: the workers' working directory, so that ``python -m script`` finds the script beside
    it."""
    python: str
    """The interpreter that runs us: it has our packages, so it runs theirs."""
    environment: Mapping[str, str]
    """The runner's own."""
    stretches: Mapping[str, float]
    """Pace of each worker, by name; absent: full speed."""
    log_samples: bool = False
    record: bool = False
    """Have the coordinator write down what its policy is told."""
    resume: Path | None = None
    """Checkpoint, or folder of some, to begin from, in place of the one that the manifest names."""
    metrics_port: int | None = None
    """Where the coordinator serves ``/metrics``; the ports after it are the others' (`metrics_ports`)."""

    @property
    def slots(self) -> tuple[WorkerSlot, ...]:
        """All workers in the order of the manifest."""
        return worker_slots(self.job.spec)

    @property
    def num_shards(self) -> int:
        """Number of parameter servers."""
        return self.job.spec.parameter_servers.replicas

    @property
    def metrics_ports(self) -> Mapping[str, int]:
        """Port of ``/metrics`` by process, of those that the job begins with; empty: nobody serves it."""
        if self.metrics_port is None:
            return {}
        names = [COORDINATOR, *map(ps_name, range(self.num_shards)), *(slot.name for slot in self.slots)]
        return {name: self.metrics_port + place for place, name in enumerate(names)}

    def ps_command(self, index: int, ports: Mapping[str, int] = ANY_PORTS) -> Command:
        """A parameter server; it takes any free ports and says which (`ready_ports`), or once more the same ones."""
        name = ps_name(index)
        return Command(
            name=name,
            kind=Kind.PS,
            arguments=[self.python, "-m", "heterotrain.ps", "--host", LOOPBACK, *_ports(ports)],
            environment={
                **base_environment(self.environment, self.python),
                **ps_environment(self._member(name), output=str(self.folder.report)),
                **self._metrics(name),
            },
            folder=self.source,
            log=self.folder.log(name),
            memory_limit_bytes=memory_limit(self.job.spec.parameter_servers.resources),
        )

    def coordinator_command(self, port: int = 0) -> Command:
        """The coordinator, which runs beside shard 0 and has its certificate."""
        return Command(
            name=COORDINATOR,
            kind=Kind.COORDINATOR,
            arguments=[self.python, "-m", "heterotrain.coordinator", "--host", LOOPBACK, "--port", str(port)],
            environment={
                **base_environment(self.environment, self.python),
                **coordinator_environment(
                    self._member(ps_name(0)),
                    config=str(self.folder.config),
                    termination_log=str(self.folder.outcome),
                ),
                **self._metrics(COORDINATOR),
            },
            folder=self.source,
            log=self.folder.log(COORDINATOR),
        )

    def worker_command(self, slot: WorkerSlot, coordinator: str) -> Command:
        """A worker: the user's command. `coordinator`: ``host:port``."""
        spec = self.job.spec
        words = [*spec.command, *spec.args]
        if words[0] in _PYTHON_NAMES:
            words[0] = self.python
        environment = {
            **base_environment(self.environment, self.python),
            **worker_environment(self._member(slot.name), spec, slot.group, coordinator=coordinator),
            **self._metrics(slot.name),
        }
        if slot.group.device is Device.CUDA:
            on_cuda = [other.name for other in self.slots if other.group.device is Device.CUDA]
            # One that was added while the job runs is counted on from the last.
            ordinal = on_cuda.index(slot.name) if slot.name in on_cuda else len(on_cuda) + _index(slot.name)
            environment[Env.CUDA_ORDINAL] = str(ordinal)
        if slot.name in self.stretches:
            environment[Env.STRETCH] = repr(self.stretches[slot.name])
        if self.log_samples:
            environment[Env.SAMPLE_LOG] = str(self.folder.sample_log(slot.name))
        return Command(
            name=slot.name,
            kind=Kind.WORKER,
            arguments=words,
            environment=environment,
            folder=self.source,
            log=self.folder.log(slot.name),
            memory_limit_bytes=memory_limit(slot.group.resources),
        )

    def _metrics(self, name: str) -> Mapping[str, str]:
        port = self.metrics_ports.get(name)
        return {} if port is None else {Env.METRICS: f"{LOOPBACK}:{port}"}

    def _member(self, name: str) -> Membership:
        return Membership(
            job_name=self.job.metadata.name,
            job_uid=self.uid,
            name=name,
            certificates=str(self.folder.certificates(name)),
        )


def _index(worker: str) -> int:
    return int(worker.rpartition("-")[2])


def _ports(ports: Mapping[str, int]) -> tuple[str, ...]:
    return ("--control-port", str(ports["control"]), "--tensor-port", str(ports["tensor"]))


def base_environment(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """Return what every process gets from the runner's environment, with these changes.

    - The interpreter's folder is first on PATH: ``python`` in a shell script of the user is the one that has our
      packages.
    - One thread for each of the numerical libraries, unless the user's environment says otherwise: all workers share
      this machine's cores; with a thread per core each, they would fight for them, and be slower together than one
      alone.
    - Output is not buffered, so that the log of a killed process ends with its last words.
    - Variables of a job that the runner itself may be part of are left out.
    """
    kept = {name: value for name, value in environment.items() if name not in _OWN_VARIABLES}
    threads = dict.fromkeys(THREAD_VARIABLES, "1")
    path = os.pathsep.join(filter(None, [str(Path(python).parent), kept.get("PATH")]))
    return {**threads, **kept, "PATH": path, "PYTHONUNBUFFERED": "1"}


def memory_limit(resources: Resources) -> int | None:
    """Return the memory limit in bytes, if there is one."""
    limit = resources.limits.get("memory")
    return None if limit is None else parse_bytes(limit)


def ready_ports(log: str) -> Mapping[str, int] | None:
    """Read the line ``ready control=PORT tensor=PORT`` that a process of ours prints when it answers; `None`: not
    yet.
    """
    for line in log.splitlines(keepends=True):
        word, *pairs = line.split() or [""]
        # A line without its end is still being written.
        if word == "ready" and line.endswith("\n") and pairs and all("=" in pair for pair in pairs):
            ports = (pair.split("=", 1) for pair in pairs)
            return {name: int(port) for name, port in ports}
    return None
