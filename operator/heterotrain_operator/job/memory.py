"""What the operator keeps of a job between passes: nothing that a restarted operator would miss.

Refusals and strangers are seen again by trying again, answers by asking again, the link is opened again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from heterotrain_operator.job.event_log import EventLog
from heterotrain_operator.job.observed import Answer

ANSWERS_KEPT = 32


class JobKey(NamedTuple):
    """What a job is woken by."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class Memory:
    """Of one job, known by its UID: a new job of the same name starts with an empty one. Used by its passes only."""

    uid: str
    events: EventLog
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Outcome of the newest pass that tried to make children."""
    foreign: tuple[str, ...] = ()
    """As `refusals`."""
    answers: tuple[Answer, ...] = ()

    def remember_answer(self, answer: Answer) -> None:
        """Keep the newest answers; an old one that the status tells of already is not needed."""
        self.answers = (*self.answers, answer)[-ANSWERS_KEPT:]
