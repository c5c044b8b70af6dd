"""Between the coordinator's messages, the resource, and the values of the adaptation loop. Pure.

Shared by the local runner and the operator, so that both run the same loop (`heterotrain_core.adaptation`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, NamedTuple

from heterotrain_api.v1alpha1 import Escalation, HeteroTrainJobSpec
from heterotrain_core.adaptation.escalate import Step
from heterotrain_core.adaptation.values import (
    Action,
    Answer,
    Decision,
    Mode,
    NodeFact,
    Observation,
    Proposal,
    Refused,
    Settings,
    WorkerSeen,
)
from heterotrain_core.run_values import Timings
from heterotrain_core.sync_settings import from_fields, settings_of, to_fields
from heterotrain_core.synchronization import Synchronization, describe
from heterotrain_core.telemetry import StepRecord
from heterotrain_core.types import Bounds
from heterotrain_rpc import control_pb2
from heterotrain_rpc.fields import given_fields
from heterotrain_rpc.plans import plan_message

LOST_INTERVALS: Final = 3


def loop_settings(spec: HeteroTrainJobSpec, *, no_replacing: str = "") -> Settings:
    """How the loop of this job acts. `no_replacing`: why no worker can be replaced here; empty: one can."""
    adaptation, adaptive = spec.adaptation, spec.synchronization.adaptive
    interval = float(adaptation.interval_seconds)
    return Settings(
        mode=Mode(adaptation.mode.value),
        interval_seconds=interval,
        dead_band=adaptation.dead_band_percent / 100,
        cooldown_rounds=adaptation.cooldown_rounds,
        grain=spec.batch_grain,
        global_batch=spec.global_batch_size,
        lost_seconds=max(LOST_INTERVALS * interval, float(spec.synchronization.lease_seconds)),
        escalation=tuple(Step(step.value) for step in escalation_of(spec)),
        staleness=None if adaptive is None else (adaptive.min, adaptive.max),
        no_replacing=no_replacing,
    )


def escalation_of(spec: HeteroTrainJobSpec) -> tuple[Escalation, ...]:
    """What is tried against a worker that holds the others up."""
    if spec.adaptation.escalation is not None:
        return spec.adaptation.escalation
    relaxing = () if spec.synchronization.adaptive is None else (Escalation.RELAX_STALENESS,)
    return (Escalation.REBALANCE, *relaxing)


def observation_of(
    state: control_pb2.JobState,
    start_shares: Mapping[str, int],
    *,
    answer: Answer | None = None,
    nodes: Mapping[str, NodeFact] | None = None,
    irreplaceable: Mapping[str, str] | None = None,
) -> Observation:
    """What the loop is told by a state. By worker: `nodes`: what is known of the machine below it; `irreplaceable`:
    why it cannot be replaced.
    """
    shares = {share.worker: share for share in state.plan.shares}
    facts, fixed = nodes or {}, irreplaceable or {}
    return Observation(
        training=state.phase == control_pb2.PHASE_TRAINING,
        version=state.version,
        generation=state.plan.generation,
        effective_round=state.plan.effective_round,
        workers=tuple(
            _worker(worker, shares, facts.get(worker.name), fixed.get(worker.name, "")) for worker in state.workers
        ),
        start_shares=start_shares,
        answer=answer,
        synchronization=_synchronization(state),
    )


def _synchronization(state: control_pb2.JobState) -> Synchronization | None:
    """Mode and bounds as last asked for; `None`: a coordinator that does not say, or says something newer than we."""
    if not state.synchronization.wanted.mode:
        return None
    try:
        return from_fields(given_fields(state.synchronization.wanted)).synchronization()
    except ValueError:
        return None


def _worker(
    worker: control_pb2.WorkerState,
    shares: Mapping[str, control_pb2.PlanShare],
    node: NodeFact | None,
    irreplaceable: str,
) -> WorkerSeen:
    share = shares.get(worker.name)
    return WorkerSeen(
        name=worker.name,
        # A drained worker still computes what it was granted, and has no share in the plan any more.
        live=worker.phase == control_pb2.WORKER_PHASE_TRAINING and share is not None,
        share=0 if share is None else share.samples,
        micro_batch=share.micro_batch if share is not None and share.HasField("micro_batch") else None,
        bounds=Bounds(worker.share_minimum, worker.share_maximum),
        records=tuple(_record(record, on_cpu=worker.device in {"", "CPU"}) for record in worker.recent),
        node=node,
        irreplaceable=irreplaceable,
    )


def _record(record: control_pb2.StepRecord, *, on_cpu: bool) -> StepRecord:
    """The record; what processor time tells of a worker, it tells only of one that computes `on_cpu`."""
    return StepRecord(
        record.sequence,
        record.samples,
        Timings(
            data=record.data_seconds,
            compute=record.compute_seconds,
            push=record.push_seconds,
            pull=record.pull_seconds,
            step=record.step_seconds,
            receive=record.receive_seconds,
            other=record.other_seconds,
            cpu=record.cpu_seconds if on_cpu else 0.0,
        ),
        record.ended_seconds,
        record.withheld_seconds if record.HasField("withheld_seconds") else None,
    )


def plan_of(proposal: Proposal) -> control_pb2.Plan:
    """The proposal as the coordinator takes it; its generation fences it against any other plan."""
    wanted = proposal.synchronization
    return plan_message(
        dict(sorted(proposal.shares.items())),
        proposal.micro_batches,
        reason=proposal.reason,
        synchronization=None if wanted is None else to_fields(settings_of(wanted)),
        generation=proposal.generation,
    )


def answer_of(verdict: control_pb2.PlanVerdict) -> Answer:
    """The coordinator's verdict."""
    refusals = tuple(Refused(refusal.worker, refusal.reason) for refusal in verdict.refusals)
    if not verdict.accepted and not refusals:
        refusals = (Refused("", "refused without a reason"),)
    return Answer(verdict.generation, verdict.effective_round, refusals)


def unanswered(proposal: Proposal, why: str) -> Answer:
    """The coordinator could not be asked, or did not answer."""
    return Answer(proposal.generation, refusals=(Refused("", f"no answer: {why}"),))


def answer_words(answer: Answer) -> str:
    """What became of a proposal, for people."""
    if not answer.refusals:
        return f"plan {answer.generation} is agreed, in force from round {answer.effective_round}"
    refusals = "; ".join(f"{r.worker or 'the coordinator'}: {r.reason}" for r in answer.refusals)
    return f"plan {answer.generation} was refused: {refusals}"


# Records


def decision_document(decision: Decision, *, seconds: float) -> dict[str, Any]:
    """A decision as one line of the record. `seconds`: of training."""
    document = asdict(decision)
    document["seconds"] = seconds
    if decision.proposal is not None:
        wanted = decision.proposal.synchronization
        document["proposal"]["synchronization"] = "" if wanted is None else describe(wanted)
    if decision.verified is not None:
        document["verified"]["error"] = decision.verified.error
    return document


class PlaceSeen(NamedTuple):
    """Where a worker runs."""

    pod: str
    node: str


class Told(NamedTuple):
    """Something that the loop of a job on a cluster has told: a line of the record, and when."""

    at: datetime
    document: Mapping[str, Any]

    @property
    def is_look(self) -> bool:
        """Whether nothing was done: the next look takes its place."""
        return self.document["action"] in {"Keep", "Recommend"} and not self.document.get("verified")


def brief(document: Mapping[str, Any], room: int) -> str:
    """A line of the record in at most `room` characters of JSON: without it, of many workers those whose shares move.

    Numbers have four digits. Empty if not even the decision without its workers finds room.
    """
    document = {key: _rounded(value) for key, value in document.items()}
    workers = sorted(document.get("workers", ()), key=lambda row: -abs(row["wanted"] - row["applied"]))
    for kept in range(len(workers), -1, -1):
        if kept != len(workers):
            document |= {"workers": workers[:kept], "workers_left_out": len(workers) - kept}
        text = json.dumps(document, separators=(",", ":"))
        if len(text) <= room:
            return text
    return ""


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else 0.0
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def answer_document(answer: Answer, *, seconds: float) -> dict[str, Any]:
    """The coordinator's answer as one line of the record."""
    return {"action": "Answer", "seconds": seconds, "reason": answer_words(answer), "answer": asdict(answer)}


def gist(decision: Decision) -> str:
    """What makes a decision worth another line than the one before: its action and its words without their numbers."""
    found = "|".join(sorted(f"{f.kind}{f.worker}" for f in decision.found))
    standing = re.sub(r"[0-9.]+", "#", decision.escalation)
    return f"{decision.action}|{re.sub(r'[0-9.]+', '#', decision.reason)}|{found}|{decision.advice != ''}|{standing}"


def is_told(decision: Decision, last_gist: str) -> bool:
    """Whether a decision goes into the record: everything that does or checks something, and keeping when it is new."""
    if decision.action is Action.NONE:
        return False
    return decision.action is not Action.KEEP or decision.verified is not None or gist(decision) != last_gist
