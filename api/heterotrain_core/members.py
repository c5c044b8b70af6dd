"""Who is in the job: joining, incarnations, leases."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
    telemetry: WorkerTelemetry = field(default_factory=WorkerTelemetry)

    @property
    def name(self) -> str:
        """Name in the job."""
        return self.spec.name

    @property
    def present(self) -> bool:
        """Has a live session."""
        return self.phase in _PRESENT


class Members:
    """All expected workers, in order of summation."""

    def __init__(self, specs: Sequence[WorkerSpec], *, protocol_version: int, lease_seconds: float) -> None:
        self._members = {s.name: Member(s, i) for i, s in enumerate(specs)}
        self._protocol_version = protocol_version
        self._lease_seconds = lease_seconds

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, name: str) -> Member | None:
        """By name."""
        return self._members.get(name)

    def present(self) -> list[Member]:
        """Those with a live session."""
        return [m for m in self if m.present]

    def join(self, event: Joined, now: float) -> Member | str:
        """Let a worker in; or the reason why not, in words."""
        member = self._members.get(event.worker)
        if event.protocol_version != self._protocol_version:
            return (
                f"worker {event.worker} speaks protocol version {event.protocol_version} "
                f"(heterotrain {event.library_version or 'unknown'}), the coordinator speaks {self._protocol_version}: "
                "use the same heterotrain version in all images"
            )
        if member is None:
            return f"worker {event.worker} is not one of this job's workers: {', '.join(self._members)}"
        if member.present:
            return f"worker {event.worker} is in the job already, from {member.host or 'an unknown host'}"
        if member.phase is not WorkerPhase.ABSENT:
            return f"worker {event.worker} was in the job before and has left it"
        member.phase = WorkerPhase.JOINED
        member.incarnation += 1
        member.last_heard = now
        member.device, member.host = event.device, event.host
        return member

    def silent(self, now: float) -> Member | None:
        """The first worker whose lease is over."""
        return next((m for m in self.present() if now >= m.last_heard + self._lease_seconds), None)

    def next_lease_end(self) -> float:
        """Earliest instant at which a lease may be over; infinity if nobody is there."""
        return min((m.last_heard + self._lease_seconds for m in self.present()), default=math.inf)
