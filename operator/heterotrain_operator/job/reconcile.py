"""One pass over a job: observe, decide, carry out; nothing else is decided here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from heterotrain_api.contract import Role
from heterotrain_core.adaptation.values import NodeFact
from heterotrain_operator.adaptation import PlaceSeen
from heterotrain_operator.adapting import JobLoop
from heterotrain_operator.job.carry_out import Outcome, Request, Tools, carry_out
from heterotrain_operator.job.decision import Decision
from heterotrain_operator.job.event_log import EventLog
from heterotrain_operator.job.memory import JobKey, Memory, worth_saying
from heterotrain_operator.job.names import secret_name
from heterotrain_operator.job.observe import observe
from heterotrain_operator.job.observed import Observed
from heterotrain_operator.job.replacing import irreplaceable
from heterotrain_operator.job.secret import BrokenSecretError, operator_credentials
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.slots import Slot, is_gone
from heterotrain_operator.kube import Kube
from heterotrain_operator.link import Links, coordinator_target
from heterotrain_operator.metrics import Metrics
from heterotrain_operator.settings import OperatorSettings
from heterotrain_operator.supervisor import Pass
from heterotrain_operator.watch_ledger import Version
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials

logger = logging.getLogger(__name__)

Decide = Callable[[Observed, JobSettings, datetime], Decision]


@dataclass(frozen=True, slots=True)
class World:
    """What passes act on and are decided by."""

    kube: Kube
    links: Links
    decide: Decide
    settings: OperatorSettings
    job_settings: JobSettings
    now: Callable[[], datetime]
    wake: Callable[[JobKey], None]
    saw_pods: Callable[[str, Sequence[Version]], None]
    """Told which pods of a job (by its UID) a pass saw, to compare it with what the watch brings."""
    forget: Callable[[str], None]
    """Told that a job (by its UID) is no more."""
    clock: Callable[[], float] = time.monotonic
    """For the adaptation loops, in seconds."""
    told: Callable[[JobKey, control_pb2.JobState], None] = lambda _key, _state: None
    """Told each state that a job's coordinator sends."""
    node_fact: Callable[[str, str, str], NodeFact | None] = lambda _namespace, _pod, _node: None
    """What the information service knows of the node below a pod."""
    capabilities: Callable[[], Mapping[str, float]] = dict
    """Cores that a trainer can count on, by node, as far as the information service knows."""
    metrics: Metrics | None = None
    cpu: Callable[[], float] = time.thread_time


class Reconciler:
    """Makes passes. The supervisor sees to it that a job has one at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._memories: dict[JobKey, Memory] = {}
        self._rungs: dict[JobKey, str] = {}

    async def run(self, key: JobKey) -> Pass:
        """One pass; raises what the outside raises, for the supervisor to judge."""
        world = self._world
        now = world.now()
        observed = await observe(
            world.kube, key, lambda uid: self._memory(key, uid), world.links, world.saw_pods, now=now
        )
        if observed is None:
            self._forget(key)
            return Pass(gone=True)
        observed = replace(observed, capabilities=world.capabilities())
        memory = self._memory(key, observed.job["metadata"]["uid"])
        if memory.loop is not None:
            memory.loop.follow(observed.job)
            fixed = irreplaceable(observed, world.job_settings, now) if memory.loop.may_replace else {}
            memory.loop.place(_places(observed), fixed)
        decision = world.decide(observed, world.job_settings, now)
        self._explain(key, decision)
        self._keep_link(key, memory, observed)
        tools = Tools(
            kube=world.kube,
            events=memory.events,
            send=lambda request: self._send(memory, request),
            concurrent_creates=world.settings.concurrent_creates,
        )
        outcome = await carry_out(decision, observed, tools, now)
        news = self._remember(memory, outcome)
        memory.remember_made(outcome.made, now)
        if outcome.error is not None:
            raise outcome.error
        memory.looked = memory.looked or decision.looked
        return Pass(wake_at=decision.wake_at, again=news)

    def _memory(self, key: JobKey, uid: str) -> Memory:
        memory = self._memories.get(key)
        if memory is None or memory.uid != uid:
            # A new job of that name: nothing of the old one counts.
            self._forget(key)
            memory = Memory(uid, EventLog(timedelta(seconds=self._world.settings.event_repeat_seconds)))
            world = self._world
            memory.loop = JobLoop(
                world.clock,
                now=world.now,
                facts=lambda place: world.node_fact(key.namespace, place.pod, place.node),
                metrics=world.metrics,
                cpu=world.cpu,
            )
            self._memories[key] = memory
        return memory

    def _forget(self, key: JobKey) -> None:
        memory = self._memories.pop(key, None)
        self._rungs.pop(key, None)
        if memory is not None:
            self._world.links.close(memory.uid)
            self._world.forget(memory.uid)

    def _remember(self, memory: Memory, outcome: Outcome) -> bool:
        """Keep the outcome; true if it says something that the status does not say yet."""
        foreign = tuple(sorted(outcome.foreign))
        refusals = worth_saying(outcome.refusals, outcome.passing, memory.failed)
        news = dict(memory.refusals) != refusals or memory.foreign != foreign
        memory.refusals, memory.foreign, memory.failed = refusals, foreign, frozenset(outcome.passing)
        return news and bool(refusals or foreign)

    def _explain(self, key: JobKey, decision: Decision) -> None:
        changed = self._rungs.get(key) != decision.why
        self._rungs[key] = decision.why
        logger.log(logging.INFO if changed else logging.DEBUG, "Job %s: %s.", key, decision.why or "nothing to do")

    def _keep_link(self, key: JobKey, memory: Memory, observed: Observed) -> None:
        async def credentials() -> Credentials:
            name = secret_name(key.name, memory.uid)
            secret = await self._world.kube.get_secret(key.namespace, name)
            if secret is None:
                raise BrokenSecretError(f"Secret {key.namespace}/{name} does not exist")
            return operator_credentials(secret)

        target = coordinator_target(observed.pods)
        self._world.links.keep(
            memory.uid,
            target,
            credentials,
            lambda: self._world.wake(key),
            lambda state: self._told(key, memory, state),
        )

    def _told(self, key: JobKey, memory: Memory, state: control_pb2.JobState) -> None:
        self._world.told(key, state)
        if memory.loop is None:
            return
        links = self._world.links
        if memory.loop.take(str(key), state, lambda plan, answered: links.propose(memory.uid, plan, answered)):
            self._world.wake(key)

    def _send(self, memory: Memory, request: Request) -> None:
        self._world.links.send(memory.uid, request, memory.remember_answer)


def _places(observed: Observed) -> dict[str, PlaceSeen]:
    """Where each worker runs: of its pods the newest that is not gone."""
    pods = sorted(
        (pod for pod in observed.pods if pod.role is Role.WORKER and not is_gone(pod)), key=lambda p: p.attempt
    )
    return {Slot(pod.role, pod.group, pod.index).name: PlaceSeen(pod.name, pod.node) for pod in pods}
