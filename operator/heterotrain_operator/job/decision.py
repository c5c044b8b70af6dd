"""What one pass decides: values only. `carry_out` turns them into API calls, in this order.

Requests stay in every decision until they are answered (`Observed.answers`): who sends them remembers which are under
way. An event never comes without a status, so that a write that is refused by a conflict says nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from heterotrain_core.sync_settings import SyncSettings


@dataclass(frozen=True, slots=True)
class MakeSecret:
    """Certificates for `names` (names in the job) and the operator, in one Secret; made once, never changed."""

    name: str
    names: tuple[str, ...]
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Workers of each group that `names` has."""


@dataclass(frozen=True, slots=True)
class MakeCertificate:
    """A certificate for a worker that was added later, in a Secret of its own, by the authority in the job's."""

    name: str
    worker: str
    authority: str
    """Name of the Secret with the authority."""


@dataclass(frozen=True, slots=True)
class ApplyService:
    """Server-side apply of a manifest."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class MakePod:
    """POST of a manifest; on a 409 with a stranger's UID, again with the next (`job.manifests.with_attempt`)."""

    name_in_job: str
    manifest: Mapping[str, Any]
    certificate: MakeCertificate | None = None
    """Made before the pod; `None`: its certificate is in the job's Secret."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete by name with a UID precondition."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """For the coordinator: a plan request of the user; shares of workers not named stay."""

    request_id: str
    shares: Mapping[str, int]
    reason: str
    micro_batches: Mapping[str, int] = field(default_factory=dict)
    """Micro-batch of the workers that the request gives one for; each is in `shares` too."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """Of mode and bounds, named as in ``spec.synchronization``, as asked for; empty: they stay."""
    synchronization: SyncSettings | None = None
    """What `change` comes to over what is in force: whole settings, for the coordinator."""


@dataclass(frozen=True, slots=True)
class SendCommand:
    """For the coordinator: ``stop``, ``checkpoint`` or ``drain`` (then `worker`)."""

    request_id: str
    command: str
    worker: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ScaleGroup:
    """For the coordinator: so many workers in a group, as the manifest wants it."""

    request_id: str
    group: str
    replicas: int


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event on the job."""

    warning: bool
    reason: str
    """CamelCase, from `heterotrain_api.conditions`."""
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The whole outcome of a pass."""

    secret: MakeSecret | None = None
    service: ApplyService | None = None
    make: tuple[MakePod, ...] = ()
    delete: tuple[DeletePod, ...] = ()
    requests: tuple[ApplyPlan | SendCommand | ScaleGroup, ...] = ()
    status: Mapping[str, Any] | None = None
    """The whole new status, or `None` if it need not be written now."""
    events: tuple[JobEvent, ...] = ()
    """Sent only after the status write succeeded."""
    wake_at: datetime | None = None
    """Next pass at the latest; `None`: the periodic one."""
    looked: bool = True
    """Whether what happened while no operator ran is judged; false: the next pass must look as the first one does."""
    why: str = ""
    """The rung of the ladder that decided, for the log."""
