"""Virtual time: the synchronisation policies with workers that are numbers. Pure and deterministic.

The policy is the very object that a coordinator runs. A worker pulls, computes and pushes for as long as its `Link` and
its step times say; commits take no time. Events of one instant come in this order: arrivals by worker, then failures,
joins and changes, then timers.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from heterotrain_core.cursor import DataCursor
from heterotrain_core.simulate_times import Sampler
from heterotrain_core.simulate_values import (
    Change,
    Close,
    Failure,
    Join,
    Simulation,
    SimulationResult,
    Start,
    WorkerResult,
)
from heterotrain_core.sync.policy import Policy
from heterotrain_core.types import Commit, Decision, EpochEnd, Grant, Plan, Share, TrainingEnd

_DIGITS = 9
"""Times are rounded to nanoseconds, so that what should be simultaneous is."""
_SEED_STRIDE = 1_000_003
"""Each worker has its own seed, so that its times do not depend on the mode or on the other workers."""


def simulate(simulation: Simulation) -> SimulationResult:
    """Run `simulation` to its end."""
    return _Run(simulation).run()


@dataclass(slots=True)
class _Worker:
    """State of one worker."""

    ordinal: int
    name: str
    share: int
    step: Sampler
    extra: float
    """Seconds that the next step takes longer."""
    clock: int = 0
    life: int = 0
    """Raised at each failure: arrivals of an earlier life do not count."""
    present: bool = False
    computing: Grant | None = None
    samples: int = 0
    """Of what it computes."""
    pending: deque[Grant] = field(default_factory=deque)
    free_since: float = 0.0
    waited: float = 0.0


class _Run:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        names = [w.name for w in simulation.workers]
        self._workers = [
            _Worker(i, w.name, w.share, w.steps.sampler(simulation.seed * _SEED_STRIDE + i), w.phase_seconds)
            for i, w in enumerate(simulation.workers)
        ]
        self._by_name = {w.name: w for w in self._workers}
        plan = Plan(1, {w.name: Share(w.share) for w in simulation.workers})
        self._cursor = DataCursor(simulation.dataset_size, simulation.epochs)
        self._policy = Policy(simulation.synchronization, plan, names, self._cursor, max_rounds=simulation.rounds)
        self._link_seconds = simulation.link.seconds(simulation.model_bytes)
        self._arrivals: list[tuple[float, int, int]] = []
        """Heap of (time, worker, life)."""
        self._events = deque(sorted(simulation.events, key=lambda e: e.seconds))
        self._leases: deque[tuple[float, _Worker, int]] = deque()
        self._blocked: dict[int, list[_Worker]] = {}
        """Idle workers by the version that their next grant names and that does not exist yet."""
        self._keep_log = simulation.keep_log
        self._now = 0.0
        self._dropped = 0
        self._nothing_follows = False
        """Nobody is left who could do the rest, and nobody comes."""
        self._log: list[tuple[float, bool, int, Start | Close]] = []

    def run(self) -> SimulationResult:
        simulation, policy = self._simulation, self._policy
        self._begin()
        timer = policy.next_timer
        while policy.end_reason is None and (now := self._next_instant(timer)) <= simulation.until_seconds:
            if math.isinf(now):
                self._nothing_follows = True
                break
            self._now = now
            arrivals = self._arrivals
            while arrivals and arrivals[0][0] <= now:
                _, worker, life = heapq.heappop(arrivals)
                self._arrive(self._workers[worker], life)
            while self._leases and self._leases[0][0] <= now:
                _, lost, life = self._leases.popleft()
                self._lease_over(lost, life)
            while self._events and self._events[0].seconds <= now:
                self._happen(self._events.popleft())
            timer = policy.next_timer
            if timer is not None and timer <= now:
                self._carry_out(policy.on_timer(now))
                timer = policy.next_timer
        return self._result()

    def _begin(self) -> None:
        first = {e.worker: e for e in reversed(self._events) if not isinstance(e, Change)}
        for worker in self._workers:
            if isinstance(first.get(worker.name), Join):
                self._carry_out(self._policy.on_leave(worker.ordinal, 0.0))
            else:
                worker.present = True
                self._carry_out(self._policy.on_join(worker.ordinal, 0.0))

    def _next_instant(self, timer: float | None) -> float:
        soonest = self._arrivals[0][0] if self._arrivals else math.inf
        if self._events:
            soonest = min(soonest, self._events[0].seconds)
        if self._leases:
            soonest = min(soonest, self._leases[0][0])
        return max(self._now, soonest if timer is None else min(soonest, timer))

    def _arrive(self, worker: _Worker, life: int) -> None:
        grant = worker.computing
        if life != worker.life or grant is None:
            return
        worker.computing = None
        worker.clock += 1
        worker.free_since = now = self._now
        decisions = self._policy.on_done(worker.ordinal, grant.iteration, grant.version, worker.samples, now)
        if decisions:
            self._carry_out(decisions)
        if worker.pending and worker.computing is None:
            self._next(worker)

    def _happen(self, event: Failure | Join | Change) -> None:
        now = self._now
        if isinstance(event, Change):
            self._carry_out(self._policy.on_synchronization(event.synchronization, now))
            return
        worker = self._by_name[event.worker]
        if isinstance(event, Failure):
            if worker.present:
                self._fall_silent(worker)
                self._leases.append((round(now + self._simulation.lease_seconds, _DIGITS), worker, worker.life))
        elif not worker.present:
            self._lease_over(worker, worker.life)
            worker.present = True
            worker.free_since = now
            self._carry_out(self._policy.on_join(worker.ordinal, now))

    def _fall_silent(self, worker: _Worker) -> None:
        if worker.computing is None:
            worker.waited += self._now - worker.free_since
        worker.present = False
        worker.life += 1
        worker.computing = None
        worker.pending.clear()

    def _lease_over(self, worker: _Worker, life: int) -> None:
        if not worker.present and life == worker.life:
            self._carry_out(self._policy.on_leave(worker.ordinal, self._now))

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        workers, newest = self._workers, self._policy.version
        for decision in decisions:
            match decision:
                case Grant():
                    worker = workers[decision.worker]
                    if not worker.present:
                        continue
                    if worker.computing is None and not worker.pending and decision.version <= newest:
                        self._start(worker, decision)
                    else:
                        worker.pending.append(decision)
                        if worker.computing is None and len(worker.pending) == 1:
                            self._next(worker)
                case Commit():
                    self._dropped += len(decision.dropped)
                    if self._keep_log:
                        self._log_close(decision)
                    for blocked in self._blocked.pop(decision.version + 1, ()):
                        if blocked.pending and blocked.computing is None:
                            self._next(blocked)
                case EpochEnd() | TrainingEnd():
                    pass

    def _next(self, worker: _Worker) -> None:
        """Start a free worker's next grant, or let it wait for the version."""
        version = worker.pending[0].version
        if version <= self._policy.version:
            self._start(worker, worker.pending.popleft())
        else:
            self._blocked.setdefault(version, []).append(worker)

    def _start(self, worker: _Worker, grant: Grant) -> None:
        now = self._now
        worker.waited += now - worker.free_since
        worker.computing = grant
        seconds = worker.step()
        samples = worker.samples = grant.samples
        if samples != worker.share:
            seconds *= samples / worker.share
        if worker.extra:
            seconds, worker.extra = seconds + worker.extra, 0.0
        end = round(now + self._link_seconds + seconds + self._link_seconds, _DIGITS)
        heapq.heappush(self._arrivals, (end, worker.ordinal, worker.life))
        if self._keep_log:
            start = Start(now, worker.name, worker.clock, grant.version)
            self._log.append((now, True, worker.ordinal, start))

    def _log_close(self, commit: Commit) -> None:
        names = self._workers
        staleness = {names[c.worker].name: commit.version - c.iteration for c in commit.contributions}
        self._log.append((self._now, False, commit.version, Close(self._now, commit.version, staleness, commit.scale)))

    def _result(self) -> SimulationResult:
        policy, cursor = self._policy, self._cursor
        over = policy.end_reason is not None or self._nothing_follows
        end = self._now if over else self._simulation.until_seconds
        for worker in self._workers:
            if worker.present and worker.computing is None:
                worker.waited += end - worker.free_since
        histogram = policy.staleness_histogram
        epochs_before = cursor.epoch * self._simulation.dataset_size
        return SimulationResult(
            seconds=end,
            end_reason="no worker is left" if self._nothing_follows else policy.end_reason,
            rounds=policy.version,
            gradients=sum(histogram.values()),
            dropped=self._dropped,
            samples=epochs_before + cursor.committed,
            staleness_histogram=histogram,
            workers=tuple(WorkerResult(w.name, w.clock, round(w.waited, _DIGITS)) for w in self._workers),
            log=_in_order(self._log),
        )


def _in_order(log: Iterable[tuple[float, bool, int, Start | Close]]) -> tuple[Start | Close, ...]:
    return tuple(entry for _, _, _, entry in sorted(log, key=lambda e: e[:3]))
