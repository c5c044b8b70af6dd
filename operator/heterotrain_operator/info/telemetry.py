"""What a job's coordinator reports, and how the rules themselves do, as samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from heterotrain_core.info.values import Entity, Metric, MetricType, Sample
from heterotrain_operator.info.rule_state import RuleState
from heterotrain_rpc import control_pb2

_NO_SPEED_YET: Final = 0.0


def job_samples(namespace: str, state: control_pb2.JobState, now: float) -> list[Sample]:
    """Samples of a job and its workers; what is not known yet has none. `now`: when the state came."""
    try:
        job = Entity(f"job/{namespace}/{state.job_name}")
    except ValueError:
        return []
    numbers = {
        "job_samples_per_second": state.samples_per_second or None,
        "job_ideal_samples_per_second": state.ideal_samples_per_second or None,
        "job_samples_total": state.samples,
        "job_version": state.version,
    }
    samples = [Sample(job, name, now, float(value)) for name, value in numbers.items() if value is not None]
    samples.append(Sample(job, "job_phase", now, _word(control_pb2.Phase.Name(state.phase), "PHASE_")))
    for worker in state.workers:
        samples += _worker_samples(Entity(f"worker/{namespace}/{state.job_name}/{worker.name}"), worker, now)
    return samples


def _worker_samples(entity: Entity, worker: control_pb2.WorkerState, now: float) -> Iterator[Sample]:
    phase = _word(control_pb2.WorkerPhase.Name(worker.phase), "WORKER_PHASE_")
    yield Sample(entity, "worker_phase", now, phase)
    if worker.host:
        yield Sample(entity, "worker_host", now, worker.host)
    if phase != "Training":
        return  # its last timings are not those of now
    counts = {
        "worker_share_samples": worker.share_applied,
        "worker_samples_total": worker.samples,
        "worker_refused_total": worker.refused,
    }
    yield from (Sample(entity, name, now, float(value)) for name, value in counts.items())
    if worker.samples_per_second <= _NO_SPEED_YET:
        return
    for name in (
        "samples_per_second",
        "step_seconds",
        "compute_seconds",
        "push_seconds",
        "pull_seconds",
        "data_seconds",
    ):
        yield Sample(entity, f"worker_{name}", now, float(getattr(worker, name)))


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).capitalize()


RULE_METRICS: Final = (
    Metric("rule_ready", unit="1", description="1 while a rule is obeyed and its last run gave samples, else 0."),
    Metric("rule_data_age_seconds", unit="s", description="Age of a rule's newest sample."),
    Metric("rule_ttl_seconds", unit="s", description="Longest time for which a rule's values are fresh."),
    Metric("rule_duration_seconds", unit="s", description="Duration of a rule's last run."),
    Metric("rule_samples_total", MetricType.COUNTER, "{sample}", description="Samples that a rule gave."),
    Metric("rule_failures_total", MetricType.COUNTER, description="Runs of a rule that gave nothing."),
    Metric("service_microseconds_per_sample", unit="us", description="What storing and processing a sample costs."),
)
"""What the service tells of itself."""


def rule_samples(states: Iterable[RuleState], ttls: dict[str, float], now: float) -> Iterator[Sample]:
    """How rules do, as samples of ``rule/collect/NAME`` and ``rule/process/NAME``. `ttls`: of collection rules."""
    for state in states:
        entity = Entity(f"rule/{state.kind}/{state.name}")
        age = state.age(now)
        numbers = {
            "rule_ready": float(state.ready),
            "rule_duration_seconds": state.duration,
            "rule_samples_total": float(state.samples),
            "rule_failures_total": float(state.failures),
            "rule_data_age_seconds": age,
            "rule_ttl_seconds": ttls.get(state.name) if state.kind == "collect" else None,
        }
        yield from (Sample(entity, name, now, value) for name, value in numbers.items() if value is not None)
