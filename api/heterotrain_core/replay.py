"""A recorded term told again to the same policy: what it decided then, and where workers waited. Pure.

Times are those of the recording, from the first call on. A worker computes from the moment when it has its grant and
the version is decided until its gradient is in, transfers included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from heterotrain_core.cursor import DataCursor
from heterotrain_core.recording import Recording, Told, make_policy, plan_of
from heterotrain_core.simulate_times import Constant, StepTimes, Trace
from heterotrain_core.simulate_values import Close, SimulatedWorker, SimulationResult, Start, WorkerResult
from heterotrain_core.types import Commit, Decision, Grant, Share

_DIGITS = 9


def replay(recording: Recording) -> SimulationResult:
    """Tell the policy all of it again. Raises `ValueError` for calls that it refuses: no recording of this version."""
    return _Replay(recording).run()


def simulated_workers(recording: Recording) -> tuple[SimulatedWorker, ...]:
    """Workers with the recorded step times and the last shares that they had, to simulate something else with.

    Times are for the whole share. Workers that did nothing are left out; raises `ValueError` if none did anything.
    """
    run = _Replay(recording)
    run.run()
    workers = []
    for worker in run.workers:
        if not worker.steps:
            continue
        share = worker.shares.samples if worker.shares is not None else worker.steps[-1][0]
        seconds = tuple(max(spent * share / samples, 1e-6) for samples, spent in worker.steps)
        times: StepTimes = Trace(seconds) if len(seconds) > 1 else Constant(seconds[0])
        workers.append(SimulatedWorker(worker.name, times, share))
    if not workers:
        raise ValueError("no worker finished a step")
    return tuple(workers)


@dataclass(slots=True)
class _Worker:
    name: str
    free_since: float | None = None
    """`None`: it is not there, or computes."""
    started: float | None = None
    grants: deque[Grant] = field(default_factory=deque)
    waited: float = 0.0
    steps: list[tuple[int, float]] = field(default_factory=list)
    """Samples and seconds."""
    shares: Share | None = None
    """The last one by a plan."""


class _Replay:
    def __init__(self, recording: Recording) -> None:
        b = recording.beginning
        self._told = recording.told
        self._before = b.version
        self._cursor = DataCursor(b.dataset_size, b.epochs, epoch=b.epoch, used=b.used)
        self._first_samples = b.epoch * b.dataset_size + self._cursor.committed
        self._dataset_size = b.dataset_size
        self._policy = make_policy(b, self._cursor)
        self.workers = [_Worker(name, shares=b.plan.shares.get(name)) for name in b.names]
        self._began = recording.told[0].seconds if recording.told else 0.0
        self._now = 0.0
        self._dropped = 0
        self._log: list[Start | Close] = []

    def run(self) -> SimulationResult:
        for told in self._told:
            self._now = round(told.seconds - self._began, _DIGITS)
            self._carry_out(self._tell(told))
        for worker in self.workers:
            self._settle(worker)
        policy, cursor = self._policy, self._cursor
        histogram = policy.staleness_histogram
        return SimulationResult(
            seconds=self._now,
            end_reason=policy.end_reason,
            rounds=policy.version - self._before,
            gradients=sum(histogram.values()),
            dropped=self._dropped,
            samples=cursor.epoch * self._dataset_size + cursor.committed - self._first_samples,
            staleness_histogram=histogram,
            workers=tuple(WorkerResult(w.name, len(w.steps), round(w.waited, _DIGITS)) for w in self.workers),
            log=tuple(self._log),
        )

    def _tell(self, told: Told) -> Sequence[Decision]:  # noqa: PLR0911  # one of each call
        policy, values, now = self._policy, told.values, told.seconds
        match told.what:
            case "add":
                policy.add_worker(values["name"])
                self.workers.append(_Worker(values["name"]))
                return ()
            case "join":
                self.workers[values["worker"]].free_since = self._now
                return policy.on_join(values["worker"], now)
            case "leave":
                self._leave(self.workers[values["worker"]])
                return policy.on_leave(values["worker"], now)
            case "drain":
                return policy.drain(values["worker"])
            case "done":
                worker = values["worker"]
                decisions = policy.on_done(
                    worker, values["at"], values["base"], values["samples"], now, refused=values["refused"]
                )
                self._done(self.workers[worker], values["samples"])
                return decisions
            case "timer":
                return policy.on_timer(now)
            case "plan":
                plan = plan_of(values)
                for w in self.workers:
                    w.shares = plan.shares.get(w.name, w.shares)
                return policy.on_plan(plan, now)
            case "stop":
                return policy.on_stop(values["reason"], now)
            case what:
                raise ValueError(f"the recording has a call that is not known here: {what[:40]!r}")

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Grant):
                self.workers[decision.worker].grants.append(decision)
            elif isinstance(decision, Commit):
                self._dropped += len(decision.dropped)
                names = self.workers
                staleness = {names[c.worker].name: decision.version - c.iteration for c in decision.contributions}
                self._log.append(Close(self._now, decision.version, staleness, decision.scale))
        if decisions:
            for worker in self.workers:
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        """Begin the next grant once its version is there."""
        ready = worker.free_since is not None and worker.grants and worker.grants[0].version <= self._policy.version
        if ready and worker.free_since is not None:
            worker.waited += self._now - worker.free_since
            worker.free_since, worker.started = None, self._now
            self._log.append(Start(self._now, worker.name, len(worker.steps), worker.grants[0].version))

    def _done(self, worker: _Worker, samples: int) -> None:
        if worker.started is not None and worker.grants:
            worker.grants.popleft()
            worker.steps.append((samples, self._now - worker.started))
            worker.started, worker.free_since = None, self._now

    def _leave(self, worker: _Worker) -> None:
        self._settle(worker)
        worker.started = None
        worker.grants.clear()

    def _settle(self, worker: _Worker) -> None:
        if worker.free_since is not None:
            worker.waited += self._now - worker.free_since
            worker.free_since = None
