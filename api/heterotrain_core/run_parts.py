"""What a `TrainingRun` is made of, and what its parts say together. No decisions."""

from __future__ import annotations

import math

from heterotrain_core.evaluation_desk import EvaluationDesk
from heterotrain_core.event_log import EventLog
from heterotrain_core.members import Members
from heterotrain_core.membership import Membership
from heterotrain_core.plan_desk import PlanDesk
from heterotrain_core.progress import Progress
from heterotrain_core.recording import Record
from heterotrain_core.reports import Reports
from heterotrain_core.rounds import Rounds
from heterotrain_core.run_starts import first_progress
from heterotrain_core.run_values import Outcome, Phase, RunConfig, RunFault, RunReason
from heterotrain_core.saving import Saving
from heterotrain_core.setup_stage import SetupStage
from heterotrain_core.telemetry import RoundTelemetry
from heterotrain_core.types import Plan


class RunParts:
    """The desks of one term, each with its own state. Raises `ValueError` if the start shares are no valid plan."""

    def __init__(
        self,
        config: RunConfig,
        now: float,
        restored: Progress | None,
        log: EventLog | None,
        record: Record | None,
    ) -> None:
        self.config = config
        self.record = record
        self.restored = restored
        self.created = now
        self.log = log or EventLog(now)
        self.totals = RoundTelemetry()
        self.members = Members(
            config.workers,
            protocol_version=config.protocol_version,
            lease_seconds=config.lease_seconds,
            rejoins=config.rejoin_limit > 0,
        )
        self.setup = SetupStage(self.members, config.seed, restored)
        self.plans = PlanDesk(config, self.log, restored)
        self.membership = Membership(config, self.members, self.plans, self.log)
        self.evaluations = EvaluationDesk(self.members, self.totals)
        self.saving = Saving(
            config.model_file, self.log, config.checkpoint, restored.version if restored is not None else None
        )
        self.reports = Reports(self.log, restored.reported if restored is not None else {})
        self.rounds: Rounds | None = None
        """`None` before the first grant."""
        self.stopping: tuple[RunReason, str] | None = None
        """Why no further rounds are opened, by somebody's word."""
        self.lease_check = math.inf
        """When the first lease may be over."""
        self.outcome: Outcome | None = None

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        if self.outcome is not None:
            return self.outcome.phase
        if self.rounds is None:
            return Phase.WAITING
        return Phase.TRAINING if self.rounds.policy.end_reason is None else Phase.FINISHING

    @property
    def plan(self) -> Plan:
        """The newest."""
        return self.rounds.policy.plan if self.rounds is not None else self.plans.start

    @property
    def ending(self) -> bool:
        """No further rounds will be opened."""
        return self.stopping is not None or (self.rounds is not None and self.rounds.policy.end_reason is not None)

    @property
    def first_version(self) -> int:
        """That training began with."""
        return self.restored.version if self.restored is not None else 0

    def running(self) -> Rounds:
        """The training; raises `RunFault` for who speaks of work before it has begun."""
        if self.rounds is None:
            raise RunFault(RunReason.WORKER_FAILED, "protocol broken: work was done before the first grant")
        return self.rounds

    def progress(self, now: float) -> Progress:
        """What a checkpoint of this moment keeps."""
        if self.rounds is not None:
            totals = self.totals
            return self.rounds.progress(totals.training_seconds(now), totals.evaluation_seconds, self.reports.values)
        return self.restored or first_progress(self.config, self.setup.manifest, self.plans.start)
