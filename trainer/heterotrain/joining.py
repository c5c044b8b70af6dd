"""`join`: the one place where a script learns whether it runs alone or in a job."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import torch

from heterotrain.allocator import keep_freed_memory
from heterotrain.alone import AloneEngine
from heterotrain.engine import Engine
from heterotrain.errors import UsageError
from heterotrain.exits import ExitWatch, first_line
from heterotrain.lean import spare_compiler
from heterotrain.leaving import LeaveWatch
from heterotrain.memory import is_out_of_memory
from heterotrain.metrics import can_serve, start_metrics
from heterotrain.randomness import seed_everything, stable_seed
from heterotrain.restart import Script
from heterotrain.session import Session
from heterotrain.settings import JobSettings, Settings, read_settings
from heterotrain_api.contract import Env

if TYPE_CHECKING:
    from heterotrain.job import JobEngine
    from heterotrain.worker_metrics import WorkerMetrics

_present: Session | None = None

_FORK_SUPPORT: Final = "GRPC_ENABLE_FORK_SUPPORT"
"""gRPC's own handlers of fork, read once, when it is imported. With them a forked loader process aborts while a session
is open; without them it lives, since it never calls gRPC."""
_FORK_WARNING: Final = (
    f"gRPC was set up before heterotrain.join with its handlers of fork, by which loader processes (num_workers"
    f" above 0) may abort; set {_FORK_SUPPORT}=false in the environment of the script"
)


def join(*, batch_size: int | None = None, seed: int | None = None) -> Session:
    """Begin the session of this process: in the job that its environment names, else alone.

    Alone, `batch_size` (samples of an update) and `seed` are needed; in a job its globalBatchSize and seed hold.
    From here on Python's, NumPy's and PyTorch's random state follow from the seed, so that a model built now has the
    same initial values alone and on every worker. In a job this waits for the coordinator.

    Raises `UsageError` for wrong arguments or environment, or a second session; ends the process with a reason and
    `ExitCode.PEER_LOST` (see `PeerLostError`) if the job does not take it.
    """
    global _present  # noqa: PLW0603 - one session per process
    if _present is not None and not _present.closed:
        raise UsageError("heterotrain.join was called before; a process has one session, close it first")
    spare_compiler()
    keep_freed_memory()
    settings = read_settings(os.environ)
    device = choose_device(settings)
    if settings.job is None:
        engine = _alone(batch_size, seed)
        session = Session(engine, settings, device)
    else:
        session, engine = _session_in_job(settings.job, settings, device)
    torch.manual_seed(stable_seed(engine.seed, "initial"))
    seed_everything(stable_seed(engine.seed, "initial"))
    _present = session
    return session


def choose_device(settings: Settings) -> torch.device:
    """Where to compute; raises `UsageError` if CUDA is asked for and cannot be used, saying why."""
    if settings.device == "CPU" or (settings.device is None and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UsageError(f"{Env.DEVICE} is CUDA, but {_why_no_device(os.environ)}")
    device = torch.device("cuda", settings.cuda_ordinal % torch.cuda.device_count())
    try:
        # What the script and libraries put on "cuda" belongs on the same device.
        torch.cuda.set_device(device)
        torch.zeros(1, device=device).add_(1).item()
    except RuntimeError as error:
        raise UsageError(
            f"{device} cannot be used: {first_line(error)}; {Env.DEVICE}=CPU (device: CPU in a job) computes without it"
        ) from error
    return device


def _why_no_device(environ: Mapping[str, str]) -> str:
    """Which of the usual reasons it is, and the remedy."""
    if torch.version.cuda is None:
        return f"this PyTorch ({torch.__version__}) is built without CUDA; install a build with it, or use CPU"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" among those that CUDA_VISIBLE_DEVICES={visible!r} names"
    return f"PyTorch finds no usable CUDA device{hidden}; use a machine with one, or CPU"


def _alone(batch_size: int | None, seed: int | None) -> Engine:
    if batch_size is None or seed is None:
        missing = " and ".join(n for n, v in (("batch_size", batch_size), ("seed", seed)) if v is None)
        raise UsageError(
            f"heterotrain.join needs {missing} when the script runs alone: heterotrain.join(batch_size=512, seed=7)"
        )
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name}: must be a whole number of at least {least}, not {value!r}")
    return AloneEngine(batch_size=batch_size, seed=seed)


def _session_in_job(job: JobSettings, settings: Settings, device: torch.device) -> tuple[Session, Engine]:
    script = Script.present()
    metrics, start = _worker_metrics(settings)
    engine = _join_job(job, device, metrics)
    session = Session(engine, settings, device)
    session.on_close(start())

    def end() -> None:
        session.close()
        if engine.begins_anew:
            script.begin_anew()

    def comes_back(error: BaseException) -> bool:
        if is_out_of_memory(error) and session.exhausted(first_line(error)):
            script.begin_anew()
        return False

    watch = ExitWatch(end, session.fail, comes_back)
    watch.install()
    session.on_close(watch.remove)
    leave = LeaveWatch(engine.leave)
    leave.install()
    session.on_close(leave.remove)
    return session, engine


def _worker_metrics(settings: Settings) -> tuple[WorkerMetrics | None, Callable[[], Callable[[], None]]]:
    """What counts, what starts serving it and gives what ends that."""
    address = settings.metrics
    if address is None or not can_serve(address):
        return None, lambda: lambda: None
    from heterotrain.worker_metrics import WorkerMetrics

    metrics = WorkerMetrics()
    return metrics, lambda: start_metrics(address, metrics.registry)


def _join_job(job: JobSettings, device: torch.device, metrics: WorkerMetrics | None) -> JobEngine:
    handlers_wanted = os.environ.get(_FORK_SUPPORT, "true" if "grpc" in sys.modules else "false")
    if handlers_wanted.lower() not in {"0", "false"}:
        warnings.warn(_FORK_WARNING, stacklevel=3)
    os.environ[_FORK_SUPPORT] = handlers_wanted
    # Not needed alone: gRPC, certificates and their threads.
    from heterotrain.job import join_job

    return join_job(job, device, metrics)
