"""Runs one job on this machine: observe (exits, states, clock, signals) -> `decide` -> act, in one event loop.

Starting the processes is a task beside that loop, so that whatever goes wrong meanwhile is judged by the same ladder.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from heterotrain_api.trainer_config import ShardConfig, TrainerConfig
from heterotrain_operator.adaptation import loop_settings
from heterotrain_operator.job.outcome import Outcome, State
from heterotrain_operator.job.trainer_config import (
    WorkerSlot,
    trainer_config,
    with_replicas,
    worker_configs,
    worker_slots,
)
from heterotrain_operator.local.adapt import LocalLoop
from heterotrain_operator.local.cause import Kind
from heterotrain_operator.local.decide import End, Limits, Observed, Progress, Restart, decide
from heterotrain_operator.local.process_plan import COORDINATOR, LOOPBACK, ProcessPlan, ready_ports
from heterotrain_operator.local.progress import Display
from heterotrain_operator.local.registry import Entry, Registry
from heterotrain_operator.local.report import Record
from heterotrain_operator.local.report_files import write_report
from heterotrain_operator.local.supervisor import Command, Supervisor
from heterotrain_operator.local.watch import History, HistoryPoint, ask_to_stop, watch
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials

TICK_SECONDS: Final = 0.25
READY_POLL_SECONDS: Final = 0.05
STOP_GRACE_SECONDS: Final = 5.0
"""From SIGTERM to SIGKILL."""
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STARTING_PHASES: Final = frozenset({control_pb2.PHASE_UNSPECIFIED, control_pb2.PHASE_WAITING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How the job ended, and its report."""

    state: State
    message: str
    log: Path | None
    """Log of the process to look at, if one is to blame."""
    report: Mapping[str, Any]


class Runner:
    """One job, from its first process to its report. Used once."""

    def __init__(
        self,
        plan: ProcessPlan,
        registry: Registry,
        display: Display,
        limits: Limits,
        issue: Callable[[str], None],
    ) -> None:
        """`issue` makes credentials for a worker by name."""
        self._plan = plan
        self._registry = registry
        self._display = display
        self._limits = limits
        self._supervisor = Supervisor()
        self._seen = Observed(now=0.0, job_started=time.monotonic())
        self._history = History()
        spec = plan.job.spec
        self._loop = LocalLoop(
            loop_settings(spec, no_replacing="this machine is the only one"),
            {worker.name: worker.share for worker in worker_configs(spec)},
            plan.folder.decisions,
            say=display.say,
            clock=time.monotonic,
        )
        self._last: control_pb2.JobState | None = None
        self._training: control_pb2.JobState | None = None
        self._coordinator = ""
        self._credentials: Credentials | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._issue = issue
        self._again: dict[str, Command] = {}
        """How to start a process once more, at the address that the others know."""
        self._config: TrainerConfig | None = None
        self._replicas: dict[str, int] = {}
        """Of each group, as the coordinator wants them."""
        self._wanted: set[str] = set()
        """Workers that were added and are not started yet."""
        self._restores = 0
        self._ending = False

    async def run(self, entry: Entry) -> Result:
        """Run the job to its end, whatever that is. `entry`: as it stands in the registry while the job runs."""
        self._entry = entry
        self._registry.write(entry)
        try:
            with _signals(self._on_interrupt):
                async with self._supervisor:
                    self._tasks.append(asyncio.create_task(self._start(entry)))
                    end = await self._until_end()
                    self._ending = True
                    await self._stop_processes(at_once=end.at_once)
                await self._cancel_tasks()
                result = self._report(end)
        finally:
            self._plan.folder.forget_credentials()
        self._registry.write(replace(self._entry, coordinator="", state=result.state.value, message=result.message))
        return result

    async def _until_end(self) -> End:
        while True:
            self._supervisor.changed.clear()
            self._raise_failures_of_tasks()
            verdict = decide(self._observe(), self._limits)
            if isinstance(verdict, End):
                return verdict
            if isinstance(verdict, Restart):
                await self._restart(verdict)
                continue
            await self._start_added()
            try:
                await asyncio.wait_for(self._supervisor.changed.wait(), TICK_SECONDS)
            except TimeoutError:
                continue

    def _observe(self) -> Observed:
        now = time.monotonic()
        outcome = self._seen.outcome or self._read_outcome()
        self._seen = replace(
            self._seen,
            now=now,
            exits=self._supervisor.exits,
            running=self._supervisor.running,
            outcome=outcome,
            outcome_seen=self._seen.outcome_seen if self._seen.outcome is not None else now,
        )
        return self._seen

    def _read_outcome(self) -> Outcome | None:
        try:
            return Outcome.from_json(self._plan.folder.outcome.read_text())
        except (FileNotFoundError, ValueError):
            # Not there yet, or not whole yet.
            return None

    # Starting

    async def _start(self, entry: Entry) -> None:
        plan = self._plan
        shards = [plan.ps_command(index) for index in range(plan.num_shards)]
        for command in shards:
            await self._supervisor.start(command)
        ports = [await self._ready(command) for command in shards]
        for index, command in enumerate(shards):
            self._again[command.name] = plan.ps_command(index, ports[index])
        self._config = trainer_config(
            plan.job,
            uid=plan.uid,
            shards=[
                ShardConfig(control_address=f"{LOOPBACK}:{p['control']}", tensor_address=f"{LOOPBACK}:{p['tensor']}")
                for p in ports
            ],
            output=str(plan.folder.report),
            restarts=True,
            resume=str(plan.resume) if plan.resume is not None else "",
            recording=str(plan.folder.recording) if plan.record else "",
        )
        plan.folder.write_config(self._config)
        coordinator = plan.coordinator_command()
        await self._supervisor.start(coordinator)
        port = (await self._ready(coordinator))["control"]
        self._coordinator = f"{LOOPBACK}:{port}"
        self._again[coordinator.name] = plan.coordinator_command(port)
        workers = [plan.worker_command(slot, self._coordinator) for slot in plan.slots]
        names = tuple(command.name for command in (*shards, coordinator, *workers))
        self._entry = replace(entry, coordinator=self._coordinator, processes=names)
        self._registry.write(self._entry)
        self._again |= {command.name: command for command in workers}
        for command in workers:
            await self._supervisor.start(command)
        now = time.monotonic()
        self._seen = replace(self._seen, workers_started=now, absent=frozenset(command.name for command in workers))
        self._credentials = plan.folder.operator_credentials()
        self._loop.connect(self._coordinator, self._credentials)
        self._tasks.append(
            asyncio.create_task(watch(self._coordinator, self._credentials, self._on_state, self._on_silence))
        )

    async def _restart(self, restart: Restart) -> None:
        """Start a lost process again, at its old address.

        The coordinator takes the job back to a checkpoint; or a worker back, without which the job has gone on.
        """
        command, limits = self._again[restart.name], self._limits
        if command.kind is Kind.WORKER:
            count, most = self._seen.rejoins.get(restart.name, 0) + 1, limits.rejoins
            self._seen = replace(self._seen, rejoins={**self._seen.rejoins, restart.name: count})
        else:
            count, most = self._seen.restarts + 1, limits.restarts
            self._seen = replace(self._seen, restarts=count, silent_since=None)
        self._display.say(f"{restart.why}; it is started again ({count} of {most})")
        await self._supervisor.start(command)

    async def _start_added(self) -> None:
        """Start workers by which a group was scaled up, each once the process that had its name before has ended."""
        for name in sorted(self._wanted - set(self._supervisor.running)):
            self._wanted.discard(name)
            slot = next(s for s in self._slots(self._replicas) if s.name == name)
            self._issue(name)
            command = self._again[name] = self._plan.worker_command(slot, self._coordinator)
            self._display.say(f"worker {name} is started")
            if name not in self._entry.processes:
                self._entry = replace(self._entry, processes=(*self._entry.processes, name))
                self._registry.write(self._entry)
            await self._supervisor.start(command)

    def _slots(self, replicas: Mapping[str, int]) -> tuple[WorkerSlot, ...]:
        """All workers, with so many in each group."""
        return worker_slots(with_replicas(self._plan.job, replicas).spec)

    def _workers(self) -> list[str]:
        """Names of all workers that were ever started."""
        return [name for name, command in self._again.items() if command.kind is Kind.WORKER]

    def _take_groups(self, state: control_pb2.JobState) -> None:
        """Groups may have been scaled: more workers are started, those that are too many end by themselves."""
        replicas = {group.name: group.replicas for group in state.groups}
        if not self._replicas:
            self._replicas = replicas
        if replicas == self._replicas or self._config is None:
            return
        before, self._replicas = self._replicas, replicas
        wanted = {slot.name for slot in self._slots(replicas)}
        self._wanted |= wanted - {slot.name for slot in self._slots(before)}
        self._wanted &= wanted
        self._seen = replace(self._seen, unwanted=frozenset(self._workers()) - wanted)
        # A coordinator that has to be started again begins with these.
        self._plan.folder.write_config(self._config.model_copy(update={"replicas": replicas}))
        self._supervisor.changed.set()

    async def _ready(self, command: Command) -> Mapping[str, int]:
        """Wait for a process to say that it answers; for ever if it never does: the ladder has the deadline."""
        self._seen = replace(self._seen, starting=command.name)
        while True:
            ports = ready_ports(command.log.read_text(errors="replace"))
            if ports is not None:
                return ports
            await asyncio.sleep(READY_POLL_SECONDS)

    # Events

    def _on_state(self, state: control_pb2.JobState) -> None:
        now = time.monotonic()
        self._last = state
        if state.restores > self._restores:
            # The scripts begin anew: they have the time of a start for it.
            self._restores = state.restores
            self._seen = replace(self._seen, workers_started=now)
        absent = (control_pb2.WORKER_PHASE_ABSENT, control_pb2.WORKER_PHASE_UNSPECIFIED)
        self._seen = replace(
            self._seen,
            progress=Progress.STARTING if state.phase in _STARTING_PHASES else Progress.TRAINING,
            absent=frozenset(worker.name for worker in state.workers if worker.phase in absent),
            standing=state.message,
            lost=frozenset(w.name for w in state.workers if w.phase == control_pb2.WORKER_PHASE_LOST),
            state_seen=now,
            silent_since=None,
        )
        if state.phase == control_pb2.PHASE_TRAINING:
            self._training = state
        if state.version > 0:
            self._history.add(HistoryPoint.from_state(state))
        self._take_groups(state)
        self._loop.take(state)
        self._display.show(state, now)

    def _on_silence(self) -> None:
        # A coordinator that has left is judged by its exit, not by its silence.
        if self._seen.silent_since is None and COORDINATOR in self._supervisor.running:
            self._seen = replace(self._seen, silent_since=time.monotonic())

    def _on_interrupt(self) -> None:
        interrupts = self._seen.interrupts + 1
        first = time.monotonic() if interrupts == 1 else self._seen.interrupted
        self._seen = replace(self._seen, interrupts=interrupts, interrupted=first)
        if self._ending:
            self._supervisor.kill()
        elif interrupts == 1 and self._seen.progress is Progress.TRAINING and self._credentials is not None:
            self._display.say("stopping: the round is finished and the model saved (once more: stop at once)")
            self._tasks.append(asyncio.create_task(self._ask_to_stop(self._credentials)))
        self._supervisor.changed.set()

    async def _ask_to_stop(self, credentials: Credentials) -> None:
        if not await ask_to_stop(self._coordinator, credentials, "stopped by the user"):
            self._display.say("the coordinator does not take the request to stop")

    # Ending

    async def _stop_processes(self, *, at_once: bool) -> None:
        if at_once:
            self._supervisor.kill()
        else:
            await self._supervisor.stop(STOP_GRACE_SECONDS)

    async def _cancel_tasks(self) -> None:
        await self._loop.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _raise_failures_of_tasks(self) -> None:
        """Our own faults (no space for the configuration, say) end the job too: raised here, out of `run`."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def _report(self, end: End) -> Result:
        record = Record(
            job=self._plan.job.metadata.name,
            uid=self._plan.uid,
            state=end.state,
            cause=end.cause,
            wall_seconds=time.monotonic() - self._seen.job_started,
            outcome=self._seen.outcome,
            last=self._last,
            training=self._training,
            history=self._history.points,
            stretches=self._plan.stretches,
            decisions=self._loop.decisions,
        )
        report = write_report(record, self._plan.folder.report)
        log = self._plan.folder.log(end.cause.process) if end.cause.process else None
        return Result(state=end.state, message=end.cause.message, log=log, report=report)


def run_job(
    plan: ProcessPlan,
    manifest: Path,
    *,
    registry: Registry,
    display: Display,
    limits: Limits,
) -> Result:
    """Run a job in this process's main thread; nothing of it is left running when this returns or raises.

    The caller has claimed the name (`Registry.claim`) and prepared the folder. The kernel binds the processes' lives
    to the thread that starts them, hence the main thread.
    """
    names = [slot.name for slot in plan.slots]
    now = datetime.now(UTC)
    issue = partial(
        plan.folder.issue, plan.folder.write_credentials(plan.uid, plan.num_shards, names, now), plan.uid, now
    )
    entry = Entry(
        job=plan.job.metadata.name,
        uid=plan.uid,
        manifest=str(manifest),
        pid=os.getpid(),
        started=psutil.Process().create_time(),
        report=str(plan.folder.report),
    )
    with display:
        return asyncio.run(Runner(plan, registry, display, limits, issue).run(entry))


@contextmanager
def _signals(handler: Any) -> Iterator[None]:
    """Call `handler` for every signal that asks this process to end."""
    loop = asyncio.get_running_loop()
    # Under nohup the end of the terminal is to be ignored, and so it is.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in heeded:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
