"""``python -m heterotrain.coordinator``: coordinates one job, leaves its outcome, exits with its code.

Prints ``ready control=PORT`` on standard output once it answers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

from heterotrain.coordinator.coordinator import Coordinator
from heterotrain.coordinator.outcome import exit_code, write_outcome
from heterotrain.coordinator.service import ControlService, SessionService
from heterotrain.coordinator.settings import Settings, SettingsError, read_settings
from heterotrain.metrics import can_serve, start_metrics
from heterotrain_api.contract import ExitCode
from heterotrain_core.run_values import Outcome
from heterotrain_rpc.authorization import Authorization
from heterotrain_rpc.channels import make_server, server_credentials
from heterotrain_rpc.control_pb2_grpc import add_CoordinatorServicer_to_server
from heterotrain_rpc.session_pb2_grpc import add_SessionServicer_to_server

logger = logging.getLogger("heterotrain.coordinator")

GRACE_SECONDS = 3.0
"""For dismissals and last states to reach their readers."""


async def serve(settings: Settings, on_ready: Callable[[int], None]) -> Outcome | None:
    """Run one job to its end; `on_ready` gets the port. Raises `OSError` if the port cannot be had.

    `None`: told to end, this process has left a job that goes on from a checkpoint.
    """
    loop = asyncio.get_running_loop()
    coordinator = Coordinator(settings)
    server = make_server(Authorization(settings.config.job_uid))
    add_SessionServicer_to_server(SessionService(coordinator), server)
    add_CoordinatorServicer_to_server(ControlService(coordinator), server)
    try:
        port = server.add_secure_port(f"{settings.host}:{settings.port}", server_credentials(settings.credentials))
    except RuntimeError as error:
        raise OSError(f"cannot listen at {settings.host}:{settings.port}: {error}") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, coordinator.terminate, number.name)
    await server.start()
    stop_metrics = _start_metrics(settings, coordinator)
    grace: float | None = None
    try:
        coordinator.start()
        on_ready(port)
        outcome = await coordinator.ended
        if outcome is not None and settings.termination_log is not None:
            write_outcome(outcome, settings.termination_log)
        grace = GRACE_SECONDS
        return outcome
    finally:
        await asyncio.to_thread(stop_metrics)
        await server.stop(grace)
        await coordinator.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _start_metrics(settings: Settings, coordinator: Coordinator) -> Callable[[], None]:
    if settings.metrics is None or not can_serve(settings.metrics):
        return lambda: None
    from heterotrain.coordinator.metrics import job_registry

    return start_metrics(settings.metrics, job_registry(asyncio.get_running_loop(), coordinator.state))


def _say_ready(port: int) -> None:
    sys.stdout.write(f"ready control={port}\n")
    sys.stdout.flush()


def main() -> int:
    """Return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        settings = read_settings(os.environ, sys.argv[1:])
        outcome = asyncio.run(serve(settings, _say_ready))
    except (SettingsError, OSError, ValueError) as error:
        sys.stderr.write(f"heterotrain coordinator: {error}\n")
        return ExitCode.INVALID
    if outcome is None:
        return ExitCode.STOPPED
    logger.info("%s (%s): %s", outcome.phase, outcome.reason, outcome.message)
    return exit_code(outcome)


if __name__ == "__main__":
    sys.exit(main())
