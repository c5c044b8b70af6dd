"""What one pass sees of a job: read once, frozen; nothing below the observation reads the API again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from heterotrain_api.contract import Role
from heterotrain_core.adaptation.values import Decision
from heterotrain_operator.adaptation import PlaceSeen, Told
from heterotrain_rpc.control_pb2 import JobState


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended."""

    exit_code: int
    reason: str
    """As the kubelet says: ``Completed``, ``Error``, ``OOMKilled``, …"""
    message: str
    """The termination message; with our policy the last log lines if the process wrote none."""
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """One container of a pod, as its status tells."""

    name: str
    state: Literal["waiting", "running", "terminated", "unknown"]
    waiting_reason: str = ""
    waiting_message: str = ""
    end: ContainerEnd | None = None
    memory_limit: str = ""
    """As its pod has it (``512Mi``); empty: none."""


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod that carries the job's labels and is controlled by the job's UID."""

    name: str
    uid: str
    role: Role
    group: str
    """``ps`` for parameter servers."""
    index: int
    attempt: int
    phase: str
    """Pending, Running, Succeeded, Failed, Unknown."""
    node: str
    ip: str
    ready: bool
    deleting: bool
    created_at: datetime
    containers: tuple[ContainerSeen, ...] = ()
    unschedulable: str = ""
    """The scheduler's message; empty if scheduled or not yet tried."""
    disrupted: str = ""
    """Why it failed although none of its containers did by itself: reason of the DisruptionTarget condition, of the
    Failed phase (eviction, refused by its node), or of containers whose end nobody saw (node started anew)."""
    message: str = ""
    asked_at: datetime | None = None
    """When its deletion was asked for; `None`: it was not, or that is not known."""
    ends_by: datetime | None = None
    """When its grace is over."""
    replaced: bool = False
    """Whether its place was given to a later attempt, by the status (`heterotrain_operator.job.view.read`)."""
    warning: str = ""
    """What its node complained of last, as ``Reason: words``; looked for only while the pod is stuck (`is_stuck`)."""

    @property
    def name_in_job(self) -> str:
        """``cpu-0``, ``ps-1``: the name in the certificate, in plans and in the coordinator's state."""
        return f"{self.group}-{self.index}"


@dataclass(frozen=True, slots=True)
class TrainingSeen:
    """The coordinator's last state and when it was received."""

    state: JobState
    received_at: datetime
    connected: bool


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The coordinator has been tried in vain, whether or not it ever answered."""

    since: datetime
    why: str
    """What the last attempt met, in words."""


@dataclass(frozen=True, slots=True)
class Observed:
    """The job's object as stored (a dict as the API gives it), and its children in named buckets."""

    job: Mapping[str, Any]
    pods: tuple[PodSeen, ...]
    """Sorted by name."""
    service: Mapping[str, Any] | None
    """Ours, as stored; `None`: there is none."""
    secret_present: bool
    foreign: tuple[str, ...] = ()
    """Names that we need and that belong to somebody else, as ``kind/name``."""
    training: TrainingSeen | None = None
    refusals: Mapping[str, str] | None = None
    """The API server's answer to children that it refused to make in the pass before: name in the job -> message."""
    answers: tuple[Answer, ...] = ()
    """The coordinator's answers to requests sent in passes before, newest last."""
    made: Mapping[str, tuple[datetime, ...]] = field(default_factory=dict)
    """When pods were made lately, oldest first, by name in the job; as far as this operator remembers."""
    adaptation: Decision | None = None
    """The newest decision of the job's adaptation loop; `None`: none yet, or it is off."""
    capabilities: Mapping[str, float] = field(default_factory=dict)
    """Cores that a trainer can count on now, by node; of nodes that are not in it nothing is known."""
    replacing: Mapping[str, PlaceSeen] = field(default_factory=dict)
    """Workers whose pods the adaptation wants to be made again elsewhere, by name in the job, with where they run."""
    decisions: tuple[Told, ...] = ()
    """What its adaptation loop has told lately, oldest first."""
    certified: Mapping[str, int] | None = None
    """For how many workers of each group the Secret has certificates; `None`: that is not known."""
    first_look: bool = False
    """Whether this operator has not seen the job before: what happened until now, nobody may have seen."""
    unreachable: Unreachable | None = None
    """`None`: the coordinator answers, or was not tried yet."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request of the user (`request_id` from the annotation)."""

    request_id: str
    accepted: bool
    message: str
