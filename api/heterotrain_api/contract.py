"""What two processes of a job agree on: roles, names, ports, environment, exit codes.

Written once and imported by the operator, the local runner and the trainer, so that no constant has two homes.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

GROUP: Final = "heterotrain.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

PROTOCOL_VERSION: Final = 1
"""Version of the gRPC and tensor protocols; a peer with another one is refused when it joins."""


class Role(StrEnum):
    """What a process of a job does; part of its certificate (see `heterotrain_rpc.identity`)."""

    WORKER = "worker"
    PS = "ps"
    """A parameter server; the coordinator runs beside shard 0 and shares the certificate of ``ps-0``."""
    OPERATOR = "operator"


class Env:
    """Environment variables of a job's processes. Absent `JOB_UID` means: the script runs alone."""

    JOB_NAME: Final = "HETEROTRAIN_JOB_NAME"
    JOB_UID: Final = "HETEROTRAIN_JOB_UID"
    NAME: Final = "HETEROTRAIN_NAME"
    """The process's own name in the job: ``cpu-0``, ``ps-1``."""
    COORDINATOR: Final = "HETEROTRAIN_COORDINATOR"
    """``host:port`` of the coordinator, for workers."""
    CERTIFICATES: Final = "HETEROTRAIN_CERTIFICATES"
    """Folder with ``ca.crt``, ``tls.crt`` and ``tls.key`` of this process."""
    CONFIG: Final = "HETEROTRAIN_CONFIG"
    """Path of the `TrainerConfig` JSON file, for the coordinator."""
    DEVICE: Final = "HETEROTRAIN_DEVICE"
    """``CPU`` or ``CUDA``."""
    CUDA_ORDINAL: Final = "HETEROTRAIN_CUDA_ORDINAL"
    """Local runner only: place of a worker among those on CUDA, so that each takes another device while there are
    any."""
    OUTPUT: Final = "HETEROTRAIN_OUTPUT"
    """Folder where shard 0 leaves the model."""
    TERMINATION_LOG: Final = "HETEROTRAIN_TERMINATION_LOG"
    """File that takes the coordinator's outcome as one JSON object."""
    METRICS: Final = "HETEROTRAIN_METRICS"
    """``host:port`` at which this process serves ``/metrics``, port 0 for any free one. Absent: it does not."""
    STRETCH: Final = "HETEROTRAIN_STRETCH"
    """Local runner only: compute time is stretched to this multiple of the CPU time it took (>= 1)."""
    SAMPLE_LOG: Final = "HETEROTRAIN_SAMPLE_LOG"
    """Optional file: one line ``epoch round index index ...`` for each grant that this worker committed."""


class Port:
    """Ports inside a pod. The local runner chooses free ones instead."""

    COORDINATOR: Final = 7070
    SHARD: Final = 7071
    """gRPC from the coordinator to a shard."""
    TENSOR: Final = 7072
    """Tensor transport between workers and shards."""
    METRICS: Final = 7073
    """``/metrics`` of a worker or shard."""
    COORDINATOR_METRICS: Final = 7074
    """``/metrics`` of the coordinator, which shares shard 0's pod."""


class Label:
    """Label keys on every child object."""

    JOB: Final = f"{GROUP}/job"
    JOB_UID: Final = f"{GROUP}/job-uid"
    ROLE: Final = f"{GROUP}/role"
    INDEX: Final = f"{GROUP}/index"
    ATTEMPT: Final = f"{GROUP}/attempt"
    GROUP: Final = f"{GROUP}/group"
    """The last one: below it the name means the label, no longer the API group."""


class Annotation:
    """Annotation keys: what a pod carries for its processes, and what users ask of a job."""

    TRAINER_CONFIG: Final = f"{GROUP}/trainer-config"
    """On pod ps-0: the `TrainerConfig` as JSON, which the coordinator reads through a downward-API file."""
    CERTIFIED: Final = f"{GROUP}/certified-workers"
    """On a job's Secret: workers of each group that it has certificates for, as a JSON object."""
    PLAN_REQUEST: Final = f"{GROUP}/plan-request"
    """On the job: new shares that a user asks for, as JSON (`heterotrain_operator.job.requests`)."""
    COMMAND: Final = f"{GROUP}/command"
    """On the job: stop, checkpoint or drain, as JSON."""


class Container:
    """Names of our containers in a pod. All others are the user's."""

    TRAINER: Final = "trainer"
    """In every pod: the user's script in a worker's, the shard in a parameter server's."""
    COORDINATOR: Final = "coordinator"
    """In pod ps-0 only."""


class MountPath:
    """Where a pod's files lie."""

    OURS: Final = "/var/run/heterotrain"
    """Nothing of the user's is mounted here."""
    CERTIFICATES: Final = f"{OURS}/certificates"
    CONFIG: Final = f"{OURS}/config"
    OUTPUT: Final = "/output"
    """``spec.output.volume`` in pod ps-0."""


class ExitCode(IntEnum):
    """Exit codes of our own processes and of ``heterotrain run``."""

    SUCCEEDED = 0
    FAILED = 1
    INVALID = 2
    """Bad input: a manifest, an option or a script that the job cannot accept."""
    STOPPED = 3
    """Ended early because the user asked for it; the model so far is saved."""
    PEER_LOST = 4
    """This process is well, but a peer it needs is gone or refused it."""


CA_FILE: Final = "ca.crt"
CERTIFICATE_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
CONFIG_FILE: Final = "trainer.json"
"""The `TrainerConfig`, below `MountPath.CONFIG`."""
MODEL_FILE: Final = "model.safetensors"
MODEL_MANIFEST_FILE: Final = "model.json"


def worker_name(group: str, index: int) -> str:
    """Name of a worker in its job: ``cpu-0``."""
    return f"{group}-{index}"


def ps_name(index: int) -> str:
    """Name of a parameter server in its job: ``ps-0``."""
    return f"ps-{index}"
