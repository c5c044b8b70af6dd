"""A job around a real coordinator: shards that only keep books, workers that follow a script, all over mutual TLS."""
# ruff: noqa: N802  # names of methods are gRPC's

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from heterotrain.coordinator.__main__ import serve
from heterotrain.coordinator.settings import Settings
from heterotrain_api.contract import PROTOCOL_VERSION, Role, ps_name
from heterotrain_api.trainer_config import ShardConfig, StopConfig, TrainerConfig, WorkerConfig
from heterotrain_core.run_values import Outcome
from heterotrain_rpc import control_pb2, session_pb2, shard_pb2
from heterotrain_rpc.authorization import Authorization
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_channel, make_server, server_credentials
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub
from heterotrain_rpc.session_pb2_grpc import SessionStub
from heterotrain_rpc.shard_pb2_grpc import ShardServicer, add_ShardServicer_to_server
from support.credentials import JOB_UID, credentials
from support.ports import free_port

LOOPBACK = "127.0.0.1"
GROUP = '{"lr": 0.1}'


class FakeShard(ShardServicer):
    """Executes nothing; keeps the requests. `published` is set on all shards of a job at once by `FakeJob`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: list[Any] = []
        self.version = -1
        self.changed = asyncio.Condition()
        self.refusal = ""
        self.save_refusal = ""
        self.commit_gate = asyncio.Event()
        """Commits wait for it."""
        self.commit_gate.set()
        self.norm_part = 0.0

    async def Configure(self, request: shard_pb2.ConfigureRequest, context: object) -> shard_pb2.ConfigureReply:
        self.requests.append(request)
        return shard_pb2.ConfigureReply(refusal=self.refusal)

    async def Seat(self, request: shard_pb2.SeatRequest, context: object) -> shard_pb2.SeatReply:
        self.requests.append(request)
        return shard_pb2.SeatReply()

    async def Publish(self, request: shard_pb2.PublishRequest, context: object) -> shard_pb2.PublishReply:
        self.requests.append(request)
        await self._publish(0)
        return shard_pb2.PublishReply()

    async def Aggregate(self, request: shard_pb2.CommitRequest, context: object) -> shard_pb2.AggregateReply:
        return shard_pb2.AggregateReply(norm_part=self.norm_part)

    async def Commit(
        self, requests: AsyncIterator[shard_pb2.CommitRequest], context: object
    ) -> AsyncIterator[shard_pb2.CommitReply]:
        async for request in requests:
            self.requests.append(request)
            await self.commit_gate.wait()
            assert request.version == self.version
            await self._publish(request.version + 1)
            yield shard_pb2.CommitReply(version=request.version + 1)

    async def Export(self, request: shard_pb2.ExportRequest, context: object) -> shard_pb2.ExportReply:
        self.requests.append(request)
        return shard_pb2.ExportReply(path=f"{request.folder}/{request.file}")

    async def Capture(self, request: shard_pb2.CaptureRequest, context: object) -> shard_pb2.CaptureReply:
        assert request.version == self.version
        self.requests.append(request)
        return shard_pb2.CaptureReply(bytes=100)

    async def Save(self, request: shard_pb2.SaveRequest, context: object) -> shard_pb2.SaveReply:
        self.requests.append(request)
        return shard_pb2.SaveReply(
            path=f"{request.output}/{request.folder}/{request.version}", refusal=self.save_refusal
        )

    async def Release(self, request: shard_pb2.ReleaseRequest, context: object) -> shard_pb2.ReleaseReply:
        self.requests.append(request)
        return shard_pb2.ReleaseReply()

    async def Shutdown(self, request: shard_pb2.ShutdownRequest, context: object) -> shard_pb2.ShutdownReply:
        self.requests.append(request)
        return shard_pb2.ShutdownReply()

    def commits(self) -> list[shard_pb2.CommitRequest]:
        return [r for r in self.requests if isinstance(r, shard_pb2.CommitRequest)]

    async def pull(self, version: int) -> None:
        """Wait until a version is there, as a worker's pull does."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.version >= version)

    async def _publish(self, version: int) -> None:
        async with self.changed:
            self.version = version
            self.changed.notify_all()


@dataclass
class FakeJob:
    """What a test sees and steers."""

    config: TrainerConfig
    shards: list[FakeShard]
    port: int
    ended: asyncio.Task[Outcome]
    termination_log: Path
    channels: list[grpc.aio.Channel] = field(default_factory=list)
    servers: list[grpc.aio.Server] = field(default_factory=list)

    def channel(self, who: Credentials, server_name: str = "ps-0") -> grpc.aio.Channel:
        channel = make_channel(f"{LOOPBACK}:{self.port}", server_name, who)
        self.channels.append(channel)
        return channel

    def control(self, who: Credentials | None = None) -> Any:
        return CoordinatorStub(self.channel(who or credentials(Role.OPERATOR, "operator")))

    async def state(self) -> control_pb2.JobState:
        """The state now."""
        async for state in self.control().Watch(control_pb2.WatchRequest(once=True), timeout=20.0):
            return state  # type: ignore[no-any-return]
        raise AssertionError("no state")

    async def outcome(self) -> Outcome:
        return await asyncio.wait_for(asyncio.shield(self.ended), 20)


@dataclass
class FakeWorker:
    """A worker's script, over a real session. `on_grant` changes the Done of a grant, or raises."""

    job: FakeJob
    name: str
    epochs: int = 2
    dataset_size: int = 20
    on_grant: Callable[[session_pb2.Done], None] = lambda _done: None
    evaluate: bool = False
    accepts: Mapping[str, Any] = field(default_factory=lambda: {"accepted": True})
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: work goes on."""
    grants: list[session_pb2.GrantMessage] = field(default_factory=list)
    welcome: session_pb2.Welcome = field(default_factory=session_pb2.Welcome)
    dismissal: session_pb2.Dismissal | None = None
    outcomes: list[session_pb2.EvaluationOutcome] = field(default_factory=list)

    async def run(self) -> None:
        """The whole script."""
        self.call: Any = SessionStub(self.job.channel(credentials(Role.WORKER, self.name))).Open()
        self._items: asyncio.Queue[session_pb2.CoordinatorMessage] = asyncio.Queue()
        self._told: asyncio.Queue[session_pb2.CoordinatorMessage] = asyncio.Queue()
        await self.say(join=session_pb2.Join(worker=self.name, protocol_version=PROTOCOL_VERSION, host="here"))
        reader = asyncio.create_task(self._read())
        script = asyncio.create_task(self._script())
        await asyncio.wait([reader, script], return_when=asyncio.FIRST_COMPLETED)
        script.cancel()
        await asyncio.gather(script, return_exceptions=True)
        await reader

    async def say(self, **body: Any) -> None:
        """Lost if the session has ended: what the coordinator said before that is still to be read."""
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self.call.write(session_pb2.WorkerMessage(**body))

    async def _read(self) -> None:
        async for message in self.call:
            match message.WhichOneof("body"):
                case "welcome":
                    self.welcome = message.welcome
                    await self.say(manifest=self._manifest())
                case "manifest_accepted":
                    if message.manifest_accepted.push_initial_values:
                        await self.say(initial_values_pushed=session_pb2.InitialValuesPushed())
                    await self.say(start=session_pb2.Start(epochs=self.epochs))
                case "grant" | "epoch_end" | "training_end":
                    self._items.put_nowait(message)
                case "plan_proposal":
                    answer = session_pb2.PlanAnswer(generation=message.plan_proposal.plan.generation, **self.accepts)
                    await self.say(plan_answer=answer)
                case "evaluation_work" | "evaluation_outcome":
                    self._told.put_nowait(message)
                case "dismissal":
                    self.dismissal = message.dismissal

    async def _script(self) -> None:
        while True:
            item = await self._items.get()
            match item.WhichOneof("body"):
                case "grant":
                    await self._compute(item.grant)
                case "epoch_end":
                    if self.evaluate:
                        await self._evaluate(item.epoch_end.epoch)
                    await self.say(report=session_pb2.Report(values={"epoch": float(item.epoch_end.epoch)}))
                case "training_end":
                    await self.say(goodbye=session_pb2.Goodbye())
                    await self.call.done_writing()
                    await asyncio.Event().wait()

    async def _compute(self, grant: session_pb2.GrantMessage) -> None:
        self.grants.append(grant)
        for shard in self.job.shards:
            await shard.pull(grant.version)
        await self.hold.wait()
        done = session_pb2.Done(
            term=grant.term,
            iteration=grant.iteration,
            base_version=grant.version,
            samples=sum(r.stop - r.start for r in grant.ranges),
            groups=[GROUP],
            pushed_bytes=96,
            pulled_bytes=48,
            timings=session_pb2.Timings(
                compute_seconds=0.01, step_seconds=0.02, receive_seconds=0.004, other_seconds=0.002, cpu_seconds=0.008
            ),
        )
        self.on_grant(done)
        await self.say(done=done)

    async def _evaluate(self, epoch: int) -> None:
        await self.say(evaluation_call=session_pb2.EvaluationCall(call=epoch + 1, dataset_size=10))
        work = (await self._told.get()).evaluation_work
        sums = {"right": float(sum(range(work.start, work.stop)))}
        await self.say(evaluation_part=session_pb2.EvaluationPart(call=work.call, sums=sums, seconds=0.01))
        self.outcomes.append((await self._told.get()).evaluation_outcome)

    def _manifest(self) -> session_pb2.Manifest:
        weight = session_pb2.Tensor(name="w", shape=[4], dtype="F32", kind=session_pb2.TENSOR_KIND_PARAMETER, group=0)
        return session_pb2.Manifest(tensors=[weight], optimizer="SGD", groups=[GROUP], dataset_size=self.dataset_size)


async def serve_shard(shard: FakeShard, port: int = 0) -> tuple[grpc.aio.Server, int]:
    """Start a shard's server."""
    server = make_server(Authorization(JOB_UID))
    add_ShardServicer_to_server(shard, server)
    port = server.add_secure_port(f"{LOOPBACK}:{port}", server_credentials(credentials(Role.PS, shard.name)))
    await server.start()
    return server, port


@asynccontextmanager
async def running_job(
    tmp_path: Path,
    shares: Mapping[str, int],
    *,
    num_shards: int = 2,
    late: Collection[int] = (),
    stop: StopConfig | None = None,
    lease_seconds: float = 15.0,
    rejoin_limit: int = 0,
) -> AsyncIterator[FakeJob]:
    """A coordinator with shards; workers are the test's. Shards in `late` have a port and nobody answers there yet."""
    shards = [FakeShard(ps_name(i)) for i in range(num_shards)]
    served = [await serve_shard(s, free_port() if i in late else 0) for i, s in enumerate(shards)]
    for index in late:
        await served[index][0].stop(None)
    config = TrainerConfig(
        job_name="test",
        job_uid=JOB_UID,
        seed=7,
        global_batch_size=sum(shares.values()),
        workers=tuple(
            WorkerConfig(name=n, group=n.split("-")[0], share=s, minimum=0, maximum=100) for n, s in shares.items()
        ),
        shards=tuple(
            ShardConfig(control_address=f"{LOOPBACK}:{port}", tensor_address=f"tensors:{i}")
            for i, (_, port) in enumerate(served)
        ),
        stop=stop or StopConfig(),
        lease_seconds=lease_seconds,
        rejoin_limit=rejoin_limit,
        output="/out",
    )
    log = tmp_path / "outcome.json"
    settings = Settings(config, credentials(Role.PS, "ps-0"), LOOPBACK, 0, log)
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ended = asyncio.create_task(serve(settings, ready.set_result))
    job = FakeJob(config, shards, await ready, ended, log, servers=[server for server, _ in served])
    try:
        yield job
    finally:
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        for channel in job.channels:
            await channel.close()
        for server in job.servers:
            await server.stop(None)


def workers_of(job: FakeJob, **changes: Any) -> list[FakeWorker]:
    """A worker for each name of the configuration, ready to work."""
    workers = [FakeWorker(job, w.name, **changes) for w in job.config.workers]
    for worker in workers:
        worker.hold.set()
    return workers
