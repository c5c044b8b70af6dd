"""Carries out what the state machine decides: sessions, shards, answers, timers. One event loop, one state machine.

`tell` hands an event to `TrainingRun` and carries its effects out without ever waiting, so that events are taken one
after another, in the order in which they came, and nothing that a shard does can hold the control channel up.

When a part of the job is lost that is started again, the state machine is given up with its term, and another one goes
on from the newest checkpoint. Whoever had a session begins anew; whoever watches sees one job.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from heterotrain.coordinator.messages import message_of
from heterotrain.coordinator.outlet import OUTLET_LIMIT, Outlet
from heterotrain.coordinator.recorder import Recorder
from heterotrain.coordinator.settings import Settings
from heterotrain.coordinator.shard_work import ShardWork
from heterotrain.coordinator.shards import ShardError, Shards
from heterotrain.coordinator.state import job_state
from heterotrain.coordinator.term import Opened, Past, loss_of, may_restore, opened_of
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.run import TrainingRun
from heterotrain_core.run_values import Outcome, Phase, RunReason
from heterotrain_rpc import control_pb2, session_pb2

logger = logging.getLogger("heterotrain.coordinator")


class Coordinator:
    """One job. Make it inside a running event loop; `start`, then wait for `ended`."""

    def __init__(self, settings: Settings, *, shards: Callable[..., Shards] = Shards) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._make_shards = shards
        self._past = Past()
        self._recorder = Recorder(Path(settings.config.recording)) if settings.config.recording else None
        self._run = TrainingRun(settings.run_config(self._past.term), self._loop.time(), record=self._recorder)
        self._shards = self._new_shards()
        self._work: ShardWork | None = None
        self._outlets: dict[str, Outlet] = {}
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._watchers: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.open = False
        """Whether the term and what it begins with are known: before, no worker is let in."""
        self._logged = 0
        self._told_to_end = False
        self._crashed = False
        self.changes = 0
        """Raised whenever the state may have changed."""
        self.ended: asyncio.Future[Outcome | None] = self._loop.create_future()
        """How the job ended; `None`: it has not, but this process leaves it, to be started again."""

    def start(self) -> None:
        """Open the first term of this process, then work for and watch the shards."""
        if self._settings.keeps_terms:
            self.spawn(self._open_term(0, 0))
        else:
            self._serve_term(None)

    async def close(self) -> None:
        """Shut the shards down and end all tasks."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._recorder is not None:
            self._recorder.close()
        if self.ended.done() and not self.ended.cancelled() and self.ended.result() is None:
            await self._shards.close()  # they go on, and wait for whoever comes
            return
        for problem in await self._shards.shut_down():
            logger.info("shutting down: %s", problem)

    # --- the control channel --------------------------------------------------------------------------------------

    def state(self) -> control_pb2.JobState:
        """The job's state now."""
        return job_state(self._run.view(self._loop.time()), self._settings.config, self._past)

    async def changed_since(self, seen: int) -> None:
        """Wait until `changes` differs from `seen`."""
        if self.changes == seen:
            waiter = self._loop.create_future()
            self._watchers.append(waiter)
            await waiter

    async def ask(self, make: Callable[[int], ev.RunEvent]) -> Any:
        """Hand in an event that has a request number; returns its `AnswerPlan` or `AnswerCommand`."""
        request = next(self._numbers)
        answer = self._requests[request] = self._loop.create_future()
        try:
            self.tell(make(request))
            return await answer
        finally:
            self._requests.pop(request, None)

    def terminate(self, signal_name: str) -> None:
        """End the job as on a Stop command; told twice, at once and without a model.

        A job that goes on from a checkpoint is left for whoever starts this process again; told twice, at once.
        """
        reason = f"the coordinator was told to end ({signal_name})"
        if self._settings.recovers and self._run.outcome is None:
            if self._told_to_end or not (self.open and self._run.training_began):
                self._leave_job(reason)
            else:
                self.spawn(self._save_and_leave(reason))
            self._told_to_end = True
            return
        if self._told_to_end:
            self.tell(ev.Aborted(RunReason.STOPPED, f"{reason} twice; the model is not saved"))
        self._told_to_end = True
        self.tell(ev.StopCommanded(reason))

    async def _save_and_leave(self, reason: str) -> None:
        """Make a checkpoint of what is decided, so that nothing of it has to be trained again."""
        saved = await self.ask(ev.CheckpointCommanded)
        logger.info("%s; checkpoint: %s", reason, saved.path or saved.reason)
        self._leave_job(reason)

    def _leave_job(self, reason: str) -> None:
        self.open = False
        for outlet in self._outlets.values():
            outlet.dismiss(reason, fault=False, again=True)
        self._outlets.clear()
        if self._work is not None:
            self._work.stop()
        if not self.ended.done():
            self.ended.set_result(None)

    # --- sessions -------------------------------------------------------------------------------------------------

    def join(self, event: ev.Joined, outlet: Outlet) -> out.RefuseJoin | None:
        """Let a session in; or say why not, which `outlet` says too unless the worker is to try again."""
        effects = self._run.handle(event, self._loop.time())
        refusal = next((e for e in effects if isinstance(e, out.RefuseJoin)), None)
        if refusal is None:
            self._outlets[event.worker] = outlet
        elif not refusal.retry:
            outlet.dismiss(refusal.reason, fault=True)
        self._carry_out(effects)
        return refusal

    def leave(self, outlet: Outlet, event: ev.WorkerEvent) -> None:
        """A session is over; nothing if it is no longer the worker's."""
        if self._outlets.get(outlet.worker) is outlet:
            del self._outlets[outlet.worker]
            self.tell(event)

    def hear(self, outlet: Outlet, event: ev.WorkerEvent) -> None:
        """What a worker says; nothing if its session is no longer the worker's."""
        if self._outlets.get(outlet.worker) is outlet:
            self.tell(event)

    # --- terms ----------------------------------------------------------------------------------------------------

    def _new_shards(self) -> Shards:
        return self._make_shards(self._settings.config, self._settings.credentials, self._past.term, self._shards_wait)

    def _shards_wait(self, shards: tuple[str, ...]) -> None:
        self.tell(ev.ShardsWaited(shards))

    def _serve_term(self, opened: Opened | None) -> None:
        self._work = ShardWork(self._shards, opened, self.tell, self.spawn)
        self.open = True

    async def _open_term(self, above: int, reached: int) -> None:
        """Wait for all shards, take a term higher than `above`, go on from its checkpoint.

        `reached`: newest version known here.
        """
        try:
            term, version = await self._shards.standing(self._settings.config.recovery_seconds)
            reply = await self._shards.open_term(max(above, term), max(reached, version))
            opened = opened_of(reply, self._settings.run_config(reply.term))
        except (ShardError, ValueError) as error:
            self.tell(ev.Aborted(RunReason.SHARD_FAILED, f"the job cannot go on: {error}"))
            return
        if self._run.outcome is not None:
            return
        now, log = self._loop.time(), self._run.log
        for words in opened.passed_over:
            log.add(RunReason.CHECKPOINT_UNUSABLE, words, now, warning=True)
        if opened.past.restores or opened.progress is not None:
            log.add(RunReason.RESTORED, opened.words, now, warning=bool(opened.past.restores))
        self._past = opened.past
        self._run = TrainingRun(
            self._settings.run_config(reply.term), now, restored=opened.progress, log=log, record=self._recorder
        )
        self._serve_term(opened)
        self._carry_out([])

    def _go_back(self, why: str) -> None:
        """End the term: everybody begins anew, the job goes on from its newest checkpoint."""
        self.open = False
        now, reached = self._loop.time(), self._run.view(self._loop.time()).version
        message = f"{why}; the job goes back to its newest checkpoint"
        self._run.log.add(RunReason.SHARD_FAILED, message, now, warning=True)
        for outlet in self._outlets.values():
            outlet.dismiss(why, fault=False, again=True)
        self._outlets.clear()
        self._carry_out(self._run.abandon(why, now))
        if self._work is not None:
            self._work.stop()
        self.spawn(self._shards.close())
        config = self._settings.run_config(self._past.term)
        self._run = TrainingRun(config, now, log=self._run.log, record=self._recorder)
        self._shards = self._new_shards()
        self.spawn(self._open_term(self._past.term, reached))

    # --- events and effects ---------------------------------------------------------------------------------------

    def tell(self, event: ev.RunEvent) -> None:
        """Hand an event to the state machine and carry out what it decides."""
        loss = loss_of(event, rejoins=self._settings.rejoins)
        if loss and self.open and self._run.outcome is None and may_restore(self._settings, self._past):
            if self._told_to_end:
                self._leave_job(loss)
            else:
                self._go_back(loss)
            return
        if isinstance(event, ev.WorkerFailed) and event.lost_shard and self._work is not None:
            self._work.probe(event.lost_shard)
        self._carry_out(self._run.handle(event, self._loop.time()))

    def _carry_out(self, effects: list[out.Effect]) -> None:
        for effect in effects:
            self._perform(effect)
        self._log_events()
        self._arm_timer()
        self._notify()

    def _notify(self) -> None:
        self.changes += 1
        if self._watchers:
            waiters, self._watchers = self._watchers, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _perform(self, effect: out.Effect) -> None:
        match effect:
            case out.Send(worker=worker, message=message):
                self._send(worker, message)
            case (
                out.ConfigureShards() | out.SeatWorkers() | out.PublishInitial() | out.CommitRound() | out.Export()
                | out.SaveCheckpoint()
            ):  # fmt: skip
                assert self._work is not None, "no worker is let in before the term is open"  # noqa: S101
                self._work.put(effect)
            case out.AnswerPlan() | out.AnswerCommand():
                request = self._requests.get(effect.request)
                if request is not None and not request.done():
                    request.set_result(effect)
            case out.GroupsChanged():
                self._settings = self._settings.scaled(effect.replicas)
            case out.Dismiss():
                outlet = self._outlets.pop(effect.worker, None)
                if outlet is not None:
                    outlet.dismiss(effect.reason, fault=effect.fault, again=effect.again)
            case out.RefuseJoin():
                pass  # said to the session that asked
            case out.Finish():
                self._end(effect.outcome)

    def _send(self, worker: str, message: out.Message) -> None:
        outlet = self._outlets.get(worker)
        if outlet is None:
            return  # its session has just ended; the state machine hears of it next
        told = self._welcome(message) if isinstance(message, out.Welcome) else message_of(message, self._past.term)
        if not outlet.put(told):
            outlet.close()
            detail = f"it does not read: {OUTLET_LIMIT} messages wait for it"
            self._outlets.pop(worker)
            self.spawn(self._tell_soon(ev.SessionBroken(worker, detail)))

    def _welcome(self, welcome: out.Welcome) -> session_pb2.CoordinatorMessage:
        config = self._settings.config
        message = session_pb2.Welcome(
            term=self._past.term,
            incarnation=welcome.incarnation,
            worker=welcome.ordinal,
            num_workers=self._run.num_workers,
            seed=config.seed,
            global_batch_size=config.global_batch_size,
            share_minimum=welcome.bounds.minimum,
            share_maximum=welcome.bounds.maximum,
            shards=[s.tensor_address for s in config.shards],
            heartbeat_seconds=self._settings.heartbeat_seconds,
            recovers=self._settings.recovers,
            rejoins=self._settings.rejoins,
        )
        return session_pb2.CoordinatorMessage(welcome=message)

    def _arm_timer(self) -> None:
        """Be woken at the next timer; an alarm that has become too early is left, since early ones do no harm."""
        due = self._run.next_timer
        if self._timer is not None and not self._timer.cancelled():
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = None if math.isinf(due) else self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.spawn(self._tell_soon(ev.TimerFired()))

    async def _tell_soon(self, event: ev.RunEvent) -> None:
        """As `tell`, as a task of its own, whose unforeseen errors end the job."""
        self.tell(event)

    def _log_events(self) -> None:
        if self._run.log.newest == self._logged:
            return
        for event in self._run.log.since(self._logged):
            logger.log(logging.WARNING if event.warning else logging.INFO, "%s: %s", event.reason, event.message)
        self._logged = self._run.log.newest

    # --- the end --------------------------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine; an unforeseen error in it ends the job."""
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crash(error)

    def crash(self, error: BaseException) -> None:
        """An error of the coordinator itself: say so, and end the job rather than hang."""
        logger.error("the coordinator failed", exc_info=error)
        message = f"the coordinator failed: {type(error).__name__}: {error}"
        try:
            if not self._crashed:
                self._crashed = True
                self.tell(ev.Aborted(RunReason.COORDINATOR_FAILED, message))
        finally:
            # Nothing is left to do if that worked; whether or not it did, nobody may wait for ever.
            self._end(Outcome(Phase.FAILED, RunReason.COORDINATOR_FAILED, message, 0, 0))
            self._notify()

    def _end(self, outcome: Outcome) -> None:
        """Whoever still has a session is told; that of a silent worker is ended too."""
        for outlet in self._outlets.values():
            outlet.dismiss(outcome.message, fault=outcome.phase is Phase.FAILED)
        self._outlets.clear()
        if not self.ended.done():
            self.ended.set_result(outcome)
