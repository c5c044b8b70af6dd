"""What a coordinator tells Prometheus: the job as it is when it is asked. Nothing is counted for it in between."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from heterotrain.metrics import PREFIX
from heterotrain_rpc import control_pb2

ANSWER_SECONDS: Final = 5.0
"""That the event loop may take; then the answer has nothing of the job, and the next one tries again."""
Labelled: TypeAlias = GaugeMetricFamily | CounterMetricFamily
_PARTS: Final = ("data", "compute", "push", "pull", "step")


class JobCollector(Collector):
    """Asks for the job's state each time. Used from the metrics server's threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, state: Callable[[], control_pb2.JobState]) -> None:
        """`state` is called on `loop`, which must not be the caller's."""
        self._loop = loop
        self._state = state

    def describe(self) -> Iterable[Family]:
        """Nothing is known before it is asked for."""
        return ()

    def collect(self) -> Iterator[Family]:
        """The job now; nothing if the event loop does not answer."""
        answer: queue.SimpleQueue[control_pb2.JobState] = queue.SimpleQueue()
        try:
            self._loop.call_soon_threadsafe(lambda: answer.put(self._state()))
            state = answer.get(timeout=ANSWER_SECONDS)
        except (queue.Empty, RuntimeError):
            return  # busy, or closed: an absent value is not an old one
        yield from job_families(state)


def job_registry(loop: asyncio.AbstractEventLoop, state: Callable[[], control_pb2.JobState]) -> CollectorRegistry:
    """A registry of this one collector."""
    registry = CollectorRegistry()
    registry.register(JobCollector(loop, state))
    return registry


def job_families(state: control_pb2.JobState) -> Iterator[Family]:
    """The whole state as metric families. Speeds and times that are not known yet are left out. Pure."""
    phase = control_pb2.Phase.Name(state.phase).removeprefix("PHASE_").capitalize()
    yield _gauge("info", "The job; always 1.", 1, job_name=state.job_name, job_uid=state.job_uid, phase=phase)
    # Gauges: a job that goes back to a checkpoint has fewer rounds and samples than before, not none.
    yield _gauge("rounds", "Versions made: rounds, or commits in modes without rounds.", max(0, state.version))
    yield _gauge("samples", "Samples trained on, of all epochs.", state.samples)
    yield _gauge("epoch", "Present epoch, from 0.", state.epoch)
    yield _gauge("training_seconds", "Time since training began, evaluations included.", state.training_seconds)
    yield _gauge("evaluation_seconds", "Part of it that was spent in evaluations.", state.evaluation_seconds)
    yield from _known("samples_per_second", "Speed of the last rounds.", state.samples_per_second)
    yield from _known("ideal_samples_per_second", "Sum of the workers' own speeds.", state.ideal_samples_per_second)
    yield from _known("round_seconds", "Typical duration of the last rounds.", state.round_seconds)
    yield _gauge("plan_generation", "Of the newest plan.", state.plan.generation)
    yield _gauge("plan_effective_round", "Round from which it is in force.", state.plan.effective_round)
    yield _counter("restores", "How often the job went back to a checkpoint.", state.restores)
    yield _counter("rounds_lost", "Rounds that had to be trained again.", state.rounds_lost)
    yield _gauge("shards", "Parameter servers.", state.shards)
    yield from _staleness(state.synchronization)
    yield _labelled(
        GaugeMetricFamily(f"{PREFIX}reported", "What the script reported last.", labels=["value"]),
        (([name], value) for name, value in sorted(state.reported.items())),
    )
    yield from _worker_families(state.workers)


def _staleness(state: control_pb2.SynchronizationState) -> Iterator[Family]:
    yield _labelled(
        CounterMetricFamily(
            f"{PREFIX}gradients", "Gradients applied, by the versions that they were late.", labels=["staleness"]
        ),
        (([str(late)], count) for late, count in sorted(state.staleness.items())),
    )
    yield _gauge("largest_staleness", "Of all gradients applied, in versions.", state.largest_staleness)
    if state.HasField("bound_in_force"):
        yield _gauge("staleness_bound", "That every gradient keeps, in the unit of the mode.", state.bound_in_force)


def _worker_families(workers: Iterable[control_pb2.WorkerState]) -> Iterator[Family]:
    workers = list(workers)
    each = ["worker", "group"]

    def family(kind: type[Labelled], name: str, text: str, value: Callable[[control_pb2.WorkerState], float]) -> Family:
        made = kind(f"{PREFIX}member_{name}", text, labels=each)
        return _labelled(made, (([w.name, w.group], value(w)) for w in workers))

    training = GaugeMetricFamily(f"{PREFIX}member_phase", "1 for the worker's present phase.", labels=[*each, "phase"])
    yield _labelled(
        training,
        (
            ([w.name, w.group, control_pb2.WorkerPhase.Name(w.phase).removeprefix("WORKER_PHASE_").capitalize()], 1)
            for w in workers
        ),
    )
    yield family(GaugeMetricFamily, "share_wanted_samples", "By the newest plan.", lambda w: w.share_wanted)
    yield family(GaugeMetricFamily, "share_samples", "Samples of the last grant.", lambda w: w.share_applied)
    yield family(CounterMetricFamily, "rounds", "Rounds that the worker was part of.", lambda w: w.rounds)
    yield family(CounterMetricFamily, "samples", "Samples of the worker's gradients.", lambda w: w.samples)
    yield family(CounterMetricFamily, "refused", "Gradients that were not finite.", lambda w: w.refused)
    yield _labelled(
        GaugeMetricFamily(f"{PREFIX}member_samples_per_second", "Own speed, while it computes.", labels=each),
        (([w.name, w.group], w.samples_per_second) for w in workers if w.samples_per_second > 0),
    )
    times = GaugeMetricFamily(
        f"{PREFIX}member_seconds", "Median of the last rounds by part; step: the whole.", labels=[*each, "part"]
    )
    yield _labelled(
        times,
        (
            ([w.name, w.group, part], getattr(w, f"{part}_seconds"))
            for w in workers
            if w.step_seconds > 0
            for part in _PARTS
        ),
    )


def _gauge(name: str, text: str, value: float, **labels: str) -> Family:
    family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, text: str, value: float) -> Family:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _known(name: str, text: str, value: float) -> Iterator[Family]:
    if value > 0:
        yield _gauge(name, text, value)


def _labelled(family: Labelled, values: Iterable[tuple[list[str], float]]) -> Family:
    for labels, value in values:
        family.add_metric(labels, value)
    return family
