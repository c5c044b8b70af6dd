"""What the loop remembers, and how it takes in what it is told. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from heterotrain_core.adaptation import guard as guards
from heterotrain_core.adaptation.detect import change_words
from heterotrain_core.adaptation.guard import Guard, Made
from heterotrain_core.adaptation.track import Track, follow
from heterotrain_core.adaptation.values import Answer, Found, Observation, Settings

SILENT: Final = "did not answer"
"""How a refusal by silence begins (`heterotrain_core.negotiation`): it tells nothing of the share."""
FIRST: Final = "the workers' speeds are known for the first time"


class Ceiling(NamedTuple):
    """Largest share that a worker is given."""

    samples: int
    until: float = math.inf
    """What made rounds slower once may be tried again one day."""


@dataclass(frozen=True, slots=True)
class State:
    """All that the loop remembers."""

    settings: Settings
    tracks: Mapping[str, Track] = field(default_factory=dict)
    """Live workers."""
    guard: Guard = field(default_factory=Guard)
    ceilings: Mapping[str, Ceiling] = field(default_factory=dict)
    """Of workers that refused a larger share, or did not bear it."""
    urgent: str = FIRST
    """Why the next plan need not wait; empty: it must."""
    changes: tuple[Found, ...] = ()
    """Changes of speed since the last decision."""
    live: frozenset[str] = frozenset()
    began: float | None = None
    """When training was first seen."""
    ticked: float | None = None
    """When it decided last."""
    pending: Made | None = None
    """Proposed, not answered yet."""
    wait_until: float = -math.inf
    """The coordinator refused: ask again from then on."""
    last_words: str = ""
    """Reason of the last decision that was told."""


def take_in(state: State, seen: Observation, now: float) -> tuple[State, bool]:
    """Records, changes, membership, the answer to the pending proposal; whether there is reason to decide at once."""
    live = frozenset(w.name for w in seen.workers if w.live)
    tracks: dict[str, Track] = {}
    found: list[Found] = []
    for worker in seen.workers:
        if worker.live:
            track, changes = follow(state.tracks.get(worker.name, Track()), worker.name, worker.records, now)
            tracks[worker.name] = track
            found += [change_words(change, worker.node) for change in changes]
    known_before = all_known(state)
    woken = bool(found)
    if found:
        state = replace(state, urgent=found[-1].words, changes=(*state.changes, *found))
    if state.live and live and live != state.live:
        # What was agreed with other members means nothing any more.
        guard = replace(state.guard, made=None, over=0)
        state = replace(state, urgent=_membership(state.live, live), pending=None, guard=guard)
        woken = True
    began = now if state.began is None and seen.training else state.began
    state = replace(state, tracks=tracks, live=live, began=began)
    if seen.answer is not None and state.pending is not None:
        state = _answered(state, state.pending, seen, seen.answer, now)
    woken = woken or (bool(state.urgent) and all_known(state) and not known_before)
    return _mark(state, seen), woken


def all_known(state: State) -> bool:
    """Whether every live worker has a model."""
    return bool(state.live) and all(name in state.tracks and state.tracks[name].model for name in state.live)


def num_changes(state: State) -> dict[str, int]:
    """Changes of speed seen so far, by worker."""
    return {name: track.changes for name, track in state.tracks.items()}


def _membership(before: frozenset[str], now: frozenset[str]) -> str:
    changes = ((sorted(before - now), "left"), (sorted(now - before), "came"))
    return " and ".join(f"{', '.join(names)} {word}" for names, word in changes if names)


def _answered(state: State, pending: Made, seen: Observation, answer: Answer, now: float) -> State:
    state = replace(state, pending=None)
    if not answer.refusals:
        made = replace(pending, generation=answer.generation, effective_round=answer.effective_round)
        return replace(state, urgent="", guard=guards.after_change(state.guard, state.settings, made, now))
    return replace(
        state,
        ceilings=_ceilings(state.ceilings, pending, answer),
        wait_until=now + state.settings.interval_seconds,
    )


def _ceilings(known: Mapping[str, Ceiling], pending: Made, answer: Answer) -> dict[str, Ceiling]:
    """A worker that refuses a larger share gets half of the rise next time: what it can hold lies between."""
    ceilings = dict(known)
    for refusal in answer.refusals:
        wanted, share = pending.after.get(refusal.worker, 0), pending.before.get(refusal.worker, 0)
        if wanted > share and not refusal.reason.startswith(SILENT):
            ceilings[refusal.worker] = Ceiling((share + wanted) // 2)
    return ceilings


def _mark(state: State, seen: Observation) -> State:
    made = state.guard.made
    if made is None or made.marks is not None or seen.version < made.effective_round:
        return state
    marks = {name: track.seen for name, track in state.tracks.items()}
    return replace(state, guard=replace(state.guard, made=replace(made, marks=marks)))
