"""What the operator keeps of a job between passes: nothing that a restarted operator would miss.

Refusals and strangers are seen again by trying again, answers by asking again, the link is opened again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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


def worth_saying(refusals: Mapping[str, str], passing: Collection[str], failed: Collection[str]) -> dict[str, str]:
    """Of the answers to creates those that the user should read.

    An error that may pass by itself (`passing`) is none before it came twice in a row, that is, in the pass before as
    well (`failed`): else a moment of an API server's trouble would be told as a fault of the job.
    """
    return {name: text for name, text in refusals.items() if name not in passing or name in failed}


@dataclass(slots=True)
class Memory:
    """Of one job, known by its UID: a new job of the same name starts with an empty one. Used by its passes only."""

    uid: str
    events: EventLog
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Outcome of the newest pass that tried to make children."""
    failed: frozenset[str] = frozenset()
    """Names in the job whose making met an error in that pass that may pass by itself."""
    foreign: tuple[str, ...] = ()
    """As `refusals`."""
    answers: tuple[Answer, ...] = ()

    def remember_answer(self, answer: Answer) -> None:
        """Keep the newest answers; an old one that the status tells of already is not needed."""
        self.answers = (*self.answers, answer)[-ANSWERS_KEPT:]
