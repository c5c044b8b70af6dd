"""Links to the coordinators of running jobs: what they say, and what is asked of them.

One task per job holds a ``Watch`` stream to the pod of ps-0, with the operator's certificate from the job's Secret. It
is bound to the pod's UID and address: another pod is another link. Training does not need it; nothing in a pass waits
for it. States and answers are taken up by the next pass, which they wake.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import grpc
import grpc.aio

from heterotrain_api.contract import Port, ps_name
from heterotrain_operator.job.asking import (
    as_command,
    as_plan,
    as_scaling,
    reply_answer,
    scaling_answer,
    verdict_answer,
)
from heterotrain_operator.job.decision import ApplyPlan, ScaleGroup, SendCommand
from heterotrain_operator.job.observed import Answer, PodSeen, TrainingSeen, Unreachable
from heterotrain_operator.job.slots import COORDINATOR_SLOT
from heterotrain_operator.settings import OperatorSettings
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_channel
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub

if TYPE_CHECKING:
    from heterotrain_rpc.control_pb2_grpc import CoordinatorAsyncStub

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS: Final = 0.5
STARTING_BACKOFF_SECONDS: Final = 1.0
STARTING_SECONDS: Final = 60.0
"""A coordinator that has not answered yet is most likely being started: for so long it is called each
`STARTING_BACKOFF_SECONDS`, since whoever hears of a short training late can do nothing for it."""
Request = ApplyPlan | SendCommand | ScaleGroup


class Target(NamedTuple):
    """Which pod a link is to."""

    pod_uid: str
    address: str


def coordinator_target(pods: tuple[PodSeen, ...]) -> Target | None:
    """The pod to talk to: of ps-0's that run and have an address, the newest attempt. Pure."""
    running = [
        pod
        for pod in pods
        if (pod.group, pod.index) == (COORDINATOR_SLOT.group, COORDINATOR_SLOT.index)
        and pod.phase == "Running"
        and pod.ip
    ]
    if not running:
        return None
    newest = max(running, key=lambda pod: pod.attempt)
    host = f"[{newest.ip}]" if ":" in newest.ip else newest.ip
    return Target(newest.uid, f"{host}:{Port.COORDINATOR}")


def backoff_seconds(failures: int, longest: float) -> float:
    """How long to wait after so many failures in a row (from 1), in seconds. Pure."""
    return min(longest, FIRST_BACKOFF_SECONDS * (1 << min(failures - 1, 16)))


def is_news(before: control_pb2.JobState | None, after: control_pb2.JobState) -> bool:
    """Whether a state is worth a pass at once: not mere progress. Pure."""
    if before is None:
        return True
    return _gist(before) != _gist(after)


def _gist(state: control_pb2.JobState) -> object:
    plan = state.plan
    return (
        state.phase,
        state.reason,
        state.epochs,
        state.model_path,
        (plan.generation, plan.effective_round, plan.effective_round <= state.version),
        state.events[-1].sequence if state.events else 0,
        tuple((group.name, group.replicas) for group in state.groups),
        tuple((worker.name, worker.phase, worker.error) for worker in state.workers),
    )


@dataclass(slots=True)
class _Link:
    target: Target
    credentials: Callable[[], Awaitable[Credentials]]
    wake: Callable[[], None]
    told: Callable[[control_pb2.JobState], None]
    seen: TrainingSeen | None
    unreachable: Unreachable | None = None
    known: Credentials | None = None
    """Read once while the coordinator is being started, later for each attempt."""
    stub: CoordinatorAsyncStub | None = None
    task: asyncio.Task[None] | None = None
    asked: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    woken_at: float = float("-inf")


class Links:
    """All links, by the job's UID. Used on the event loop only."""

    def __init__(
        self,
        settings: OperatorSettings,
        now: Callable[[], datetime],
        random: Callable[[], float],
        channel: Callable[[str, str, Credentials], grpc.aio.Channel] = make_channel,
    ) -> None:
        self._settings = settings
        self._now = now
        self._random = random
        self._channel = channel
        self._links: dict[str, _Link] = {}

    def seen(self, job_uid: str) -> TrainingSeen | None:
        """What the coordinator said last, however long ago."""
        link = self._links.get(job_uid)
        return None if link is None else link.seen

    def unreachable(self, job_uid: str) -> Unreachable | None:
        """Since when, and why, the coordinator does not answer; `None`: it does, or was not tried yet."""
        link = self._links.get(job_uid)
        return None if link is None else link.unreachable

    def keep(
        self,
        job_uid: str,
        target: Target | None,
        credentials: Callable[[], Awaitable[Credentials]],
        wake: Callable[[], None],
        told: Callable[[control_pb2.JobState], None] = lambda _: None,
    ) -> None:
        """Have a link to `target`; one to another pod is closed. `None`: none now, what was said is kept.

        `wake` is called for news, `told` with every state.
        """
        link = self._links.get(job_uid)
        if link is not None and link.target == target and link.task is not None:
            return
        if link is not None:
            self._stop(link)
        if target is None:
            return
        link = _Link(target, credentials, wake, told, None if link is None else link.seen)
        link.task = asyncio.create_task(self._hold(link), name=f"link to {target.address}")
        self._links[job_uid] = link

    def close(self, job_uid: str) -> None:
        """The job is gone: forget all of it."""
        link = self._links.pop(job_uid, None)
        if link is not None:
            self._stop(link)

    async def close_all(self) -> None:
        """Close all links and wait for their ends."""
        tasks = [task for link in self._links.values() for task in (link.task, *link.asked.values()) if task]
        for job_uid in tuple(self._links):
            self.close(job_uid)
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, job_uid: str, request: Request, answered: Callable[[Answer], None]) -> None:
        """Ask the coordinator; `answered` is called with its answer, then the job is woken.

        A request that is on its way already is not sent again; without a connection nothing is sent, and the next
        pass asks again.
        """
        link = self._links.get(job_uid)
        if link is None or link.stub is None or request.request_id in link.asked:
            return
        task = asyncio.create_task(self._ask(link, link.stub, request, answered), name=f"request {request.request_id}")
        link.asked[request.request_id] = task

    def propose(
        self, job_uid: str, plan: control_pb2.Plan, answered: Callable[[control_pb2.PlanVerdict | str], None]
    ) -> None:
        """Propose a plan of our own; `answered` is called once, with the verdict or why there is none."""
        link = self._links.get(job_uid)
        if link is None or link.stub is None:
            answered("the coordinator is not connected")
            return
        name = f"plan {plan.generation}"
        link.asked[name] = asyncio.create_task(self._propose(link, link.stub, name, plan, answered), name=name)

    async def _propose(
        self,
        link: _Link,
        stub: CoordinatorAsyncStub,
        name: str,
        plan: control_pb2.Plan,
        answered: Callable[[control_pb2.PlanVerdict | str], None],
    ) -> None:
        verdict: control_pb2.PlanVerdict | str = "the link was closed"
        try:
            verdict = await stub.Apply(plan, timeout=self._settings.coordinator_timeout_seconds)
        except grpc.aio.AioRpcError as error:
            verdict = f"{error.code().name}: {error.details()}"
        finally:
            link.asked.pop(name, None)
            answered(verdict)

    def _stop(self, link: _Link) -> None:
        for task in (link.task, *link.asked.values()):
            if task is not None:
                task.cancel()
        link.task = link.stub = link.unreachable = None
        if link.seen is not None:
            link.seen = replace(link.seen, connected=False)

    async def _hold(self, link: _Link) -> None:
        """Watch until closed; after a failure again, at growing distances."""
        failures, time = 0, asyncio.get_running_loop().time
        starting_until = time() + STARTING_SECONDS
        while True:
            try:
                async for state in self._watch(link):
                    failures, starting_until = 0, time()
                    self._take(link, state)
                reason = "it ended the stream"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            except Exception as error:  # the API server's, or of the Secret: tried again as well
                reason = f"{type(error).__name__}: {error}"
                logger.debug("Link to %s could not be opened.", link.target.address, exc_info=True)
            self._lose(link, reason)
            failures += 1
            starting = time() < starting_until
            if not starting:
                link.known = None
            longest = self._settings.link_backoff_seconds
            wait = backoff_seconds(failures, min(longest, STARTING_BACKOFF_SECONDS) if starting else longest)
            await asyncio.sleep(wait * (0.5 + self._random() / 2))

    async def _watch(self, link: _Link) -> AsyncIterator[control_pb2.JobState]:
        request = control_pb2.WatchRequest(min_interval_seconds=self._settings.link_interval_seconds)
        async with self._connect(link) as stub:
            async for state in stub.Watch(request):
                link.stub = stub
                yield state

    @asynccontextmanager
    async def _connect(self, link: _Link) -> AsyncIterator[CoordinatorAsyncStub]:
        if link.known is None:
            link.known = await link.credentials()
        channel = self._channel(link.target.address, ps_name(0), link.known)
        stub: CoordinatorAsyncStub = CoordinatorStub(channel)
        try:
            yield stub
        finally:
            link.stub = None
            await channel.close()

    def _take(self, link: _Link, state: control_pb2.JobState) -> None:
        before = link.seen
        link.seen, link.unreachable = TrainingSeen(state, self._now(), connected=True), None
        news = before is None or not before.connected or is_news(before.state, state)
        time = asyncio.get_running_loop().time()
        if news or time - link.woken_at >= self._settings.link_wake_seconds:
            link.woken_at = time
            link.wake()
        link.told(state)

    def _lose(self, link: _Link, reason: str) -> None:
        """An attempt has failed, or a stream has ended: the first time is news, so that a pass can count from it."""
        before = link.unreachable
        link.unreachable = Unreachable(self._now(), reason) if before is None else replace(before, why=reason)
        if link.seen is not None and link.seen.connected:
            logger.info("Lost the coordinator at %s: %s.", link.target.address, reason)
            link.seen = replace(link.seen, connected=False)
        if before is None:
            link.wake()

    async def _ask(
        self, link: _Link, stub: CoordinatorAsyncStub, request: Request, answered: Callable[[Answer], None]
    ) -> None:
        timeout = self._settings.coordinator_timeout_seconds
        try:
            match request:
                case ApplyPlan():
                    answer = verdict_answer(request, await stub.Apply(as_plan(request), timeout=timeout))
                case SendCommand():
                    answer = reply_answer(request, await stub.Command(as_command(request), timeout=timeout))
                case ScaleGroup():
                    answer = scaling_answer(request, await stub.Command(as_scaling(request), timeout=timeout))
        except grpc.aio.AioRpcError as error:
            if error.code() in _ASK_AGAIN:
                logger.info("Request %s was not answered: %s.", request.request_id, error.details())
                return
            answer = Answer(request.request_id, False, error.details() or error.code().name)
        finally:
            link.asked.pop(request.request_id, None)
        answered(answer)
        link.wake()


_ASK_AGAIN: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)
"""No answer: the next pass asks again."""
