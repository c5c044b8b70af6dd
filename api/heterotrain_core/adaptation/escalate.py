"""What is tried when shares alone do not help, in the declared order, and the way back. Pure.

The signal is not that of the shares: these follow compute times, this ladder follows whether the others *wait* for a
worker that already has its smallest share (algorithms.md B4: two controllers on one signal oscillate).
"""

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
"""Windows that a means has to show its effect, and windows of calm before the way back."""


class Signs(NamedTuple):
    """What a window showed."""

    straggler: str = ""
    """Worker that is the slowest with its smallest share; empty: nobody."""
    holds_up: bool = False
    """The others wait for it."""
    needed: int = 0
    """Staleness bound with which they would not wait, as far as one can tell."""


class Means(NamedTuple):
    """What there is to use now."""

    bound: int = 0
    """Staleness bound in force."""
    least: int = 0
    most: int = 0
    """Where it may be moved; `least` = `most` = `bound`: nowhere."""
    no_relaxing: str = ""
    """Why the bound cannot be moved at all; empty: it can."""
    no_replacing: str = ""
    """Why no worker can be replaced; empty: one can."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """Where the escalation stands."""

    step: int = 0
    """Index in the declared steps; their number: given up."""
    windows: int = 0
    """Windows on this step in which the trouble lasted."""
    calm: int = 0
    """Windows in a row without trouble."""
    start: int | None = None
    """Staleness bound from before it was raised; `None`: it was not."""
    replaced: str = ""
    """Worker that was to be replaced last."""


class Measure(NamedTuple):
    """What to do now; `step` is `None` if nothing changes."""

    step: Step | None
    words: str = ""
    bound: int | None = None
    """Staleness bound to set."""
    replace: str = ""
    """Worker to replace."""


def climb(ladder: Ladder, declared: Sequence[Step], signs: Signs, means: Means) -> tuple[Ladder, Measure]:
    """One window is over. Rebalancing is the plan's own work: here it only takes its turn.

    After the last step the ladder gives up and says so; it starts anew when the cause is gone. A straggler that nobody
    waits for any more, since the bound was raised, is neither trouble nor calm: the bound stays.
    """
    if not signs.straggler:
        return _descend(ladder, declared, means)
    if not signs.holds_up:
        held = "" if ladder.start is None else f"the others do not wait for {signs.straggler} with bound {means.bound}"
        return replace(ladder, windows=0, calm=0), Measure(None, held)
    ladder = replace(ladder, windows=ladder.windows + 1, calm=0)
    who = signs.straggler
    if ladder.step >= len(declared):
        return ladder, Measure(None, f"{_names(declared)} did not help against {who}: given up, training goes on")
    if ladder.windows <= PATIENCE_WINDOWS:
        return ladder, Measure(None, f"{declared[ladder.step]} has its turn against {who}")
    return _take(ladder, declared, signs, means)


def _take(ladder: Ladder, declared: Sequence[Step], signs: Signs, means: Means) -> tuple[Ladder, Measure]:
    """The next means that can be used, from the present one on."""
    who = signs.straggler
    obstacles = []
    begin = ladder.step if declared[ladder.step] is Step.RELAX_STALENESS else ladder.step + 1
    for index in range(begin, len(declared)):
        step = declared[index]
        if step is Step.RELAX_STALENESS:
            if means.no_relaxing or means.bound >= means.most:
                obstacles.append(means.no_relaxing or f"the staleness bound is at its largest, {means.most}")
                continue
            bound = min(means.most, max(means.bound + 1, signs.needed))
            start = means.bound if ladder.start is None else ladder.start
            words = f"the staleness bound rises from {means.bound} to {bound}, since the others wait for {who}"
            return replace(ladder, step=index, windows=0, start=start), Measure(step, words, bound=bound)
        if step is Step.REPLACE:
            if means.no_replacing:
                obstacles.append(means.no_replacing)
                continue
            words = f"{who} is replaced, since the others wait for it although it has its smallest share"
            return replace(ladder, step=index, windows=0, replaced=who), Measure(step, words, replace=who)
    why = f" ({'; '.join(obstacles)})" if obstacles else ""
    words = f"{_names(declared)} did not help against {who}{why}: given up, training goes on"
    return replace(ladder, step=len(declared), windows=1), Measure(None, words)


def _descend(ladder: Ladder, declared: Sequence[Step], means: Means) -> tuple[Ladder, Measure]:
    if ladder == Ladder():
        return ladder, Measure(None)
    ladder = replace(ladder, calm=ladder.calm + 1, windows=0)
    if ladder.calm < PATIENCE_WINDOWS:
        return ladder, Measure(None)
    start = None if ladder.start is None else max(means.least, ladder.start)
    if start is not None and not means.no_relaxing and start < means.bound:
        words = f"the staleness bound falls from {means.bound} to {start}: nobody holds the others up any more"
        return Ladder(), Measure(Step.RELAX_STALENESS, words, bound=start)
    back = f"back to {declared[0]}: nobody holds the others up any more" if declared else ""
    return Ladder(), Measure(None, back)


def _names(declared: Sequence[Step]) -> str:
    return ", ".join(declared) or "no step"
