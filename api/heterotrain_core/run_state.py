"""What a job looks like at one moment, for whoever watches it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heterotrain_core.event_log import LoggedEvent
from heterotrain_core.members import Member
from heterotrain_core.run_values import Phase, RunReason, Timings, WorkerPhase
from heterotrain_core.synchronization import Synchronization, SyncMode
from heterotrain_core.telemetry import StepRecord
from heterotrain_core.types import Bounds, Grant, Plan, Share


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker. Times are medians over the last rounds, in seconds."""

    name: str
    group: str
    phase: WorkerPhase
    share_wanted: int
    """By the newest plan."""
    share_applied: int
    """Of the last grant."""
    micro_batch: int | None
    bounds: Bounds
    rounds: int
    samples: int
    refused: int
    samples_per_second: float
    """Own speed, while it computes; 0 until known."""
    timings: Timings
    device: str
    host: str
    error: str
    recent: tuple[StepRecord, ...] = ()
    """The last iterations, oldest first."""
    incarnation: int = 0
    losses: int = 0


@dataclass(frozen=True, slots=True)
class SynchronizationView:
    """How workers wait for each other. Bounds in the unit of the mode, staleness in versions."""

    wanted: Synchronization
    """As last asked for; another mode than `mode` until everything granted before is committed."""
    mode: SyncMode
    """In force."""
    bound_in_force: int | None
    """What every gradient keeps; wider than wanted while some are beyond. `None`: no bound."""
    largest_staleness: int
    staleness: Mapping[int, int]
    """Number of gradients applied by their staleness, ascending."""


def view_before(wanted: Synchronization) -> SynchronizationView:
    """Before the first round."""
    return SynchronizationView(wanted, wanted.mode, wanted.bound, 0, {})


@dataclass(frozen=True, slots=True)
class RunView:
    """The whole job. Speeds in samples a second; `rounds_planned` and `dataset_size` are 0 until known."""

    phase: Phase
    reason: RunReason
    message: str
    epoch: int
    epochs: int
    version: int
    """Newest that all shards have published."""
    samples: int
    dataset_size: int
    rounds_planned: int
    training_seconds: float
    evaluation_seconds: float
    """Of the training, in evaluations; speeds leave them out."""
    samples_per_second: float
    mean_samples_per_second: float
    ideal_samples_per_second: float
    round_seconds: float
    bytes_per_sample: tuple[float, float]
    """Pushed and pulled by the workers."""
    workers: tuple[WorkerView, ...]
    plan: Plan
    plan_round: int
    synchronization: SynchronizationView
    reported: Mapping[str, float]
    groups: Mapping[str, int]
    """How many workers each group shall have."""
    events: tuple[LoggedEvent, ...]
    model: str
    checkpoint_version: int | None
    """Of the newest checkpoint of this term, or of the one that it began from; `None`: there is none."""

    @property
    def efficiency(self) -> float:
        """Reached over ideal speed of the last rounds; 0 until known."""
        ideal = self.ideal_samples_per_second
        return self.samples_per_second / ideal if ideal > 0 else 0.0


def view_worker(member: Member, wanted: Share | None, granted: Grant | None) -> WorkerView:
    """A worker as it is now: its share of the newest plan, its last grant, its medians."""
    telemetry = member.telemetry
    pace = telemetry.pace()
    return WorkerView(
        name=member.name,
        group=member.spec.group,
        phase=member.phase,
        share_wanted=wanted.samples if wanted is not None else 0,
        share_applied=granted.samples if granted is not None else 0,
        micro_batch=granted.micro_batch if granted is not None else None,
        bounds=member.spec.bounds,
        rounds=telemetry.rounds,
        samples=telemetry.samples,
        refused=telemetry.refused,
        samples_per_second=pace.samples_per_second,
        timings=pace.timings,
        device=member.device,
        host=member.host,
        error=member.error,
        recent=telemetry.recent,
        incarnation=member.incarnation,
        losses=member.losses,
    )
