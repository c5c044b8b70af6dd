"""A job's status in words and tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from heterotrain_api.status import HeteroTrainJobStatus, SynchronizationStatus, WorkerRow
from heterotrain_operator.cluster.asking import state_of


def status_of(job: Mapping[str, Any]) -> HeteroTrainJobStatus:
    """The status as a model; empty while the operator has not seen the job."""
    return HeteroTrainJobStatus.model_validate(job.get("status") or {})


def headline(status: HeteroTrainJobStatus) -> str:
    """The job's key figures on one line."""
    progress, efficiency = status.progress, status.efficiency
    parts = [status.state or "Pending"]
    if progress.step:
        parts.append(f"round {progress.step}")
    if progress.epochs:
        parts.append(f"epoch {min(progress.epoch + 1, progress.epochs)}/{progress.epochs}")
    if efficiency.samples_per_second:
        parts.append(f"{efficiency.samples_per_second:,} samples/s")
    if efficiency.ideal_samples_per_second:
        parts.append(f"{efficiency.percent_of_ideal}% of ideal")
    return ", ".join([*parts, *(f"{value.name} {value.value}" for value in status.reported)])


def share_text(row: WorkerRow) -> str:
    """A worker's share; both numbers while the newest one is not in force yet."""
    if row.applied_share in {0, row.share}:
        return str(row.share)
    return f"{row.applied_share}→{row.share}"


def worker_table(status: HeteroTrainJobStatus) -> Table:
    """One row a worker."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("worker")
    for column in ("share", "samples/s", "step ms", "wait ms"):
        table.add_column(column, justify="right")
    for column in ("node", "state"):
        table.add_column(column, overflow="fold")
    for row in status.workers:
        table.add_row(
            row.name, share_text(row), f"{row.samples_per_second:,}", f"{row.step_milliseconds:,}",
            f"{row.wait_milliseconds:,}", row.node, row.phase + (f": {row.message}" if row.message else ""),
        )  # fmt: skip
    return table


def plan_line(status: HeteroTrainJobStatus) -> str:
    """Where the plan in force comes from."""
    plan = status.plan
    if not plan.generation:
        return "no plan yet"
    return f"plan {plan.generation}, in force from round {plan.effective_round}: {plan.reason or 'the start shares'}"


def synchronization_lines(status: SynchronizationStatus) -> list[str]:
    """Mode and bounds in words, what is not in force yet, and the staleness seen."""
    if not status.mode:
        return ["the coordinator has not said how the workers wait for each other"]
    wanted = status.wanted or status.mode
    lines = [wanted]
    if wanted.partition(",")[0] != status.mode:
        lines.append(f"still {status.mode}, until everything granted before is committed")
    bound = "none" if status.staleness_bound is None else status.staleness_bound
    seen = f"at most {status.largest_staleness} versions stale, {status.mean_staleness_milli / 1000:g} on average"
    return [*lines, f"bound in force: {bound}; gradients were {seen}"]


def job_document(job: Mapping[str, Any]) -> dict[str, Any]:
    """What ``list --json`` says of a job on a cluster."""
    meta = job["metadata"]
    status = job.get("status") or {}
    return {
        "name": meta["name"],
        "where": f"namespace {meta['namespace']}",
        "namespace": meta["namespace"],
        "uid": meta["uid"],
        "state": state_of(job),
        "step": str((status.get("progress") or {}).get("step") or ""),
    }
