"""The running operator: what the handlers call, put together from its parts. No kopf here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

from heterotrain_api.contract import Label
from heterotrain_core.adaptation.values import NodeFact
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.info.cluster.running import Information
from heterotrain_operator.job.memory import JobKey
from heterotrain_operator.job.reconcile import Decide, Reconciler, World
from heterotrain_operator.job.seen import is_ours, job_of
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.kube import Kube, connect
from heterotrain_operator.link import Links, backoff_seconds
from heterotrain_operator.metrics import Metrics, serve
from heterotrain_operator.rights import Right, Rights
from heterotrain_operator.settings import InfoSettings, OperatorSettings
from heterotrain_operator.sources import Sources
from heterotrain_operator.supervisor import Supervisor
from heterotrain_operator.watch_ledger import Version, WatchLedger, version_of
from heterotrain_rpc import control_pb2

logger = logging.getLogger(__name__)

JOBS: Final = "heterotrainjobs"
NO_CRD: Final = (
    "the cluster does not know HeteroTrainJobs: install the CRD, "
    "for example with kubectl apply -f crds/heterotrainjobs.yaml"
)


class CannotStartError(Exception):
    """The operator cannot do its work here; the message says what to do."""


class Operator:
    """Started once, stopped once. Events and questions come on its event loop."""

    def __init__(
        self,
        settings: OperatorSettings,
        job_settings: JobSettings,
        decide: Decide,
        info_settings: InfoSettings | None = None,
        sources: Sources | None = None,
    ) -> None:
        self._settings = settings
        self._job_settings = job_settings
        self._decide = decide
        self._info_settings = info_settings or InfoSettings()
        self._sources = sources or Sources()
        self._exit = AsyncExitStack()
        self._loop_task: asyncio.Task[None] | None = None
        self.metrics: Final = Metrics()
        self._time: Callable[[], float] = asyncio.get_running_loop().time
        self._jobs: Final = WatchLedger(self._time())
        self._pods: Final = WatchLedger(self._time())
        self._supervisor: Supervisor | None = None
        self._kube: Kube | None = None
        self._information: Information | None = None
        self._rights: Rights | None = None
        self._rights_task: asyncio.Task[None] | None = None
        self._without_crd = False

    async def start(self) -> None:
        """Connect and begin to attend jobs. Raises `CannotStartError`."""
        settings, sources = self._settings, self._sources
        kube = await self._exit.enter_async_context(connect(self.metrics, settings.request_timeout_seconds))
        self._kube = kube
        await self._first_contact()
        if self._info_settings.rules_namespace:
            self._information = Information(self._info_settings, settings, self.metrics, sources)
            self._exit.push_async_callback(self._information.stop)
            await self._information.start()
        links = Links(settings, sources.now, sources.random)
        self._exit.push_async_callback(links.close_all)
        world = World(
            kube=kube,
            links=links,
            decide=self._decide,
            settings=settings,
            job_settings=self._job_settings,
            now=sources.now,
            wake=self.wake,
            saw_pods=self._saw_pods,
            forget=self._pods.forget,
            told=self._told,
            node_fact=self._node_fact,
            capabilities=lambda: {} if self._information is None else self._information.capabilities(),
            metrics=self.metrics,
        )
        reconciler = Reconciler(world)
        self._supervisor = Supervisor(
            reconciler.run,
            self._list_jobs,
            settings=settings,
            metrics=self.metrics,
            now=sources.now,
            random=sources.random,
        )
        self._exit.push_async_callback(self._supervisor.stop)
        self._loop_task = asyncio.create_task(self._supervisor.run(), name="supervisor")
        self._exit.push_async_callback(self._end_loop, self._loop_task)
        self._rights = Rights(_may(kube), settings.namespaces, self.metrics.forbidden)
        self._rights_task = asyncio.create_task(self._look_at_rights(self._rights), name="rights")
        self._exit.push_async_callback(self._end_loop, self._rights_task)
        for resource, ledger in (("jobs", self._jobs), ("pods", self._pods)):
            self.metrics.follow(resource, _asked(ledger.age, self._time), ledger.lag)
        if settings.metrics_port:
            self._exit.callback(serve(self.metrics, settings.metrics_port, self.ready))

    async def stop(self) -> None:
        """Leave everything as it is: jobs go on without the operator."""
        await self._exit.aclose()

    def wake(self, key: JobKey) -> None:
        """A pass for the job, soon."""
        if self._supervisor is not None:
            self._supervisor.wake(key)

    def job_event(self, kind: str | None, job: Mapping[str, Any]) -> None:
        """The watch brought a job: new, changed, or deleted (`kind`: ``DELETED``)."""
        meta = job["metadata"]
        self._jobs.delivered(meta["namespace"], version_of(meta), deleted=kind == "DELETED", now=self._time())
        self.wake(JobKey(meta["namespace"], meta["name"]))

    def pod_event(self, kind: str | None, pod: Mapping[str, Any]) -> None:
        """The watch brought a pod of some job."""
        meta = pod["metadata"]
        job_uid = meta["labels"][Label.JOB_UID]  # the watch selects by it
        gone = kind == "DELETED" or not is_ours(meta, job_uid)
        self._pods.delivered(job_uid, version_of(meta), deleted=gone, now=self._time())
        name = job_of(meta)
        if name is not None:
            self.wake(JobKey(meta["namespace"], name))

    def ready(self) -> bool:
        """All jobs are known and attended, with all rights that it takes; asked in another thread."""
        listed = self._supervisor is not None and self._supervisor.listed
        return listed and self._rights is not None and self._rights.settled and not self._rights.missing

    def trouble(self) -> str | None:
        """Why the process should be started anew; `None`: it should not.

        An API server that does not answer is no reason, nor is a watch that is not allowed: a new process would not
        fare better.
        """
        now = self._time()
        if self._without_crd:
            return NO_CRD  # kopf looks for it only when it starts
        if self._loop_task is not None and self._loop_task.done():
            return "the supervisor has ended"
        if self._rights_task is not None and self._rights_task.done():
            return "the task that looks at the operator's rights has ended"
        if self._supervisor is not None and now - self._supervisor.beat > self._settings.loop_stuck_seconds:
            return f"the supervisor has not come round for {now - self._supervisor.beat:.0f} s"
        for resource, ledger in (("jobs", self._jobs), ("pods", self._pods)):
            lag = ledger.lag()
            if lag > self._settings.watch_stale_seconds and not self._may_not_watch(resource):
                return f"the watch of {resource} has withheld an event for {lag:.0f} s"
        return None

    async def _first_contact(self) -> None:
        """One look whether the operator can work here. No answer is no reason to end: kopf and the supervisor wait."""
        try:
            await self._list_jobs()
        except ApiUnreachableError as error:
            logger.warning("The API server does not answer yet: %s", error)
        except ApiError as error:
            if self._without_crd:
                raise CannotStartError(NO_CRD) from None
            if error.is_refusal:
                raise CannotStartError(
                    f"the operator may not list HeteroTrainJobs; give its service account the chart's role: {error}"
                ) from None
            logger.warning("The API server does not answer as it should yet: %s", error)

    async def _list_jobs(self) -> list[JobKey]:
        assert self._kube is not None  # noqa: S101  # set before this is called
        found: list[Mapping[str, Any]] = []
        for namespace in self._settings.namespaces or (None,):
            try:
                jobs = await self._kube.list_job_metadata(namespace)
            except ApiError as error:
                self._without_crd = error.status == 404
                raise
            found += [job["metadata"] for job in jobs]
        self._without_crd = False
        by_namespace: dict[str, list[Version]] = {scope: [] for scope in self._jobs.scopes}
        for meta in found:
            by_namespace.setdefault(meta["namespace"], []).append(version_of(meta))
        for scope, versions in by_namespace.items():
            self._jobs.listed(scope, versions, self._time())
        return [JobKey(meta["namespace"], meta["name"]) for meta in found]

    def _saw_pods(self, job_uid: str, pods: Sequence[Version]) -> None:
        self._pods.listed(job_uid, pods, self._time())

    def _told(self, key: JobKey, state: control_pb2.JobState) -> None:
        if self._information is not None:
            self._information.told(key, state)

    def _node_fact(self, namespace: str, pod: str, node: str) -> NodeFact | None:
        return None if self._information is None else self._information.node_fact(namespace, pod, node)

    def _may_not_watch(self, resource: str) -> bool:
        plural = JOBS if resource == "jobs" else resource
        return self._rights is not None and any(self._rights.lacks(verb, plural) for verb in ("list", "watch"))

    async def _look_at_rights(self, rights: Rights) -> None:
        unanswered, longest = 0, self._settings.full_pass_seconds
        while True:
            # A watch that withholds something may have lost its right, of which only kopf is told.
            await rights.look(anew=self._jobs.lag() > 0 or self._pods.lag() > 0)
            # Until the API server has answered once, the operator is not ready.
            unanswered = 0 if rights.settled else unanswered + 1
            await asyncio.sleep(backoff_seconds(unanswered, longest) if unanswered else longest)

    async def _end_loop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _may(kube: Kube) -> Callable[[Right], Awaitable[bool]]:
    return lambda right: kube.may(right.verb, right.group, right.resource, right.namespace)


def _asked(question: Callable[[float], float], time: Callable[[], float]) -> Callable[[], float]:
    return lambda: question(time())
