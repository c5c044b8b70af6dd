"""What decisions about jobs depend on beside the job: the operator's configuration, as values. Read by the shell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """One for the whole operator; frozen when it starts."""

    trainer_image: str
    """Image of parameter servers and coordinators: the trainer image of the operator's own version."""
    run_as_user: int | None = 65532
    """User (and group) of all containers. A number, so that the kubelet can see that it is not root; `None` where a
    cluster gives users itself (OpenShift)."""
    fs_group: int | None = 65532
    """Group of the volumes: certificates have mode 0440."""
    coordinator_requests: Mapping[str, str] = field(default_factory=lambda: {"cpu": "50m", "memory": "128Mi"})
    coordinator_limits: Mapping[str, str] = field(default_factory=lambda: {"memory": "1Gi"})
    """No CPU limit: a throttled coordinator makes every worker wait."""
    shared_memory: str = "1Gi"
    """Size of a worker's /dev/shm, for data loaders; an upper bound, counted into the container's memory as used."""
    termination_grace_seconds: int = 15
    """Of pods: time to leave an outcome and to save after a SIGTERM."""

    status_interval_seconds: float = 20.0
    """Between two writes of figures alone: three a minute, below the four that an idle job may cost."""
    settle_seconds: float = 5.0
    """From the first failure seen until the job is called failed: the others' ends may name the real cause."""
    leftover_seconds: float = 30.0
    """From the end of a job until pods of it that still run are deleted."""
    recovery_seconds: float = 600.0
    """From the loss of a parameter server until it must run again: until then the workers wait and hold their nodes."""
    lost_node_seconds: int = 10
    """Pods stay so long on a node that has not answered for Kubernetes' own patience (40 s), if they can be started
    again elsewhere."""
    unreachable_seconds: float = 15.0
    """Without an answer until the coordinator is called unreachable."""
    shard_exit_seconds: float = 10.0
    """Between a shard's exit with code 0 and the end of the job; longer means that it ended too early."""
