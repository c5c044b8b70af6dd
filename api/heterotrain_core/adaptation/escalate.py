"""What is tried when shares alone do not help, in the declared order, and the way back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple


class Step(StrEnum):
    """A means against a straggler, from the mildest."""

    REBALANCE = "Rebalance"
    """Other shares."""
    RELAX_STALENESS = "RelaxStaleness"
    """A higher staleness bound, within what is declared."""
    REPLACE = "Replace"
    """Another pod in its place, elsewhere."""


PATIENCE_WINDOWS: Final = 3
"""Windows that a means has to show its effect, and windows of calm before a step back."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where the escalation stands."""

    step: int = 0
    """Index in the declared steps; their number: given up."""
    windows: int = 0
    """Windows on this step in which the trouble lasted."""
    calm: int = 0
    """Windows in a row without trouble."""
    bound: int = 0
    """Staleness added so far."""
    replaced: str = ""
    """Worker that was to be replaced last."""


class Measure(NamedTuple):
    """What to do now; `step` is `None` if nothing changes."""

    step: Step | None
    words: str
    relax_by: int = 0
    """Change of the staleness bound."""
    replace: str = ""
    """Worker to replace."""


def climb(ladder: Ladder, declared: Sequence[Step], *, straggler: str, reserve: int) -> tuple[Ladder, Measure]:
    """One window is over. `straggler`: who holds the others up although shares are balanced; empty: nobody.

    `reserve`: by how much the staleness bound may still rise. Rebalancing is the plan's own work: here it only takes
    its turn. After the last step the ladder gives up and says so once; it starts anew when the cause is gone.
    """
    if not straggler:
        return _descend(ladder, declared)
    ladder = replace(ladder, windows=ladder.windows + 1, calm=0)
    if ladder.step >= len(declared):
        return ladder, Measure(None, f"{straggler} still holds the others up; all of {_names(declared)} was tried")
    if ladder.windows <= PATIENCE_WINDOWS and (ladder.step == 0 or ladder.windows > 1):
        return ladder, Measure(None, f"{declared[ladder.step]} has its turn against {straggler}")
    return _take(ladder, declared, straggler, reserve)


def _take(ladder: Ladder, declared: Sequence[Step], straggler: str, reserve: int) -> tuple[Ladder, Measure]:
    """The next means that can be used, from the present one on."""
    begin = ladder.step if _again(ladder, declared, reserve) else ladder.step + 1
    for index in range(begin, len(declared)):
        step = declared[index]
        if step is Step.RELAX_STALENESS and reserve > 0:
            words = f"the staleness bound rises by 1, since {straggler} holds the others up with its smallest share"
            return Ladder(index, 1, 0, ladder.bound + 1, ladder.replaced), Measure(step, words, relax_by=1)
        if step is Step.REPLACE:
            words = f"{straggler} is to be replaced, since it holds the others up with its smallest share"
            return Ladder(index, 1, 0, ladder.bound, straggler), Measure(step, words, replace=straggler)
    given_up = replace(ladder, step=len(declared), windows=1)
    return given_up, Measure(
        None, f"nothing of {_names(declared)} helps against {straggler}: given up, training goes on"
    )


def _again(ladder: Ladder, declared: Sequence[Step], reserve: int) -> bool:
    return declared[ladder.step] is Step.RELAX_STALENESS and reserve > 0


def _descend(ladder: Ladder, declared: Sequence[Step]) -> tuple[Ladder, Measure]:
    calm = ladder.calm + 1
    if calm < PATIENCE_WINDOWS or ladder == Ladder():
        return replace(ladder, calm=calm, windows=0) if ladder != Ladder() else ladder, Measure(None, "")
    if ladder.bound > 0:
        down = replace(ladder, calm=0, windows=0, bound=ladder.bound - 1)
        words = "the staleness bound falls by 1, since nobody holds the others up any more"
        return down, Measure(Step.RELAX_STALENESS, words, relax_by=-1)
    return Ladder(), Measure(None, f"back to {declared[0]}: nobody holds the others up any more" if declared else "")


def _names(declared: Sequence[Step]) -> str:
    return ", ".join(declared) or "no step"
