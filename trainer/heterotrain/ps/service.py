"""The gRPC side of a shard: the coordinator's commands, translated and answered.

Numbers are never computed in the event loop's thread, so that it always answers. Malformed requests end with
INVALID_ARGUMENT, those that do not fit the shard's state with FAILED_PRECONDITION, each with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import grpc
import grpc.aio

from heterotrain.ps.checkpointing import Checkpoints
from heterotrain.ps.export import Exported
from heterotrain.ps.pulling import Connect
from heterotrain.ps.store import ShardStore
from heterotrain.ps.values import CommitOrder, GradientName, ShardSpec
from heterotrain.tensor_messages import tensor_of
from heterotrain.transport.base import RefusedError, TensorClient, TransportError, capture_version, file_version
from heterotrain_rpc import shard_pb2
from heterotrain_rpc.shard_pb2_grpc import ShardServicer

_log = logging.getLogger(__name__)

_T = TypeVar("_T")
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class Exports(Protocol):
    """See `export.Exporter`."""

    def export(self, spec: ShardSpec, version: int, path: Path, connect: Connect) -> Exported:
        """Write a version."""
        ...


class ShardService(ShardServicer):
    """Serves shard number `shard`.

    `commands` has a single thread; exports run in `exporting`, so that commits go on meanwhile. `connect` opens the
    tensor transport to a shard, from its number, address and the term. `shut_down` is called when the coordinator has
    no more work.
    """

    def __init__(
        self,
        store: ShardStore,
        shard: int,
        exporter: Exports,
        checkpoints: Checkpoints,
        *,
        commands: Executor,
        exporting: Executor,
        connect: Callable[[int, str, int], TensorClient],
        output: Path | None,
        shut_down: Callable[[], None],
    ) -> None:
        self._store = store
        self._shard = shard
        self._exporter = exporter
        self._checkpoints = checkpoints
        self._commands = commands
        self._exporting = exporting
        self._connect = connect
        self._output = output
        self._shut_down = shut_down
        self._spec: ShardSpec | None = None
        self._addresses: tuple[str, ...] = ()
        self._closing = False
        self._waiting: set[asyncio.Task[Any]] = set()
        """Calls that wait for the next commit."""

    async def Configure(  # noqa: N802 - gRPC's name
        self, request: shard_pb2.ConfigureRequest, context: Context
    ) -> shard_pb2.ConfigureReply:
        """Lay the model out."""
        try:
            if request.shard != self._shard:
                raise RefusedError(f"this is shard {self._shard}, not {request.shard}")
            if len(request.shards) != request.num_shards:
                raise RefusedError(f"shards must list {request.num_shards} addresses, not {len(request.shards)}")
            spec = spec_from(request)
            expected = await self._run(lambda: self._store.configure(spec))
        except ValueError as error:
            _log.warning("model refused: %s", error)
            return shard_pb2.ConfigureReply(refusal=str(error))
        except (RefusedError, MemoryError) as error:
            # Nothing is wrong with the model: another shard, or one with more memory, would take it.
            _log.warning("model not taken: %s", error)
            exhausted = isinstance(error, MemoryError)
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if exhausted else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(code, str(error))
        self._spec, self._addresses = spec, tuple(request.shards)
        _log.info("term %d: %d tensors, %d bytes expected", spec.term, len(spec.tensors), expected)
        return shard_pb2.ConfigureReply(bytes=expected)

    async def Seat(self, request: shard_pb2.SeatRequest, context: Context) -> shard_pb2.SeatReply:  # noqa: N802
        """Say who may push."""
        workers, least = tuple(request.workers), tuple(request.least_incarnations)
        await self._judged(context, lambda: self._store.seat(request.term, workers, least))
        return shard_pb2.SeatReply()

    async def Publish(  # noqa: N802
        self, request: shard_pb2.PublishRequest, context: Context
    ) -> shard_pb2.PublishReply:
        """Publish the initial values."""
        try:
            await self._run(lambda: self._store.publish(request.term))
        except RefusedError as error:
            return shard_pb2.PublishReply(refusal=str(error))
        return shard_pb2.PublishReply()

    async def Aggregate(  # noqa: N802
        self, request: shard_pb2.CommitRequest, context: Context
    ) -> shard_pb2.AggregateReply:
        """Sum the gradients of the commit that follows."""
        part = await self._judged(context, lambda: self._store.aggregate(order_from(request)))
        return shard_pb2.AggregateReply(norm_part=part)

    async def Commit(  # noqa: N802
        self, requests: AsyncIterator[shard_pb2.CommitRequest], context: Context
    ) -> AsyncIterator[shard_pb2.CommitReply]:
        """Make the next versions."""
        while (request := await self._next(requests)) is not None:
            yield await self._commit(request, context)

    async def Export(  # noqa: N802
        self, request: shard_pb2.ExportRequest, context: Context
    ) -> shard_pb2.ExportReply:
        """Write a version to the model file."""
        try:
            spec = self._exported_spec(request.term)
            path = export_path(request.folder, request.file, self._output)
            exported = await asyncio.get_running_loop().run_in_executor(
                self._exporting, self._exporter.export, spec, request.version, path, self._connector(spec.term)
            )
        except (RefusedError, TransportError, ValueError, OSError) as error:
            _log.warning("version %d cannot be exported: %s", request.version, error)
            return shard_pb2.ExportReply(refusal=str(error))
        return shard_pb2.ExportReply(path=str(exported.path), bytes=exported.num_bytes)

    async def Standing(  # noqa: N802
        self, request: shard_pb2.StandingRequest, context: Context
    ) -> shard_pb2.StandingReply:
        """What is here."""
        term, version = self._store.standing()
        return shard_pb2.StandingReply(term=term, version=version)

    async def OpenTerm(  # noqa: N802
        self, request: shard_pb2.OpenTermRequest, context: Context
    ) -> shard_pb2.OpenTermReply:
        """Take a new term, find the checkpoint."""
        return await self._beside(lambda: self._checkpoints.open_term(request))

    async def Restore(  # noqa: N802
        self, request: shard_pb2.RestoreRequest, context: Context
    ) -> shard_pb2.RestoreReply:
        """Take the values and the optimizer's state from the checkpoint."""
        return await self._beside(lambda: self._checkpoints.restore(request, self._connector(request.term)))

    async def Capture(  # noqa: N802
        self, request: shard_pb2.CaptureRequest, context: Context
    ) -> shard_pb2.CaptureReply:
        """Hold a copy of the whole state."""
        try:
            size = await self._run(lambda: self._store.capture(request.term, request.version))
        except (RefusedError, MemoryError) as error:
            return shard_pb2.CaptureReply(refusal=str(error))
        return shard_pb2.CaptureReply(bytes=size)

    async def Save(self, request: shard_pb2.SaveRequest, context: Context) -> shard_pb2.SaveReply:  # noqa: N802
        """Write what all shards hold."""
        return await self._beside(lambda: self._checkpoints.save(request, self._connector(request.term)))

    async def Release(  # noqa: N802
        self, request: shard_pb2.ReleaseRequest, context: Context
    ) -> shard_pb2.ReleaseReply:
        """Let copies go."""
        versions = [*map(capture_version, request.captures), *map(file_version, range(request.files))]
        await self._judged(context, lambda: self._store.release(request.term, versions))
        return shard_pb2.ReleaseReply()

    async def Shutdown(  # noqa: N802
        self, request: shard_pb2.ShutdownRequest, context: Context
    ) -> shard_pb2.ShutdownReply:
        """End the process, after this answer."""
        self._shut_down()
        return shard_pb2.ShutdownReply()

    def close(self) -> None:
        """End the calls that only wait for the next commit: a server that stops would wait for them."""
        self._closing = True
        for call in self._waiting:
            call.cancel()

    async def _next(self, requests: AsyncIterator[shard_pb2.CommitRequest]) -> shard_pb2.CommitRequest | None:
        call = asyncio.current_task()
        assert call is not None, "gRPC runs handlers in tasks"  # noqa: S101 - for type checkers
        self._waiting.add(call)
        try:
            return None if self._closing else await anext(requests, None)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            call.uncancel()  # an end in peace, which the peer is told
            return None
        finally:
            self._waiting.discard(call)

    async def _commit(self, request: shard_pb2.CommitRequest, context: Context) -> shard_pb2.CommitReply:
        begin = time.perf_counter()
        try:
            order = order_from(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        version = self._commit_made(order)
        if version is None:
            version = await self._judged(context, lambda: self._store.commit(order))
        return shard_pb2.CommitReply(version=version, seconds=time.perf_counter() - begin)

    def _commit_made(self, order: CommitOrder) -> int | None:
        """What has nothing to compute needs no other thread, which all workers would wait for."""
        try:
            return self._store.commit_made(order)
        except (ValueError, RefusedError):
            return None  # told as for any other

    def _exported_spec(self, term: int) -> ShardSpec:
        if self._spec is None or self._spec.term != term:
            raise RefusedError(f"there is no model of term {term} on this shard")
        if self._shard != 0:
            raise RefusedError(f"only shard 0 writes the model, this is shard {self._shard}")
        return self._spec

    async def _beside(self, work: Callable[[], _T]) -> _T:
        """Run what reads or writes files, while commands go on."""
        return await asyncio.get_running_loop().run_in_executor(self._exporting, work)

    def _connector(self, term: int) -> Connect:
        addresses = self._addresses
        return lambda shard: self._connect(shard, addresses[shard], term)

    async def _run(self, command: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._commands, command)

    async def _judged(self, context: Context, command: Callable[[], _T]) -> _T:
        try:
            return await self._run(command)
        except RefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise AssertionError("abort() raises")


def spec_from(request: shard_pb2.ConfigureRequest) -> ShardSpec:
    """Translate a model; raises `ValueError` that names the field for what cannot be."""
    manifest = request.manifest
    return ShardSpec(
        term=request.term,
        shard=request.shard,
        num_shards=request.num_shards,
        tensors=tuple(map(tensor_of, manifest.tensors)),
        optimizer=manifest.optimizer,
        groups=tuple(manifest.groups),
        workers=tuple(request.workers),
    )


def order_from(request: shard_pb2.CommitRequest) -> CommitOrder:
    """Translate a commit; raises `ValueError` for what makes no sense."""
    return CommitOrder(
        term=request.term,
        version=request.version,
        contributions=tuple((_name_of(c), c.weight) for c in request.contributions),
        scale=request.scale,
        groups=tuple(request.groups),
        absent=frozenset(request.absent),
        retain=frozenset(request.retain),
        clip_coefficient=request.clip_coefficient if request.HasField("clip_coefficient") else None,
        norm_type=request.norm_type if request.HasField("norm_type") else 2.0,
        discard=tuple(_name_of(c) for c in request.discard),
        compensation=request.compensation,
    )


def export_path(folder: str, file: str, output: Path | None) -> Path:
    """Where a model file goes: `folder`, or `output` if that is empty. Raises `ValueError` for what is no file name.

    If `output` is given, `folder` must lie in it: whoever may command this shard may still not write anywhere else.
    """
    if not file.endswith(".safetensors") or Path(file).name != file or file.startswith("."):
        raise ValueError(f"file must be a plain name that ends in .safetensors, not {file!r}")
    chosen = Path(folder) if folder else output
    if chosen is None:
        raise ValueError("there is no folder for the model: neither the coordinator nor the environment names one")
    if output is not None and not chosen.resolve().is_relative_to(output.resolve()):
        raise ValueError(f"folder must lie in {output}, not be {folder}")
    return chosen / file


def _name_of(contribution: shard_pb2.CommitContribution) -> GradientName:
    return GradientName(contribution.worker, contribution.incarnation, contribution.iteration)
