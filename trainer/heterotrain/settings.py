"""The environment of a worker, read once, by `heterotrain.join`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from heterotrain.errors import UsageError
from heterotrain.metrics import Address, metrics_address
from heterotrain_api.contract import Env

Device = Literal["CPU", "CUDA"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Which job this process belongs to, and how it reaches it."""

    job_name: str
    job_uid: str
    name: str
    """This worker's own name: ``cpu-0``."""
    coordinator: str
    """``host:port``."""
    certificates: Path
    """Folder with this process's certificate, key, and the job's authority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a worker takes from its environment."""

    job: JobSettings | None = None
    """`None`: the script runs alone."""
    device: Device | None = None
    """`None` (alone only): CUDA if there is a usable one, else the CPU."""
    cuda_ordinal: int = 0
    """Which of the CUDA devices that this process sees; counted on from 0 again when there are fewer."""
    stretch: float = 1.0
    """Paced emulation of a slower machine: compute phases last at least this multiple of the CPU time they took."""
    sample_log: Path | None = None
    """Takes one line ``epoch iteration index index ...`` for each grant that was committed."""
    metrics: Address | None = None
    """Where ``/metrics`` of a worker is served; `None`: nowhere."""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the variables of `Env`; raises `UsageError` naming the variable, what it may be, and the remedy."""
    job = _read_job(environ) if environ.get(Env.JOB_UID) else None
    log = environ.get(Env.SAMPLE_LOG)
    device = _read_device(environ.get(Env.DEVICE))
    if job is not None and device is None:
        device = "CPU"
    return Settings(
        job=job,
        device=device,
        cuda_ordinal=_read_ordinal(environ.get(Env.CUDA_ORDINAL)),
        stretch=_read_stretch(environ.get(Env.STRETCH)),
        sample_log=Path(log) if log else None,
        metrics=_read_metrics(environ, in_job=job is not None),
    )


def _read_metrics(environ: Mapping[str, str], *, in_job: bool) -> Address | None:
    try:
        address = metrics_address(environ)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if address is not None and not in_job:
        raise UsageError(f"{Env.METRICS} is set, but a script that runs alone has no metrics; unset it")
    return address


def _read_job(environ: Mapping[str, str]) -> JobSettings:
    wanted = (Env.JOB_NAME, Env.JOB_UID, Env.NAME, Env.COORDINATOR, Env.CERTIFICATES)
    missing = [name for name in wanted if not environ.get(name)]
    if missing:
        raise UsageError(
            f"{Env.JOB_UID} is set, so this process is a worker of a job, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not; unset {Env.JOB_UID} to run the script alone"
        )
    return JobSettings(
        job_name=environ[Env.JOB_NAME],
        job_uid=environ[Env.JOB_UID],
        name=environ[Env.NAME],
        coordinator=environ[Env.COORDINATOR],
        certificates=Path(environ[Env.CERTIFICATES]),
    )


def _read_device(value: str | None) -> Device | None:
    match value:
        case None | "":
            return None
        case "CPU":
            return "CPU"
        case "CUDA":
            return "CUDA"
        case _:
            raise UsageError(f"{Env.DEVICE} must be CPU or CUDA, not {value!r}; set it to one of them or unset it")


def _read_ordinal(value: str | None) -> int:
    if not value:
        return 0
    if not (value.isascii() and value.isdecimal()):
        raise UsageError(f"{Env.CUDA_ORDINAL} must be a whole number of at least 0, not {value!r}; unset it for 0")
    return int(value)


def _read_stretch(value: str | None) -> float:
    if not value:
        return 1.0
    try:
        stretch = float(value)
    except ValueError:
        stretch = math.nan
    if not 1.0 <= stretch < math.inf:
        raise UsageError(f"{Env.STRETCH} must be a number of at least 1, not {value!r}; unset it for full speed")
    return stretch
