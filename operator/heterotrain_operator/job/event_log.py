"""Events of one job: each said once, repeats within a while counted on the first.

Pure but for what it remembers; `carry_out` sends what it says. Names follow from job, reason, text and the time of the
first: sent twice, because an answer was lost, an event is still one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from heterotrain_api.status import format_time
from heterotrain_operator.job.decision import JobEvent

COMPONENT: Final = "heterotrain-operator"
NAME_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Said:
    """An event that stands in the API (or is on its way), and how often it was said."""

    event: JobEvent
    name: str
    first: datetime
    last: datetime
    count: int = 1

    def manifest(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The event as the API takes it (core/v1), on the job."""
        meta = job["metadata"]
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": self.name, "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": job["apiVersion"],
                "kind": job["kind"],
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
            },
            "type": "Warning" if self.event.warning else "Normal",
            "reason": self.event.reason,
            "message": self.event.message,
            "source": {"component": COMPONENT},
            "reportingComponent": COMPONENT,
            "reportingInstance": COMPONENT,
            "firstTimestamp": format_time(self.first),
            "lastTimestamp": format_time(self.last),
            "count": self.count,
        }

    def repetition(self) -> dict[str, Any]:
        """The merge patch that says how often it was said."""
        return {"count": self.count, "lastTimestamp": format_time(self.last)}


class EventLog:
    """What was said of a job lately, and what still has to be sent. One task uses it."""

    def __init__(self, repeat: timedelta) -> None:
        self._repeat = repeat
        self._said: dict[JobEvent, Said] = {}
        self._unsent: dict[str, Said] = {}
        self._held: tuple[Sequence[JobEvent], Mapping[str, Any] | None, datetime] | None = None

    def hold(self, events: Sequence[JobEvent], status: Mapping[str, Any] | None, now: datetime) -> None:
        """Before `status` is written: `events` are to be said once it stands."""
        self._held = (events, status, now) if events else None

    def settle(self, job: Mapping[str, Any]) -> None:
        """Say what is held if `job`, as it was read after the try to write its status, has that status; else drop it.

        A write whose answer was lost may have been carried out: then no later pass finds anything new to tell, and if
        it was not, the next one tells the same anew.
        """
        held, self._held = self._held, None
        if held is not None and (held[1] is None or held[1] == job.get("status")):
            for event in held[0]:
                self.say(event, job, held[2])

    def say(self, event: JobEvent, job: Mapping[str, Any], now: datetime) -> None:
        """Queue an event, or its repetition."""
        self._said = {key: said for key, said in self._said.items() if now - said.first < self._repeat}
        before = self._said.get(event)
        if before is None:
            meta = job["metadata"]
            said = Said(event, event_name(event, meta["name"], meta["uid"], now), now, now)
        else:
            said = replace(before, last=now, count=before.count + 1)
        self._said[event] = said
        self._unsent[said.name] = said

    @property
    def unsent(self) -> tuple[Said, ...]:
        """What has to be sent, oldest first; a `count` of 1 asks for a new event, a higher one for a patch."""
        return tuple(self._unsent.values())

    def sent(self, said: Said) -> None:
        """`said` stands in the API, or never will."""
        if self._unsent.get(said.name) == said:
            del self._unsent[said.name]


def event_name(event: JobEvent, job: str, uid: str, first: datetime) -> str:
    """Name of an event object: the same for the same event at the same second."""
    text = "\0".join((uid, str(event.warning), event.reason, event.message, format_time(first)))
    return f"{job}.{hashlib.sha256(text.encode()).hexdigest()[:NAME_DIGITS]}"
