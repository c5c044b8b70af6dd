"""What the operator keeps of a job between passes: nothing that a restarted operator would miss.

Refusals and strangers are seen again by trying again, answers by asking again, the link is opened again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from heterotrain_operator.adapting import JobLoop
from heterotrain_operator.job.event_log import EventLog
from heterotrain_operator.job.observed import Answer

ANSWERS_KEPT: Final = 32
MADE_KEPT: Final = timedelta(minutes=15)


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
    looked: bool = False
    """Whether a pass over the job came to its end: what happens from now on is seen."""
    loop: JobLoop | None = None
    """Its adaptation loop; `None`: it has none (a pass that only looks)."""
    made: dict[str, tuple[datetime, ...]] = field(default_factory=dict)
    """When pods were made lately, by name in the job: who removes them again and again is met with patience."""

    def remember_made(self, names: Iterable[str], now: datetime) -> None:
        """Keep when pods were made, for a while."""
        times = {name: (*self.made.get(name, ()), now) for name in names}
        kept = {name: tuple(at for at in made if now - at < MADE_KEPT) for name, made in (self.made | times).items()}
        self.made = {name: made for name, made in kept.items() if made}

    def remember_answer(self, answer: Answer) -> None:
        """Keep the newest answers; an old one that the status tells of already is not needed."""
        self.answers = (*self.answers, answer)[-ANSWERS_KEPT:]
