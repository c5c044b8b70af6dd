"""Calls of the shards: all at once, each with a deadline; a failure names the shard."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import grpc
import grpc.aio

from heterotrain.coordinator.commit_stream import COMMIT_SECONDS, CommitStream
from heterotrain.coordinator.messages import manifest_message
from heterotrain_api.contract import ps_name
from heterotrain_api.trainer_config import CheckpointConfig, TrainerConfig
from heterotrain_core import run_effects as out
from heterotrain_core.run_values import Clip, Manifest
from heterotrain_rpc import shard_pb2
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_channel
from heterotrain_rpc.shard_pb2_grpc import ShardStub

if TYPE_CHECKING:  # exists only for type checkers
    from heterotrain_rpc.shard_pb2_grpc import ShardAsyncStub

R = TypeVar("R")
Commits: TypeAlias = Sequence[Awaitable[shard_pb2.CommitReply]]
"""Calls that are under way, one to a shard, in shard order."""

STARTUP_SECONDS: Final = 120.0
"""How long a shard may take to answer at all, once there is something to tell it."""
SETUP_SECONDS: Final = 60.0
"""For laying out the model, or publishing the initial values."""
EXPORT_SECONDS: Final = 600.0
SHUTDOWN_SECONDS: Final = 5.0
STANDING_SECONDS: Final = 10.0
OPEN_SECONDS: Final = 600.0
"""For reading a checkpoint through, or onto the shards."""
RECONNECT_SECONDS: Final = 5.0
"""A shard that answered and cannot be reached for so long is lost; its memory is gone with it."""
_BACKOFF_SECONDS = (0.1, 2.0)
_CLIP_EPSILON = 1e-6
"""As `torch.nn.utils.clip_grad_norm_` has it."""


class ShardError(Exception):
    """A shard is gone, late, or (with `refused`) does not accept what it is told."""

    def __init__(self, shard: str, detail: str, *, refused: bool = False) -> None:
        super().__init__(f"{shard}: {detail}")
        self.shard = shard
        self.detail = detail
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard's name, channel and stub, and the call that its commits go over."""

    name: str
    channel: grpc.aio.Channel
    stub: ShardAsyncStub
    commits: CommitStream


def clip_coefficient(norm_parts: Sequence[float], clip: Clip) -> float:
    """What the aggregate is multiplied by, from the shards' parts of its norm; at most 1.

    As `torch.nn.utils.clip_grad_norm_`: ``max_norm / (norm + 1e-6)``. Parts: sums of ``|g|^p``, or the largest ``|g|``.
    """
    infinite = math.isinf(clip.norm_type)
    norm = max(norm_parts) if infinite else math.fsum(norm_parts) ** (1.0 / clip.norm_type)
    return min(1.0, clip.max_norm / (norm + _CLIP_EPSILON))


class Shards:
    """All shards of a job. Raises `ShardError`; `on_waiting` is told whom a start still waits for."""

    def __init__(
        self,
        config: TrainerConfig,
        credentials: Credentials,
        term: int,
        on_waiting: Callable[[tuple[str, ...]], None],
        *,
        startup_seconds: float = STARTUP_SECONDS,
    ) -> None:
        self._config = config
        self._term = term
        self._on_waiting = on_waiting
        self._startup_seconds = startup_seconds
        self._shards = [_connect(ps_name(i), s.control_address, credentials) for i, s in enumerate(config.shards)]
        self._silent = {s.name for s in self._shards}

    async def watch(self) -> None:
        """Run until cancelled; raises `ShardError` when a shard that answered can no longer be reached."""
        self._on_waiting(self._waiting())
        await _all([self._watch(s) for s in self._shards])

    async def configure(self, manifest: Manifest) -> None:
        """Lay the model out on all shards, waiting for those that do not answer yet."""
        message = manifest_message(manifest)
        deadline = asyncio.get_running_loop().time() + self._startup_seconds

        async def configure(index: int, shard: Shard) -> None:
            request = shard_pb2.ConfigureRequest(
                term=self._term,
                shard=index,
                num_shards=len(self._shards),
                manifest=message,
                workers=[w.name for w in self._config.workers],
                shards=[s.tensor_address for s in self._config.shards],
            )
            reply = await self._persistently(
                shard, lambda: shard.stub.Configure(request, timeout=SETUP_SECONDS), deadline
            )
            if reply.refusal:
                raise ShardError(shard.name, reply.refusal, refused=True)

        await _all([configure(i, s) for i, s in enumerate(self._shards)])

    async def standing(self, deadline_seconds: float) -> tuple[int, int]:
        """Wait until all shards answer; the newest term among them and the newest version of it, -1: none."""
        deadline = asyncio.get_running_loop().time() + deadline_seconds
        request = shard_pb2.StandingRequest()

        async def ask(shard: Shard) -> tuple[int, int]:
            call = lambda: shard.stub.Standing(request, timeout=STANDING_SECONDS)  # noqa: E731
            reply = await self._persistently(shard, call, deadline)
            self._silent.discard(shard.name)
            self._on_waiting(self._waiting())
            return reply.term, reply.version

        self._on_waiting(self._waiting())
        return max(await _all([ask(s) for s in self._shards]))

    async def open_term(self, above: int, reached: int) -> shard_pb2.OpenTermReply:
        """Have shard 0 take a term higher than `above` and find the checkpoint to go on from."""
        checkpoint = self._config.checkpoint or CheckpointConfig()
        request = shard_pb2.OpenTermRequest(
            output=self._config.output,
            folder=checkpoint.folder,
            resume=self._config.resume,
            above=above,
            reached=reached,
        )
        shard = self._shards[0]
        reply = await _call(shard, shard.stub.OpenTerm(request, timeout=OPEN_SECONDS))
        if reply.refusal:
            raise ShardError(shard.name, reply.refusal, refused=True)
        self._term = reply.term
        return reply

    async def restore(self, version: int, files: Sequence[int]) -> None:
        """After `configure`: have all shards take `version` from the checkpoint that `open_term` found."""
        request = shard_pb2.RestoreRequest(term=self._term, version=version, files=files)
        replies = await self._on_all(lambda s: s.stub.Restore(request, timeout=OPEN_SECONDS))
        for shard, reply in zip(self._shards, replies, strict=True):
            if reply.refusal:
                raise ShardError(shard.name, f"version {version} cannot be restored: {reply.refusal}", refused=True)
        release = shard_pb2.ReleaseRequest(term=self._term, files=len(files))
        await _call(self._shards[0], self._shards[0].stub.Release(release, timeout=SETUP_SECONDS))

    async def capture(self, version: int) -> list[int]:
        """Between two commits: have all shards hold a copy of `version`; their sizes. `ValueError`: one cannot."""
        request = shard_pb2.CaptureRequest(term=self._term, version=version)
        replies = await self._on_all(lambda s: s.stub.Capture(request, timeout=COMMIT_SECONDS))
        refusals = [f"{s.name}: {r.refusal}" for s, r in zip(self._shards, replies, strict=True) if r.refusal]
        if refusals:
            await self.release(version)
            raise ValueError("; ".join(refusals))
        return [reply.bytes for reply in replies]

    async def save(self, version: int, sizes: Sequence[int], progress: str) -> str:
        """Have shard 0 write what all have captured; returns the folder. Raises `ValueError` if it cannot."""
        checkpoint = self._config.checkpoint or CheckpointConfig()
        request = shard_pb2.SaveRequest(
            term=self._term,
            version=version,
            output=self._config.output,
            folder=checkpoint.folder,
            bytes=sizes,
            progress=progress,
            keep=checkpoint.keep,
        )
        reply = await self._first(lambda s: s.stub.Save(request, timeout=EXPORT_SECONDS))
        if reply.refusal:
            raise ValueError(reply.refusal)
        return reply.path

    async def release(self, version: int) -> None:
        """The copies are no longer needed."""
        request = shard_pb2.ReleaseRequest(term=self._term, captures=[version])
        await self._on_all(lambda s: s.stub.Release(request, timeout=SETUP_SECONDS))

    async def seat(self, seats: out.SeatWorkers) -> None:
        """Say who may push."""
        request = shard_pb2.SeatRequest(
            term=self._term,
            workers=[name for name, _ in seats.workers],
            least_incarnations=[least for _, least in seats.workers],
        )
        await self._on_all(lambda s: s.stub.Seat(request, timeout=SETUP_SECONDS))

    async def probe(self, name: str) -> None:
        """Raise `ShardError` if the shard does not answer; a name that is none is passed over."""
        request = shard_pb2.StandingRequest()
        for shard in self._shards:
            if shard.name == name:
                await _call(shard, shard.stub.Standing(request, timeout=STANDING_SECONDS))

    async def publish(self) -> None:
        """Publish version 0 on all shards."""
        request = shard_pb2.PublishRequest(term=self._term)
        for shard, reply in zip(
            self._shards, await self._on_all(lambda s: s.stub.Publish(request, timeout=SETUP_SECONDS)), strict=True
        ):
            if reply.refusal:
                raise ShardError(shard.name, reply.refusal)

    def begin_commit(self, commit: out.CommitRound) -> Commits | None:
        """Send a commit that needs one call to a shard, before anything else that is to be done; the rest: `None`."""
        return None if commit.clip is not None else self._commits(commit_request(commit, self._term))

    async def commit(self, commit: out.CommitRound, begun: Commits | None = None) -> None:
        """Make the next version on all shards; the norm of the whole aggregate is taken first if it is clipped.

        `begun`: what `begin_commit` gave for the same commit.
        """
        if begun is None:
            request = commit_request(commit, self._term)
            if commit.clip is not None:
                parts = await self._on_all(lambda s: s.stub.Aggregate(request, timeout=COMMIT_SECONDS))
                request.clip_coefficient = clip_coefficient([p.norm_part for p in parts], commit.clip)
            begun = self._commits(request)
        await _all([_call(s, call) for s, call in zip(self._shards, begun, strict=True)])

    def _commits(self, request: shard_pb2.CommitRequest) -> Commits:
        begun = [asyncio.ensure_future(s.commits.commit(request)) for s in self._shards]
        for commit in begun:  # the term may end before somebody asks what became of it
            commit.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return begun

    async def export(self, version: int, file: str) -> str:
        """Have shard 0 write a version; returns the path. Raises `ValueError` with its reason if it cannot."""
        request = shard_pb2.ExportRequest(term=self._term, version=version, folder=self._config.output, file=file)
        reply = await self._first(lambda s: s.stub.Export(request, timeout=EXPORT_SECONDS))
        if reply.refusal:
            raise ValueError(reply.refusal)
        return reply.path

    async def shut_down(self) -> list[str]:
        """Tell all shards to end, then close the channels; what went wrong, in words (nobody waits for it)."""
        self._end_commits()
        request = shard_pb2.ShutdownRequest()
        answers = await asyncio.gather(
            *(_call(s, s.stub.Shutdown(request, timeout=SHUTDOWN_SECONDS)) for s in self._shards),
            return_exceptions=True,
        )
        await self.close()
        return [str(a) for a in answers if isinstance(a, BaseException)]

    async def close(self) -> None:
        """Close the channels; the shards go on."""
        self._end_commits()
        for shard in self._shards:
            await shard.channel.close()

    def _end_commits(self) -> None:
        # A server that is told to end waits for the calls that are open.
        for shard in self._shards:
            shard.commits.close()

    async def _first(self, call: Callable[[Shard], Awaitable[R]]) -> R:
        """Call shard 0 for something that may take too long, or fail, without harm to the job (`ValueError`)."""
        shard = self._shards[0]
        try:
            return await call(shard)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise ShardError(shard.name, _words(error)) from error
            raise ValueError(_words(error)) from error

    async def _on_all(self, call: Callable[[Shard], Awaitable[R]]) -> list[R]:
        return await _all([_call(s, call(s)) for s in self._shards])

    async def _persistently(self, shard: Shard, call: Callable[[], Awaitable[R]], deadline: float) -> R:
        """Call again, with back-off, while the shard does not answer and the deadline is not over."""
        pause, longest = _BACKOFF_SECONDS
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as error:
                late = asyncio.get_running_loop().time() + pause > deadline
                if error.code() is not grpc.StatusCode.UNAVAILABLE or late:
                    raise ShardError(shard.name, _words(error)) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _watch(self, shard: Shard) -> None:
        state = shard.channel.get_state(try_to_connect=True)
        while state is not grpc.ChannelConnectivity.READY:
            await shard.channel.wait_for_state_change(state)
            state = shard.channel.get_state(try_to_connect=True)
        self._silent.discard(shard.name)
        self._on_waiting(self._waiting())
        while True:
            await shard.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
            try:
                async with asyncio.timeout(RECONNECT_SECONDS):
                    await shard.channel.channel_ready()
            except TimeoutError:
                detail = f"its connection broke and it did not answer for {RECONNECT_SECONDS:g} s"
                raise ShardError(shard.name, detail) from None

    def _waiting(self) -> tuple[str, ...]:
        return tuple(s.name for s in self._shards if s.name in self._silent)


def commit_request(commit: out.CommitRound, term: int) -> shard_pb2.CommitRequest:
    """The same for all shards."""
    return shard_pb2.CommitRequest(
        term=term,
        version=commit.version,
        contributions=[_contribution(key, weight) for key, weight in commit.contributions],
        scale=commit.scale,
        groups=commit.groups,
        absent=commit.absent,
        retain=commit.retain,
        norm_type=commit.clip.norm_type if commit.clip is not None else None,
        discard=[_contribution(key, 0.0) for key in commit.discard],
        compensation=commit.compensation,
    )


def _contribution(key: out.GradientKey, weight: float) -> shard_pb2.CommitContribution:
    return shard_pb2.CommitContribution(
        worker=key.worker, incarnation=key.incarnation, iteration=key.iteration, weight=weight
    )


def _connect(name: str, address: str, credentials: Credentials) -> Shard:
    channel = make_channel(address, name, credentials)
    stub: ShardAsyncStub = ShardStub(channel)
    return Shard(name, channel, stub, CommitStream(stub))


async def _call(shard: Shard, call: Awaitable[R]) -> R:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise ShardError(shard.name, _words(error)) from error


async def _all(calls: Sequence[Awaitable[R]]) -> list[R]:
    """Await all; when one fails the others are cancelled and its error is raised."""
    tasks = [asyncio.ensure_future(c) for c in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _words(error: grpc.aio.AioRpcError) -> str:
    details = (error.details() or "no details").strip().splitlines()
    return f"{error.code().name}: {details[0] if details else 'no details'}"
