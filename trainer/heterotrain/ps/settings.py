"""What a parameter server is started with, read once from its environment and command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterotrain.metrics import Address, metrics_address
from heterotrain_api.contract import Env, Port


class SettingsError(ValueError):
    """The environment cannot be used; the message names the variable and what it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything from outside."""

    job_name: str
    job_uid: str
    name: str
    shard: int
    credentials: Path
    """Folder; read again at each connection."""
    output: Path | None
    """Folder for the model, unless the coordinator names one."""
    host: str
    control_port: int
    tensor_port: int
    """0: any free one."""
    threads: int | None
    """For the arithmetic; `None`: torch decides."""
    metrics: Address | None = None
    """Where ``/metrics`` is served; `None`: nowhere."""


def read_settings(environment: Mapping[str, str], arguments: Sequence[str]) -> Settings:
    """Read the settings; raises `SettingsError`. Unknown arguments end the process with code 2, as usual."""
    parser = argparse.ArgumentParser(prog="heterotrain.ps", description="Parameter server of a Heterotrain job.")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 - all of a pod's
    parser.add_argument("--control-port", type=int, default=Port.SHARD, help="0: any free one")
    parser.add_argument("--tensor-port", type=int, default=Port.TENSOR, help="0: any free one")
    parser.add_argument("--threads", type=int, default=None, help="for the arithmetic; default: torch decides")
    options = parser.parse_args(arguments)
    name = _required(environment, Env.NAME, "the process's name, such as ps-0")
    match = re.fullmatch(r"ps-(\d{1,4})", name)
    if match is None:
        raise SettingsError(f"{Env.NAME} must be ps-<index>, not {name!r}")
    if options.threads is not None and options.threads < 1:
        raise SettingsError(f"--threads must be at least 1, not {options.threads}")
    output = environment.get(Env.OUTPUT, "")
    try:
        metrics = metrics_address(environment)
    except ValueError as error:
        raise SettingsError(str(error)) from error
    return Settings(
        job_name=environment.get(Env.JOB_NAME, ""),
        job_uid=_required(environment, Env.JOB_UID, "the job's UID"),
        name=name,
        shard=int(match[1]),
        credentials=Path(_required(environment, Env.CERTIFICATES, "the folder with ca.crt, tls.crt and tls.key")),
        output=Path(output) if output else None,
        host=options.host,
        control_port=options.control_port,
        tensor_port=options.tensor_port,
        threads=options.threads,
        metrics=metrics,
    )


def _required(environment: Mapping[str, str], variable: str, what: str) -> str:
    value = environment.get(variable, "")
    if not value:
        raise SettingsError(f"{variable} must be set to {what}")
    return value
