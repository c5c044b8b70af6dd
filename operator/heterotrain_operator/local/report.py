"""What a job leaves behind: its figures, from the coordinator's last state, its outcome and the record of the way.
Pure.

`heterotrain_operator.local.report_files` writes them; ``report.json`` has the keys that `build` gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from heterotrain_core.sync_settings import from_fields
from heterotrain_operator.job.outcome import Outcome, State
from heterotrain_operator.local.cause import Cause
from heterotrain_operator.local.progress import waiting_seconds
from heterotrain_operator.local.watch import HistoryPoint
from heterotrain_rpc import control_pb2
from heterotrain_rpc.fields import given_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What the runner knows when the job is over."""

    job: str
    uid: str
    state: State
    cause: Cause
    wall_seconds: float
    """From the start of the first process to the end."""
    outcome: Outcome | None = None
    last: control_pb2.JobState | None = None
    """Newest state of the coordinator; `None`: it never answered."""
    training: control_pb2.JobState | None = None
    """Newest state in which all was in training: later ones lack the workers that have left."""
    history: Sequence[HistoryPoint] = ()
    stretches: Mapping[str, float] | None = None
    """What ``--speeds`` came to, by worker."""
    decisions: Sequence[Mapping[str, Any]] = ()
    """Of the adaptation loop, with the coordinator's answers."""


def balance_speed_up(speeds: Sequence[float]) -> float | None:
    """Return S_balance = sum(v) / (N * min(v)): how much faster perfect balance is than equal shares under BSP.

    `speeds`: own speeds in samples/s. `None` unless all are known (above 0). Source: algorithms.md, section 1.
    """
    if not speeds or min(speeds) <= 0:
        return None
    return sum(speeds) / (len(speeds) * min(speeds))


def build(record: Record) -> dict[str, Any]:
    """Return the content of ``report.json``. Reported values are at top level too, unless their name is taken."""
    last = record.last or control_pb2.JobState()
    outcome = record.outcome
    reported = dict(outcome.reported) if outcome is not None and outcome.reported else dict(last.reported)
    reached, ideal = last.mean_samples_per_second, _ideal(record)
    report: dict[str, Any] = {
        "job": record.job,
        "uid": record.uid,
        "state": record.state.value,
        "reason": record.cause.reason,
        "message": record.cause.message,
        "process": record.cause.process,
        "rounds": outcome.rounds if outcome is not None else last.version,
        "samples": outcome.samples if outcome is not None else last.samples,
        "epochs": last.epochs,
        "global_batch_size": last.global_batch_size,
        "parameter_servers": last.shards,
        "training_seconds": last.training_seconds,
        "evaluation_seconds": last.evaluation_seconds,
        "restores": last.restores,
        "rounds_lost": last.rounds_lost,
        "wall_seconds": record.wall_seconds,
        "samples_per_second": reached,
        "recent_samples_per_second": last.samples_per_second,
        "ideal_samples_per_second": ideal,
        "efficiency": reached / ideal if ideal > 0 else None,
        "bytes_per_sample": {"pushed": last.pushed_bytes_per_sample, "pulled": last.pulled_bytes_per_sample},
        "s_balance": balance_speed_up([worker.samples_per_second for worker in last.workers]),
        "reported": reported,
        "workers": [_worker(worker, record.stretches or {}) for worker in last.workers],
        "plan": _plan(last),
        "synchronization": synchronization_document(last.synchronization),
        "adaptation": [dict(decision) for decision in record.decisions],
        "events": [_event(event) for event in last.events],
        "history": [asdict(point) for point in record.history],
    }
    return {key: _without_non_finite(value) for key, value in {**reported, **report}.items()}


def _without_non_finite(value: Any) -> Any:
    """Put null for NaN and infinity, which JSON has no words for: a loss may well be NaN."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _without_non_finite(item) for key, item in value.items()}
    return [_without_non_finite(item) for item in value] if isinstance(value, list) else value


def _ideal(record: Record) -> float:
    """Sum of the workers' own speeds while they trained."""
    if record.training is not None and record.training.ideal_samples_per_second > 0:
        return record.training.ideal_samples_per_second
    return sum(worker.samples_per_second for worker in record.last.workers) if record.last is not None else 0.0


def _worker(worker: control_pb2.WorkerState, stretches: Mapping[str, float]) -> dict[str, Any]:
    return {
        "name": worker.name,
        "group": worker.group,
        "share": worker.share_wanted,
        "last_grant_samples": worker.share_applied,
        "samples_per_second": worker.samples_per_second,
        "samples": worker.samples,
        "rounds": worker.rounds,
        "refused": worker.refused,
        "step_seconds": worker.step_seconds,
        "compute_seconds": worker.compute_seconds,
        "push_seconds": worker.push_seconds,
        "pull_seconds": worker.pull_seconds,
        "data_seconds": worker.data_seconds,
        "wait_seconds": waiting_seconds(worker),
        "device": worker.device,
        "stretch": stretches.get(worker.name),
        "error": worker.error,
    }


def _plan(last: control_pb2.JobState) -> dict[str, Any]:
    plan = last.plan
    return {
        "generation": plan.generation,
        "effective_round": plan.effective_round,
        "reason": plan.reason,
        "derived": plan.derived,
        "shares": {share.worker: share.samples for share in plan.shares},
    }


def synchronization_document(state: control_pb2.SynchronizationState) -> dict[str, Any]:
    """Return mode, bounds and the staleness seen; `None` as a bound is no bound. Staleness in versions."""
    wanted = state.wanted
    return {
        "mode": state.mode,
        "mode_wanted": wanted.mode,
        "staleness_bound": state.bound_in_force if state.HasField("bound_in_force") else None,
        "staleness_bound_wanted": _bound(wanted),
        "gradients": sum(state.staleness.values()),
        "largest_staleness": state.largest_staleness,
        "staleness_histogram": {str(tau): state.staleness[tau] for tau in sorted(state.staleness)},
    }


def _bound(wanted: control_pb2.Synchronization) -> int | None:
    if not wanted.mode:
        return None
    return from_fields(given_fields(wanted)).synchronization().bound


def _event(event: control_pb2.Event) -> dict[str, Any]:
    return {
        "seconds": event.seconds,
        "warning": event.warning,
        "reason": event.reason,
        "message": event.message,
    }


def summary_lines(report: Mapping[str, Any]) -> list[str]:
    """Return what a person wants to read at the end of a job, a few lines."""
    lines = [
        f"{report['rounds']} rounds, {report['samples']:,} samples in {report['training_seconds']:.1f} s of training"
    ]
    if report["restores"]:
        lines.append(_restores_text(report))
    if report["efficiency"] is not None:
        lines.append(
            f"reached {report['samples_per_second']:,.0f} of {report['ideal_samples_per_second']:,.0f} samples/s "
            f"({report['efficiency']:.1%} of ideal{_balance_text(report)})"
        )
    lines += [
        f"{worker['name']}: share {worker['share']}, {worker['samples_per_second']:,.0f} samples/s"
        for worker in report["workers"]
    ]
    return [*lines, *(f"{name}: {text}" for name, text in _reported_texts(report))]


def _reported_texts(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    reported = sorted(report["reported"].items())
    return [(name, "not finite" if value is None else f"{value:.6g}") for name, value in reported]


def _restores_text(report: Mapping[str, Any]) -> str:
    times = "once" if report["restores"] == 1 else f"{report['restores']} times"
    return f"went back to a checkpoint {times}: {report['rounds_lost']} rounds were trained again"


def _balance_text(report: Mapping[str, Any]) -> str:
    speed_up = report["s_balance"]
    return "" if speed_up is None else f"; balance alone can give {speed_up:.2f} times equal shares"


def markdown(report: Mapping[str, Any], plots: Sequence[str], without: str = "") -> str:
    """Return ``report.md``; `plots` are the names of the picture files beside it, `without`: why there are none."""
    head = [f"# {report['job']}: {report['state']}", ""]
    if report["message"]:
        head += [f"{report['reason']}: {report['message']}" if report["reason"] else report["message"], ""]
    figures = [
        ("rounds", str(report["rounds"])),
        ("samples", f"{report['samples']:,}"),
        ("epochs", str(report["epochs"])),
        ("global batch", str(report["global_batch_size"])),
        ("training time", f"{report['training_seconds']:.1f} s"),
        ("of which evaluations", f"{report['evaluation_seconds']:.1f} s"),
        ("went back to a checkpoint", f"{report['restores']} times, {report['rounds_lost']} rounds lost"),
        ("reached", f"{report['samples_per_second']:,.1f} samples/s"),
        ("ideal (sum of own speeds)", f"{report['ideal_samples_per_second']:,.1f} samples/s"),
        ("efficiency", "unknown" if report["efficiency"] is None else f"{report['efficiency']:.1%}"),
        ("S_balance", "unknown" if report["s_balance"] is None else f"{report['s_balance']:.2f}"),
        ("sent and received per sample", _per_sample(report["bytes_per_sample"])),
        *_reported_texts(report),
    ]
    columns = ("worker", "group", "share", "samples/s", "samples", "compute ms", "wait ms", "step ms", "device")
    rows = [_worker_cells(worker) for worker in report["workers"]]
    parts = [*head, *table(("figure", "value"), figures)]
    if rows:
        parts += ["", "## Workers", "", *table(columns, rows)]
    if plots or without:
        parts += ["", "## Plots", "", *(pictures(plots) or [without])]
    if report["events"]:
        cells = [(f"{event['seconds']:.1f}", event["reason"], event["message"]) for event in report["events"]]
        parts += ["", "## Events", "", *table(("seconds", "reason", "message"), cells)]
    return "\n".join([*parts, ""])


def _per_sample(told: Mapping[str, float]) -> str:
    return f"{told['pushed'] / 1024:,.1f} and {told['pulled'] / 1024:,.1f} KiB"


def _worker_cells(worker: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        worker["name"],
        worker["group"],
        str(worker["share"]),
        f"{worker['samples_per_second']:,.1f}",
        f"{worker['samples']:,}",
        f"{worker['compute_seconds'] * 1e3:.1f}",
        f"{worker['wait_seconds'] * 1e3:.1f}",
        f"{worker['step_seconds'] * 1e3:.1f}",
        worker["device"],
    )


def pictures(names: Sequence[str]) -> list[str]:
    """Return the lines of Markdown that show the picture files of these names."""
    return [f"![{name.removesuffix('.png')}]({name})" for name in names]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines]
