"""A job on a real API server whose pods exist there only, with a real coordinator on loopback."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from heterotrain_api.contract import Port
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials
from support.control_plane import Namespace
from support.fake_coordinator import FakeCoordinator, serve
from support.play import run, until_complete

WORKERS = ("cpu-0", "cpu-1", "cpu-2")
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_hosts = (f"127.{9 + _process}.0.{number}" for number in itertools.count(2))
"""An address for each job: processes of pytest run tests side by side."""


def training(version: int) -> control_pb2.JobState:
    workers = [
        control_pb2.WorkerState(
            name=name, group="cpu", phase=control_pb2.WORKER_PHASE_TRAINING, share_wanted=21, share_applied=21
        )
        for name in WORKERS
    ]
    shares = [control_pb2.PlanShare(worker=name, samples=21) for name in WORKERS]
    return control_pb2.JobState(
        job_name="fashion",
        phase=control_pb2.PHASE_TRAINING,
        reason="Training",
        epochs=2,
        version=version,
        samples=64 * version,
        dataset_size=64_000,
        global_batch_size=64,
        rounds_planned=2000,
        samples_per_second=64.0 + version,
        ideal_samples_per_second=80.0 + version,
        workers=workers,
        plan=control_pb2.PlanState(generation=1, shares=shares),
        shards=1,
        synchronization=control_pb2.SynchronizationState(
            mode="BSP", wanted=control_pb2.Synchronization(mode="BSP"), bound_in_force=0
        ),
    )


class Running:
    """A coordinator whose training goes on by a round each half second, in a thread of its own."""

    def __init__(
        self, credentials: Credentials, job_uid: str, say: Callable[[int], control_pb2.JobState] = training
    ) -> None:
        self._say = say
        self.host = next(_hosts)
        self.coordinator: FakeCoordinator | None = None
        self._credentials, self._uid = credentials, job_uid
        self._loop = asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10)

    def stop(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self.coordinator, self._stop = FakeCoordinator(state=self._say(1)), asyncio.Event()
        address = f"{self.host}:{Port.COORDINATOR}"
        async with serve(self.coordinator, self._credentials, self._uid, address):
            self._started.set()
            for version in itertools.count(2):
                try:
                    async with asyncio.timeout(0.5):
                        await self._stop.wait()
                except TimeoutError:
                    await self.coordinator.say(self._say(version))
                else:
                    return


@contextmanager
def coordinator_of(
    namespace: Namespace, job_uid: str, say: Callable[[int], control_pb2.JobState] = training
) -> Iterator[Running]:
    """Play kubelet: all pods run, and in ps-0 the coordinator, which says of each version what `say` gives."""
    data: Mapping[str, str] = namespace.list("secrets")[0]["data"]
    own = {key: base64.b64decode(data[key]) for key in ("ca.crt", "ps-0.crt", "ps-0.key")}
    running = Running(Credentials(own["ca.crt"], own["ps-0.crt"], own["ps-0.key"]), job_uid, say)
    running.start()
    try:
        for pod in until_complete(namespace, job_uid, 4):
            name = pod["metadata"]["name"]
            if "-ps-0-" in name:
                run(namespace, name, ip=running.host, names=("trainer", "coordinator"))
            else:
                run(namespace, name)
        yield running
    finally:
        running.stop()
