"""The engine of a worker in a job: its session with the coordinator and its connections to the shards."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import grpc.aio
import torch

import heterotrain
from heterotrain.arena import Arena
from heterotrain.engine import Setup, Update
from heterotrain.errors import LeftJobError, PeerLostError, UsageError
from heterotrain.forks import leave_inherited_alone
from heterotrain.gradients import Gradients
from heterotrain.grants import Item, grant_epoch
from heterotrain.messages import done_message, item_of, judge_plan, manifest_message
from heterotrain.ps.optimizer import encode_group
from heterotrain.settings import JobSettings
from heterotrain.shards import Shards, make_links
from heterotrain.step_times import StepTimes
from heterotrain.stream import SessionStream
from heterotrain.transport.base import INITIAL_ITERATION, PushKey, PushStatus, TensorClient
from heterotrain.transport.tcp import Hello, TcpTensorClient
from heterotrain_api.contract import PROTOCOL_VERSION, Env, Role, ps_name
from heterotrain_core.layout import make_layout
from heterotrain_core.run_values import Traffic
from heterotrain_core.sync.policy import DRAINED
from heterotrain_core.types import EpochEnd, Grant, TrainingEnd
from heterotrain_rpc import session_pb2 as pb
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_channel
from heterotrain_rpc.identity import Identity

if TYPE_CHECKING:
    from heterotrain.worker_metrics import WorkerMetrics

ConnectShard = Callable[[int, pb.Welcome], TensorClient]


class GrantsAtHand:
    """Grants that have arrived and whose samples nobody has asked for yet. Filled by the stream's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._grants: deque[Grant] = deque()

    def arrived(self, message: pb.CoordinatorMessage) -> None:
        """Note a grant; ends are nothing to fetch."""
        decision = item_of(message).decision
        if isinstance(decision, Grant):
            with self._lock:
                self._grants.append(decision)

    def take(self, epoch: int) -> Grant | None:
        """The next one, if it is of `epoch`."""
        with self._lock:
            if self._grants and grant_epoch(self._grants[0]) == epoch:
                return self._grants.popleft()
            return None


@dataclass(frozen=True, slots=True)
class _Bound:
    """The model and what carries it, once `JobEngine.configure` has agreed on it."""

    setup: Setup
    arena: Arena
    shards: Shards
    gradients: Gradients


class JobEngine:
    """One worker among others (see `heterotrain.engine.Engine`); `open` joins the job. `clock` gives seconds."""

    def __init__(
        self, name: str, stream: SessionStream, at_hand: GrantsAtHand, connect_shard: ConnectShard,
        *, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep,
        metrics: WorkerMetrics | None = None,
    ) -> None:  # fmt: skip
        self._name = name
        self._stream = stream
        self._at_hand = at_hand
        self._connect_shard = connect_shard
        self._sleep = sleep
        self._metrics = metrics
        self._welcome = pb.Welcome()
        self._loss: PeerLostError | None = None
        self._calls = 0
        self._times = StepTimes(clock)
        self._bound: _Bound | None = None
        self._under_way = False
        """A grant was taken, and it is not known yet that its gradient is in a version."""
        self._leaving = False
        self._drained = False
        self._pulled_bytes = 0
        """Since the last done."""
        self.version = 0

    def open(self) -> Self:
        """Join; waits for the coordinator. Raises `PeerLostError` if it does not take this worker."""
        with self._noting_loss():
            self._welcome = self._stream.open()
        return self

    @property
    def seed(self) -> int:
        """The job's."""
        return self._welcome.seed

    @property
    def batch_size(self) -> int:
        """The job's ``globalBatchSize``."""
        return self._welcome.global_batch_size

    @property
    def rank(self) -> int:
        """Ordinal of this worker."""
        return self._welcome.worker

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        return self._welcome.num_workers

    @property
    def begins_anew(self) -> bool:
        """The job goes back to a checkpoint: once the script has ended, it is to begin from its first line."""
        return self._loss is not None and self._loss.again

    @property
    def may_begin_anew(self) -> bool:
        """A worker that is lost to this job may join again."""
        return self._welcome.rejoins and not self._leaving and self._loss is None

    def configure(self, setup: Setup) -> Gradients:
        """Agree on the model, bind it to an arena, give or get the initial values."""
        with self._noting_loss():
            self._send(pb.WorkerMessage(manifest=manifest_message(setup, _groups(setup))))
            accepted = self._stream.wait("manifest_accepted").manifest_accepted
            self._bound = bound = self._bind(setup)
            if accepted.push_initial_values:
                bound.arena.before_initial_push()
                bound.shards.push_initial(self._key(INITIAL_ITERATION))
                self._send(pb.WorkerMessage(initial_values_pushed=pb.InitialValuesPushed()))
            else:
                bound.shards.pull(self._welcome.term, accepted.version, frozen=True)
                self.version = accepted.version
            bound.arena.after_pull()
        return bound.gradients

    def start(self, epochs: int) -> None:
        """Ready for the first grant."""
        self._send(pb.WorkerMessage(start=pb.Start(epochs=epochs)))
        self._times.start()

    def next_item(self) -> Item:
        """Wait for the coordinator's word, then for the shards' version.

        Raises `LeftJobError` in a process that was told to end: the version has its last gradient.
        """
        with self._noting_loss():
            with self._times.pulling():
                item = item_of(self._stream.wait("item"))
                if item.decision.version != self.version:
                    bound = self._model
                    transfer = bound.shards.pull(self._welcome.term, item.decision.version, frozen=False)
                    self._times.receive(transfer, bound.arena.after_pull)
                    self.version = item.decision.version
                    self._pulled_bytes += bound.shards.pull_bytes
                    if self._metrics is not None:
                        self._metrics.pulled(self.version, bound.shards.pull_bytes)
            if isinstance(item.decision, EpochEnd):
                # A worker with grants says by its next done what it holds; the end of training is the newest version.
                self._send(pb.WorkerMessage(heartbeat=pb.Heartbeat(version=self.version)))
        if self._leaving:
            raise LeftJobError("told to end, this worker has handed its work in", handed_in=not item.dropped)
        self._under_way = isinstance(item.decision, Grant)
        self._drained = isinstance(item.decision, TrainingEnd) and item.decision.reason == DRAINED
        return item

    def leave(self) -> bool:
        """Say that this process was told to end. True: nothing is under way that is worth finishing."""
        try:
            self._stream.send(pb.WorkerMessage(leaving=pb.Leaving()))
        except PeerLostError:
            return True
        self._leaving = True
        return not self._under_way

    def take_unfetched(self, epoch: int) -> Grant | None:
        """What has arrived, in order."""
        return self._at_hand.take(epoch)

    def submit(self, update: Update) -> None:
        """Push to all shards, then say done."""
        with self._noting_loss():
            bound = self._model
            with self._times.pushing():
                bound.gradients.fill_absent()
                bound.arena.before_push()
                answers = bound.shards.push(self._key(update.grant.iteration))
            timings = self._times.done(update)
            refusing = [name for name, status in answers.items() if status is PushStatus.NOT_FINITE]
            refusal = f"{', '.join(refusing)}: {bound.arena.not_finite() or 'unknown tensor'}" if refusing else None
            absent = [bound.setup.tensors.trained[i][0] for i in bound.gradients.absent]
            traffic, self._pulled_bytes = Traffic(bound.shards.push_bytes, self._pulled_bytes), 0
            done = done_message(
                self._welcome.term, update, _groups(bound.setup), absent, timings, traffic=traffic, refusal=refusal
            )
            self._stream.send_first(pb.WorkerMessage(done=done))
            if self._metrics is not None:
                self._metrics.stepped(update.grant, timings, bound.shards.push_bytes, refused=refusal is not None)
        bound.gradients.clear()

    def evaluation_range(self, dataset_size: int) -> range:
        """Wait until all workers have called; the coordinator shares the samples out."""
        if self._drained:
            raise LeftJobError("drained, this worker has left the job: an evaluation would wait for all others")
        with self._noting_loss(), self._times.evaluating():
            self._calls += 1
            call = pb.EvaluationCall(call=self._calls, dataset_size=dataset_size, version=self.version)
            self._send(pb.WorkerMessage(evaluation_call=call))
            work = self._stream.wait("evaluation").evaluation_work
        return range(work.start, work.stop)

    def evaluation_sums(self, sums: Mapping[str, float], seconds: float) -> Mapping[str, float] | range:
        """The sums of all workers, or what a lost one had to measure."""
        with self._noting_loss(), self._times.evaluating(measured=seconds):
            part = pb.EvaluationPart(call=self._calls, sums=sums, seconds=seconds)
            self._send(pb.WorkerMessage(evaluation_part=part))
            answer = self._stream.wait("evaluation")
        if answer.HasField("evaluation_work"):
            return range(answer.evaluation_work.start, answer.evaluation_work.stop)
        return dict(answer.evaluation_outcome.sums)

    def report(self, values: Mapping[str, float]) -> None:
        """For the job's status and its stop condition."""
        self._send(pb.WorkerMessage(report=pb.Report(values=values)))

    def close(self, failure: str | None = None, *, too_many: int = 0) -> None:
        """Say how the script ended; if a peer was lost, say why as the last line on standard error."""
        failure = failure or (self._loss.reason if self._loss else None)
        if failure is None:
            self._stream.close(pb.WorkerMessage(goodbye=pb.Goodbye()))
        else:
            lost_shard = self._loss.shard if self._loss is not None else ""
            said = pb.Failure(error=failure, lost_shard=lost_shard, too_many_samples=too_many)
            self._stream.close(pb.WorkerMessage(failure=said))
        if self._bound is not None:
            self._bound.shards.close()
        if too_many:
            sys.stderr.write(
                f"heterotrain: worker {self._name} begins its script anew, with less than {too_many} samples at once\n"
            )
            sys.stderr.flush()
        if self._loss is not None:
            what = "begins its script anew" if self._loss.again else "ends"
            sys.stderr.write(f"heterotrain: worker {self._name} {what}: {self._loss.reason}\n")
            sys.stderr.flush()

    def _send(self, message: pb.WorkerMessage) -> None:
        with self._noting_loss():
            self._stream.send(message)

    def _key(self, iteration: int) -> PushKey:
        w = self._welcome
        return PushKey(w.term, w.worker, w.incarnation, iteration)

    @property
    def _model(self) -> _Bound:
        if self._bound is None:
            raise UsageError("call session.prepare before training")
        return self._bound

    def _bind(self, setup: Setup) -> _Bound:
        """Lay the model out in an arena and connect its shards (each connection is made when it is first used)."""
        layout = make_layout(setup.tensors.specs, len(self._welcome.shards))
        arena = Arena(setup.tensors, layout, setup.device)
        names = [ps_name(i) for i in range(layout.num_shards)]
        clients = [self._connect_shard(i, self._welcome) for i in range(layout.num_shards)]
        links = make_links(names, clients, layout, values=arena.values_memory, pushed=arena.pushed_memory)
        trained = [p for _, p in setup.tensors.trained]
        gradients = Gradients(trained, arena.gradient_targets(), held=setup.tensors.held)
        again = self._welcome.recovers or self._welcome.rejoins
        shards = Shards(links, self._stream.check, self._sleep, recovers=again)
        return _Bound(setup, arena, shards, gradients)

    @contextmanager
    def _noting_loss(self) -> Iterator[None]:
        """Remember why a peer was lost: what the process then says last, to the coordinator and to the user."""
        try:
            yield
        except PeerLostError as error:
            self._loss = self._loss or error
            raise


def _groups(setup: Setup) -> list[str]:
    """Hyperparameters as they are now; schedulers may have changed them."""
    try:
        return [encode_group(setup.optimizer_name, group) for group in setup.groups]
    except ValueError as error:
        raise UsageError(str(error)) from error


def join_job(job: JobSettings, device: torch.device, metrics: WorkerMetrics | None = None) -> JobEngine:
    """Join the job that the environment names. Raises `UsageError` for credentials that are not this worker's."""
    leave_inherited_alone()  # a script may fork processes of its own
    credentials = _read_credentials(job)
    at_hand = GrantsAtHand()
    join = pb.Join(
        worker=job.name,
        protocol_version=PROTOCOL_VERSION,
        library_version=heterotrain.__version__,
        device=device.type.upper(),
        host=socket.gethostname(),
    )

    def connect() -> grpc.aio.Channel:
        return make_channel(job.coordinator, ps_name(0), credentials)

    def connect_shard(shard: int, welcome: pb.Welcome) -> TensorClient:
        hello = Hello(job.name, ordinal=welcome.worker, incarnation=welcome.incarnation, term=welcome.term)
        return TcpTensorClient(welcome.shards[shard], ps_name(shard), job.certificates, hello)

    def answer(welcome: pb.Welcome, proposal: pb.PlanProposal) -> pb.PlanAnswer:
        return judge_plan(job.name, welcome, proposal.plan)

    stream = SessionStream(connect, join, answer, at_hand.arrived)
    return JobEngine(job.name, stream, at_hand, connect_shard, metrics=metrics).open()


def _read_credentials(job: JobSettings) -> Credentials:
    try:
        credentials = Credentials.read(job.certificates)
        identity = credentials.identity
    except (OSError, ValueError) as error:
        raise UsageError(f"{Env.CERTIFICATES}: {job.certificates} cannot be used: {error}") from error
    wanted = Identity(job.job_uid, Role.WORKER, job.name)
    if identity != wanted:
        raise UsageError(f"{Env.CERTIFICATES}: the certificate is for {identity.uri}, this process is {wanted.uri}")
    return credentials
