"""Who is in the job: joining, incarnations, leases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from heterotrain_core.groups import Groups
from heterotrain_core.least import raise_minimum
from heterotrain_core.run_effects import RefuseJoin
from heterotrain_core.run_events import Joined
from heterotrain_core.run_values import Manifest, WorkerPhase, WorkerSpec
from heterotrain_core.telemetry import WorkerTelemetry

_PRESENT = frozenset({WorkerPhase.JOINED, WorkerPhase.TRAINING})


@dataclass(slots=True)
class Member:
    """One expected worker."""

    spec: WorkerSpec
    ordinal: int
    phase: WorkerPhase = WorkerPhase.ABSENT
    incarnation: int = 0
    """Raised at each accepted join; 0: never joined."""
    last_heard: float = 0.0
    device: str = ""
    host: str = ""
    manifest: Manifest | None = None
    epochs: int | None = None
    """Said at its start; `None` before."""
    error: str = ""
    losses: int = 0
    """How often it was lost."""
    leaving: bool = False
    """Its process was told to end."""
    returns: bool = False
    """It has left and may join again: its process was told to end, or its group was scaled up over it."""
    seat: int = 0
    """Number of the `SeatWorkers` after which the shards take what this incarnation pushes."""
    admitted: bool = False
    """Late, it was told which version to pull."""
    telemetry: WorkerTelemetry = field(default_factory=WorkerTelemetry)

    @property
    def name(self) -> str:
        """Name in the job."""
        return self.spec.name

    @property
    def present(self) -> bool:
        """Has a live session."""
        return self.phase in _PRESENT

    @property
    def least_incarnation(self) -> int:
        """The least that may push: what the process of a worker that is to come again has pushed does not count."""
        gone = self.phase is WorkerPhase.LOST or (self.phase is WorkerPhase.ABSENT and self.incarnation > 0)
        return self.incarnation + gone

    @property
    def awaited(self) -> bool:
        """It is not there and may join."""
        if self.phase is WorkerPhase.FINISHED:
            return self.returns
        return self.phase in (WorkerPhase.ABSENT, WorkerPhase.LOST)


class Members:
    """All expected workers, in order of summation."""

    def __init__(
        self, specs: Sequence[WorkerSpec], *, protocol_version: int, lease_seconds: float, rejoins: bool = False
    ) -> None:
        """With `rejoins` a worker that is lost may join again."""
        self._members = {s.name: Member(s, i) for i, s in enumerate(specs)}
        self._groups = Groups(specs)
        self._rejoins = rejoins
        self._protocol_version = protocol_version
        self._lease_seconds = lease_seconds

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    @property
    def groups(self) -> Groups:
        """How many workers each group shall have."""
        return self._groups

    def raise_minimums(self, least: int, grain: int) -> None:
        """The model needs so many samples at once; shares have this grain."""
        self._groups.raise_minimums(least, grain)
        for member in self:
            member.spec = replace(member.spec, bounds=raise_minimum(member.spec.bounds, least, grain))

    def add(self, spec: WorkerSpec) -> Member:
        """Expect one more worker, the last in order."""
        member = self._members[spec.name] = Member(spec, len(self._members))
        return member

    def get(self, name: str) -> Member | None:
        """By name."""
        return self._members.get(name)

    def present(self) -> list[Member]:
        """Those with a live session."""
        return [m for m in self if m.present]

    def join(self, event: Joined, now: float) -> Member | RefuseJoin:
        """Let a worker in; or say why not."""
        refusal = self._refusal(event)
        if refusal is not None:
            return refusal
        member = self._members[event.worker]
        member.phase = WorkerPhase.JOINED
        member.incarnation += 1
        member.last_heard = now
        member.device, member.host = event.device, event.host
        member.manifest, member.epochs, member.error = None, None, ""
        member.leaving = member.returns = member.admitted = False
        return member

    def _refusal(self, event: Joined) -> RefuseJoin | None:
        member = self._members.get(event.worker)
        if event.protocol_version != self._protocol_version:
            reason = (
                f"worker {event.worker} speaks protocol version {event.protocol_version} "
                f"(heterotrain {event.library_version or 'unknown'}), the coordinator speaks {self._protocol_version}: "
                "use the same heterotrain version in all images"
            )
        elif member is None:
            reason = f"worker {event.worker} is not one of this job's workers: {', '.join(self._members)}"
        elif member.present:
            reason = f"worker {event.worker} is in the job already, from {member.host or 'an unknown host'}"
            # Its session may be that of a process that is gone, and end with its lease.
            return RefuseJoin(event.worker, reason, retry=self._rejoins)
        elif not member.awaited:
            reason = f"worker {event.worker} was in the job before and has left it"
        else:
            return None
        return RefuseJoin(event.worker, reason)

    def silent(self, now: float) -> list[Member]:
        """Workers whose lease is over."""
        return [m for m in self.present() if now >= m.last_heard + self._lease_seconds]

    def next_lease_end(self) -> float:
        """Earliest instant at which a lease may be over; infinity if nobody is there."""
        return min((m.last_heard + self._lease_seconds for m in self.present()), default=math.inf)
