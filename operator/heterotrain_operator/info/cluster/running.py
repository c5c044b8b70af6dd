"""The information service in the operator's process: its parts put together, started and stopped.

Nothing here may keep jobs waiting or end the process: each task that fails is told in the log and begun again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from kubernetes.aio.client import ApiClient

from heterotrain_core.adaptation.values import NodeFact
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.info.api_reader import KubeReader
from heterotrain_operator.info.cluster.book import RuleBook
from heterotrain_operator.info.cluster.desk import ClusterDesk
from heterotrain_operator.info.cluster.door import RuleKube
from heterotrain_operator.info.cluster.following import Follower
from heterotrain_operator.info.cluster.pack_rules import keep_packs, pack_documents
from heterotrain_operator.info.cluster.status_writer import StatusWriter
from heterotrain_operator.info.collect import Collector
from heterotrain_operator.info.engine import Engine
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.exposition import DerivedValues
from heterotrain_operator.info.history import History
from heterotrain_operator.info.loop import InfoService
from heterotrain_operator.info.node_facts import capabilities, node_fact
from heterotrain_operator.info.pauses import shorten_pauses
from heterotrain_operator.info.readers import ReaderSettings, make_readers
from heterotrain_operator.info.sources.web import WebSettings
from heterotrain_operator.info.store import Limits, Store
from heterotrain_operator.info.telemetry import job_samples
from heterotrain_operator.info.turns import Turns
from heterotrain_operator.job.memory import JobKey
from heterotrain_operator.kube import FIELD_MANAGER, load_configuration
from heterotrain_operator.metrics import Metrics
from heterotrain_operator.rest import ClusterAccess, ClusterReviews, Tls, create_app, serve
from heterotrain_operator.settings import InfoSettings, OperatorSettings
from heterotrain_operator.sources import Sources
from heterotrain_rpc import control_pb2

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 5.0
"""From the end of a task that should not have ended until it is begun again."""
MAX_WORKERS: Final = 512
"""Of one job that samples are taken of: what a job's pods claim must not take all the room."""


class Information:
    """Started once, stopped once, on the operator's event loop."""

    def __init__(self, settings: InfoSettings, own: OperatorSettings, metrics: Metrics, sources: Sources) -> None:
        self._settings = settings
        self._own = own
        self._metrics = metrics
        self._now: Callable[[], float] = lambda: sources.now().timestamp()
        self._random = sources.random
        self._exit = AsyncExitStack()
        self._service: InfoService | None = None

    async def start(self) -> None:
        """Begin to obey rules. Whatever is missing in the cluster is waited for."""
        client = ApiClient(await load_configuration())
        client.user_agent = FIELD_MANAGER
        self._exit.push_async_callback(client.close)
        service = await self._make_service(client)
        self._service = service
        kube = RuleKube(client, self._metrics, self._own.request_timeout_seconds, self._settings.rules_namespace)
        book = RuleBook(service)
        follower = Follower(kube, book, self._random)
        shorten_pauses()
        self._keep("rules", service.run)
        self._keep("watch of rules", follower.run)
        self._keep("statuses of rules", StatusWriter(kube, book, self._now).run)
        self._keep("rule packs", lambda: self._keep_packs(kube, book, follower), once=True)
        if self._settings.rest_port:
            self._serve(client, service, ClusterDesk(kube, book, service))
        collector = DerivedValues(service, self._settings.exported_series, self._now)
        self._metrics.registry.register(collector)
        self._exit.callback(self._metrics.registry.unregister, collector)

    async def stop(self) -> None:
        """Obey no rule any more."""
        await self._exit.aclose()

    def told(self, key: JobKey, state: control_pb2.JobState) -> None:
        """A job's coordinator has said how it does; what it says of another job is not believed."""
        if self._service is None or state.job_name != key.name:
            return
        if len(state.workers) > MAX_WORKERS:
            state = control_pb2.JobState.FromString(state.SerializeToString())
            del state.workers[MAX_WORKERS:]
        self._service.push(job_samples(key.namespace, state, self._now()))

    def node_fact(self, namespace: str, pod: str, node: str) -> NodeFact | None:
        """What is known of the node below a pod; `None`: nothing, or the service does not run."""
        if self._service is None:
            return None
        return node_fact(self._service.engine.store, namespace, pod, node, self._now())

    def capabilities(self) -> Mapping[str, float]:
        """Cores that a trainer can count on, by node; empty: nothing is known."""
        return {} if self._service is None else capabilities(self._service.engine.store, self._now())

    async def _make_service(self, client: ApiClient) -> InfoService:
        settings = self._settings
        store = Store(
            Limits(
                retention_seconds=settings.retention_seconds,
                samples_per_series=settings.samples_per_series,
                series=settings.stored_series,
            )
        )
        events = EventLog()
        if settings.history_file:
            await self._remember(store, events)
        turns = Turns()
        engine = Engine(store, events, turns)
        readers, web = make_readers(reader_settings(settings, self._own.namespaces), turns, KubeReader(client))
        self._exit.push_async_callback(web.close)
        return InfoService(engine, Collector(engine, readers, self._now, self._random), self._now, self._random)

    async def _remember(self, store: Store, events: EventLog) -> None:
        history = History(Path(self._settings.history_file), self._settings.retention_seconds, self._now)
        try:
            count = await asyncio.to_thread(history.restore, store, events)
        except (OSError, sqlite3.Error):
            logger.exception("The history %s cannot be used; nothing is kept there.", self._settings.history_file)
            return
        logger.info("Took up %d samples from %s.", count, self._settings.history_file)
        history.attach(store, events)
        self._keep("history", history.run)

    async def _keep_packs(self, kube: RuleKube, book: RuleBook, follower: Follower) -> None:
        wanted = pack_documents(self._settings.rule_packs, self._settings.without_rules)
        await follower.listed.wait()
        await keep_packs(kube, book, wanted)

    def _serve(self, client: ApiClient, service: InfoService, desk: ClusterDesk) -> None:
        settings, time = self._settings, asyncio.get_running_loop().time
        access = ClusterAccess(ClusterReviews(client), settings.rules_namespace, time)
        folder = Path(settings.rest_certificates)
        tls = Tls(folder / "tls.crt", folder / "tls.key") if settings.rest_certificates else None
        app = create_app(service, access, desk, now=self._now)
        self._keep("REST API", lambda: serve(app, "0.0.0.0", settings.rest_port, tls))  # noqa: S104  # of the pod

    def _keep(self, what: str, begin: Callable[[], Awaitable[None]], *, once: bool = False) -> None:
        """Run it until `stop`; `once`: until it has ended well."""

        async def run() -> None:
            while True:
                try:
                    await begin()
                    if once:
                        return
                    logger.error("The information service's task %r has ended; it is begun again.", what)
                except (ApiError, ApiUnreachableError) as error:
                    logger.warning("The information service's task %r is tried again: %s", what, error)
                except Exception:
                    logger.exception("The information service's task %r failed; it is begun again.", what)
                await asyncio.sleep(AGAIN_SECONDS)

        task = asyncio.create_task(run(), name=f"information: {what}")
        self._exit.push_async_callback(_end, task)


def reader_settings(settings: InfoSettings, namespaces: Sequence[str]) -> ReaderSettings:
    """What rules may read in the cluster; never the output of commands."""
    return ReaderSettings(
        web=WebSettings(allowed_hosts=settings.allowed_hosts, credentials_folder=Path(settings.credentials_folder)),
        prometheus_url=settings.prometheus_url or None,
        prometheus_credentials=settings.prometheus_credentials or None,
        namespaces=namespaces,
        allow_commands=False,
    )


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
