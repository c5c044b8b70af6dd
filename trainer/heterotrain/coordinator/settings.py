"""What a coordinator is started with, read once from its environment and command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from heterotrain.coordinator.scaling import scaled_config
from heterotrain.coordinator.synchronization import of_config
from heterotrain.metrics import Address, metrics_address
from heterotrain_api.contract import MODEL_FILE, PROTOCOL_VERSION, Env, Port, Role
from heterotrain_api.trainer_config import TrainerConfig
from heterotrain_core.run_values import CheckpointPolicy, RunConfig, StopLimits, WorkerSpec
from heterotrain_core.types import Bounds
from heterotrain_rpc.certificates import Credentials

HEARTBEATS_PER_LEASE = 3


class SettingsError(ValueError):
    """The environment or the configuration cannot be used; the message names the variable or field."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything from outside."""

    config: TrainerConfig
    credentials: Credentials
    host: str
    port: int
    """0: any free one."""
    termination_log: Path | None
    metrics: Address | None = None
    """Where ``/metrics`` is served; `None`: nowhere."""

    @property
    def keeps_terms(self) -> bool:
        """Whether shard 0 is asked, before anything else, for a term and a checkpoint to go on from."""
        return self.config.checkpoint is not None or bool(self.config.resume)

    @property
    def rejoins(self) -> bool:
        """Whether the job goes on without a worker that is lost, and takes it back."""
        return self.config.rejoin_limit > 0

    def scaled(self, replicas: Mapping[str, int]) -> Settings:
        """The same with so many workers in each group: what a later term begins with."""
        return replace(self, config=scaled_config(self.config, replicas))

    @property
    def recovers(self) -> bool:
        """Whether the job goes back to a checkpoint when a part of it is lost, which somebody then starts again."""
        return self.config.checkpoint is not None and self.config.restore_limit > 0

    def run_config(self, term: int) -> RunConfig:
        """The part that the state machine needs."""
        config = self.config
        return RunConfig(
            workers=tuple(WorkerSpec(w.name, w.group, w.share, Bounds(w.minimum, w.maximum)) for w in config.workers),
            global_batch_size=config.global_batch_size,
            protocol_version=PROTOCOL_VERSION,
            batch_grain=config.batch_grain,
            stop=StopLimits(
                rounds=config.stop.rounds,
                seconds=config.stop.seconds,
                target_name=config.stop.target_name,
                target_at_least=config.stop.target_at_least,
                target_at_most=config.stop.target_at_most,
            ),
            lease_seconds=config.lease_seconds,
            model_file=MODEL_FILE,
            synchronization=of_config(config.synchronization),
            term=term,
            seed=config.seed,
            rejoin_limit=config.rejoin_limit,
            recovery_seconds=config.recovery_seconds,
            checkpoint=CheckpointPolicy(config.checkpoint.rounds, config.checkpoint.seconds)
            if config.checkpoint is not None
            else None,
        )

    @property
    def heartbeat_seconds(self) -> float:
        """How often workers are to show that they live."""
        return self.config.lease_seconds / HEARTBEATS_PER_LEASE


def read_settings(environment: Mapping[str, str], arguments: Sequence[str]) -> Settings:
    """Read and check; raises `SettingsError`. Unknown arguments end the process with a message (`argparse`)."""
    parser = argparse.ArgumentParser(prog="python -m heterotrain.coordinator", description="Coordinates one job.")
    # A pod's processes are reached at the pod's address, whatever it is; who may call is decided by certificates.
    parser.add_argument("--host", default="0.0.0.0", help="address to listen at (default: all)")  # noqa: S104
    parser.add_argument(
        "--port", type=int, default=Port.COORDINATOR, help=f"port (default: {Port.COORDINATOR}; 0: any free one)"
    )
    parsed = parser.parse_args(list(arguments))
    config = _read_config(_required(environment, Env.CONFIG))
    credentials = _read_credentials(_required(environment, Env.CERTIFICATES), config.job_uid)
    log = environment.get(Env.TERMINATION_LOG)
    try:
        metrics = metrics_address(environment)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return Settings(config, credentials, parsed.host, parsed.port, Path(log) if log else None, metrics)


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SettingsError(f"{name} is not set; it is needed to start a coordinator")
    return value


def _read_config(path: str) -> TrainerConfig:
    try:
        config = TrainerConfig.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise SettingsError(f"{Env.CONFIG}: {path} cannot be read: {error}") from error
    except ValidationError as error:
        raise SettingsError(f"{Env.CONFIG}: {path} is not a trainer configuration: {error}") from error
    try:
        of_config(config.synchronization)
    except ValueError as error:
        raise SettingsError(f"{Env.CONFIG}: {path}: synchronization: {error}") from error
    if not config.shards or not config.workers:
        raise SettingsError(f"{Env.CONFIG}: {path} needs at least one worker and one shard")
    try:
        return scaled_config(config, config.replicas) if config.replicas else config
    except ValueError as error:
        raise SettingsError(f"{Env.CONFIG}: {path}: {error}") from error


def _read_credentials(folder: str, job_uid: str) -> Credentials:
    try:
        credentials = Credentials.read(Path(folder))
        identity = credentials.identity
    except (OSError, ValueError) as error:
        raise SettingsError(f"{Env.CERTIFICATES}: {folder} cannot be used: {error}") from error
    if identity.role is not Role.PS or identity.job_uid != job_uid:
        wanted = f"a parameter server of job {job_uid}"
        raise SettingsError(f"{Env.CERTIFICATES}: the certificate is for {identity.uri}, not for {wanted}")
    return credentials
