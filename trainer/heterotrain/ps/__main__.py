"""``python -m heterotrain.ps``: one shard, from its start to the coordinator's Shutdown or SIGTERM (exit code 0)."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import torch

from heterotrain.checkpoint.disk import Disk
from heterotrain.lean import spare_compiler
from heterotrain.metrics import can_serve, start_metrics
from heterotrain.ps.checkpointing import Checkpoints, Job
from heterotrain.ps.export import Exporter
from heterotrain.ps.optimizer import decode_group
from heterotrain.ps.service import ShardService
from heterotrain.ps.settings import Settings, SettingsError, read_settings
from heterotrain.ps.store import ShardStore
from heterotrain.transport.tcp import Hello, TcpTensorClient, TcpTensorServer
from heterotrain.transport.wire import join_address, split_address
from heterotrain_api.contract import ExitCode, ps_name
from heterotrain_rpc.authorization import Authorization
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_server, server_credentials
from heterotrain_rpc.shard_pb2_grpc import add_ShardServicer_to_server

_log = logging.getLogger("heterotrain.ps")

_GRACE_SECONDS = 5.0


async def serve(settings: Settings, announce: Callable[[int, int], None], ended: asyncio.Event) -> None:
    """Serve until `ended` is set or the coordinator says Shutdown; `announce(control port, tensor port)` when ready.

    Raises `OSError` if an address is taken or the credentials cannot be read.
    """
    store, start = _make_store(settings)
    with (
        ThreadPoolExecutor(1, "commands") as commands,
        ThreadPoolExecutor(1, "export") as exporting,
        TcpTensorServer(
            store, settings.credentials, settings.job_uid, store.ordinal, host=settings.host, port=settings.tensor_port
        ) as tensors,
    ):
        service = ShardService(
            store,
            settings.shard,
            Exporter(store=store, job_name=settings.job_name, job_uid=settings.job_uid),
            Checkpoints(store, settings.shard, Job(settings.job_name, settings.job_uid), settings.output, Disk()),
            commands=commands,
            exporting=exporting,
            connect=lambda shard, address, term: TcpTensorClient(
                address, ps_name(shard), settings.credentials, Hello(settings.name, -1, 0, term)
            ),
            output=settings.output,
            shut_down=ended.set,
        )
        control = make_server(Authorization(settings.job_uid))
        add_ShardServicer_to_server(service, control)
        credentials = server_credentials(Credentials.read(settings.credentials))
        try:
            port = control.add_secure_port(join_address(settings.host, settings.control_port), credentials)
        except RuntimeError as error:
            raise OSError(f"port {settings.control_port} of {settings.host} cannot be used: {error}") from error
        await control.start()
        stop_metrics = start()
        announce(port, split_address(tensors.address)[1])
        # What the first optimizer still loads of torch is loaded now, rather than when the first worker waits.
        commands.submit(decode_group, "SGD", "{}")
        try:
            await ended.wait()
        finally:
            store.close("the parameter server is shutting down")
            service.close()
            await asyncio.to_thread(stop_metrics)
            await control.stop(_GRACE_SECONDS)
    _log.info("%s ends", settings.name)


def _make_store(settings: Settings) -> tuple[ShardStore, Callable[[], Callable[[], None]]]:
    """The store, and what starts its metrics and gives what ends them."""
    address = settings.metrics
    if address is None or not can_serve(address):
        return ShardStore(), lambda: lambda: None
    from heterotrain.ps.metrics import MeasuredStore

    store = MeasuredStore()
    return store, lambda: start_metrics(address, store.registry)


async def _serve_until_signal(settings: Settings) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await serve(settings, _say_ready, ended)


def _say_ready(control_port: int, tensor_port: int) -> None:
    sys.stdout.write(f"ready control={control_port} tensor={tensor_port}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the process; returns its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = read_settings(os.environ, sys.argv[1:])
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.INVALID
    spare_compiler()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        asyncio.run(_serve_until_signal(settings))
    except OSError as error:
        sys.stderr.write(f"{settings.name} cannot serve: {error}\n")
        return ExitCode.FAILED
    return ExitCode.SUCCEEDED


def _leave(code: int) -> NoReturn:
    """End the process, of which nothing is open any more.

    The interpreter would look through all of PyTorch's objects for garbage, several times: a second of processor time
    for each shard, while the job waits for its processes to end.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
