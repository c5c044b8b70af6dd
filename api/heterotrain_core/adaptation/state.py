"""What the loop remembers, and how it takes in what it is told. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, NamedTuple

from heterotrain_core.adaptation import guard as guards
from heterotrain_core.adaptation.detect import change_words
from heterotrain_core.adaptation.drift import Spoken
from heterotrain_core.adaptation.escalate import Ladder
from heterotrain_core.adaptation.estimate import TRUSTED
from heterotrain_core.adaptation.guard import Guard, Made
from heterotrain_core.adaptation.together import shared
from heterotrain_core.adaptation.track import LARGEST_DRIFT, Change, Track, follow, forget, steps_with
from heterotrain_core.adaptation.values import Answer, Found, Observation, Settings

SILENT: Final = "did not answer"
"""How a refusal by silence begins (`heterotrain_core.negotiation`): it tells nothing of the share."""
FIRST: Final = "the workers' speeds are known for the first time"


ECHO: Final = 1.5
"""A change of speed by less, just after the shares changed, is taken for their effect on a machine that is shared."""
MINOR: Final = 1.15
"""A change of speed by less may be noise: it passes over no windows."""
COMING_AND_GOING: Final = 3.0
"""So many standard deviations of a worker's steps may be noise too."""
UNSTEADY: Final = 3.0
"""As `MINOR`, for a worker whose steps vary so much that a dozen of them may seem another speed."""
WEATHER: Final = math.log(1.1)
"""Logarithm of a change of all other workers at the same time, from which on a change of one may go with it."""
BESIDE: Final = math.log(1.5)
"""Logarithm of what one worker has beyond such a change, from which on it is its own."""
INNOCENT: Final = 1.25
"""A worker that takes so much longer per sample with its old share too did not become slower by the new one."""


class Ceiling(NamedTuple):
    """Largest share that a worker is given."""

    samples: int
    until: float = math.inf
    """What made rounds slower once may be tried again one day."""
    share: int = 0
    """What it went back to; 0: it refused, nothing was tried."""
    pace: float = 0.0
    """Seconds per sample that it took with that share before."""
    mark: int = 0
    """Newest step when it went back."""
    times: int = 1
    """How often this happened in a row."""


LARGE: Final = 1.7
"""A change of speed by so much is acted on at once."""
LASTING_STEPS: Final = 12
"""Of its worker since the alarm, after which a smaller one is; or after a window."""


class Alarm(NamedTuple):
    """A change of speed that may go again."""

    worker: str
    step: int
    """Its newest when the change was noticed."""
    at: float


@dataclass(frozen=True, slots=True)
class State:
    """All that the loop remembers."""

    settings: Settings
    tracks: Mapping[str, Track] = field(default_factory=dict)
    """Live workers."""
    guard: Guard = field(default_factory=Guard)
    ladder: Ladder = field(default_factory=Ladder)
    ladder_before: Ladder | None = None
    """While a proposal of the ladder is not answered: where it stood before."""
    ceilings: Mapping[str, Ceiling] = field(default_factory=dict)
    """Of workers that refused a larger share, or did not bear it."""
    spoken: Mapping[str, Spoken] = field(default_factory=dict)
    """What workers were when they were last spoken of."""
    spoken_next: Mapping[str, Spoken] | None = None
    """The same once the pending proposal is agreed; `None`: it tells of nobody."""
    urgent: str = FIRST
    """Why the next plan need not wait; empty: it must."""
    alarm: Alarm | None = None
    """The change of speed that it is about, as long as that may go again; `None`: it need not last."""
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
    causes: dict[Change, str] = {}
    common = shared(state.tracks, seen.workers)
    for worker in seen.workers:
        if worker.live:
            name, known = worker.name, state.tracks.get(worker.name, Track())
            track, changes = follow(known, name, worker.records, now, common.get(name, {}))
            tracks[worker.name] = track
            for change in changes:
                found.append(change_words(change, worker.node))
                if not _may_wait(state, seen, change, common.get(name, {})):
                    causes[change] = found[-1].words
    known_before = all_known(state)
    woken = bool(found)
    if found:
        state = replace(state, changes=(*state.changes, *found))
    if causes:
        state = _alarmed(state, causes, tracks, now)
    if state.live and live and live != state.live:
        # What was agreed with other members means nothing any more.
        guard = replace(state.guard, made=None, over=0, frozen_until=-math.inf, frozen_why="", refined=False)
        state = hurried(state, _membership(state.live, live))
        state = replace(state, pending=None, ladder_before=None, guard=guard)
        woken = True
    began = now if state.began is None and seen.training else state.began
    stayed = {name for name in live & state.live if tracks[name].seen >= state.tracks[name].seen}
    spoken = {name: known for name, known in state.spoken.items() if name in stayed}
    state = replace(state, tracks=tracks, live=live, began=began, spoken=spoken)
    if seen.answer is not None and state.pending is not None:
        state = _answered(state, state.pending, seen, seen.answer, now)
    woken = woken or (bool(state.urgent) and all_known(state) and not known_before)
    if state.alarm is not None and _has_lasted(state, state.alarm, now):
        state, woken = replace(state, alarm=None), True
    return _mark(_cleared(state, seen), seen), woken


def _cleared(state: State, seen: Observation) -> State:
    """Without ceilings of workers that turn out to be as slow with their old share: something else was to blame."""
    shares = {w.name: w.share for w in seen.workers}
    innocent = [
        name
        for name, ceiling in state.ceilings.items()
        if ceiling.share and shares.get(name) == ceiling.share and _is_as_slow(state.tracks.get(name), ceiling)
    ]
    if not innocent:
        return state
    why = f"{', '.join(innocent)} became slower whatever the share"
    left = {name: ceiling for name, ceiling in state.ceilings.items() if name not in innocent}
    return replace(hurried(state, why), ceilings=left, guard=Guard())  # the way back was none


def _is_as_slow(track: Track | None, ceiling: Ceiling) -> bool:
    points = [] if track is None else steps_with(track.points, ceiling.share, ceiling.mark)
    if len(points) < TRUSTED:
        return False
    return median([p.busy / p.samples for p in points]) > INNOCENT * ceiling.pace


def _usual(noise: float) -> float:
    """Largest change of speed of a worker whose single steps vary so much (relative) that may come and go by itself.

    What makes steps vary on a machine that is shared lasts for seconds, and so for some steps.
    """
    return UNSTEADY if noise > LARGEST_DRIFT else max(MINOR, 1.0 + COMING_AND_GOING * noise)


def hurried(state: State, why: str) -> State:
    """With a reason for which the next plan waits for nothing."""
    return replace(state, urgent=why, alarm=None)


def calmed(state: State) -> State:
    """Without any reason why the next plan need not wait."""
    return replace(state, urgent="", alarm=None)


def may_go_again(state: State) -> bool:
    """Whether what is urgent is a change of speed of which it is not known yet that it lasts."""
    return state.alarm is not None


def _alarmed(state: State, causes: Mapping[Change, str], tracks: Mapping[str, Track], now: float) -> State:
    """With the newest of these changes of speed; what must last begins anew with each."""
    change, words = [*causes.items()][-1]
    # What the next plan need not wait for anyway, another small change does not hold up.
    at_once = (state.urgent and state.alarm is None) or any(not 1 / LARGE < c.factor < LARGE for c in causes)
    alarm = None if at_once else Alarm(change.worker, tracks[change.worker].seen, now)
    return replace(state, urgent=words, alarm=alarm, guard=replace(state.guard, over=0))


def _has_lasted(state: State, alarm: Alarm, now: float) -> bool:
    """Whether a change of speed is more than what programs of others do for seconds.

    Of such loads each hits the workers of a machine unlike, and shares made for it are wrong as soon as it has gone.
    """
    track = state.tracks.get(alarm.worker)
    steps = 0 if track is None else track.seen - alarm.step
    return steps >= LASTING_STEPS or now - alarm.at >= state.settings.interval_seconds


def _may_wait(state: State, seen: Observation, change: Change, shared: Mapping[int, float]) -> bool:
    """Whether a change of speed may be noise, or come from our own change of shares: it must wait as any other gain.

    Or from what makes all slower for a few seconds, which seldom hits all alike. `shared`: what the newest steps have
    in common with those of all others, by sequence.
    """
    changed, off = math.log(change.factor), median(shared.values() or [0.0])
    if off * changed > 0 and abs(off) >= WEATHER and abs(changed) - abs(off) < BESIDE:
        return True
    made, factor = state.guard.made, change.factor
    known = state.tracks.get(change.worker, Track()).model
    usual = _usual(0.0 if known is None else known.noise)
    if 1 / usual < factor < usual:
        return True
    if made is None or not 1 / ECHO < factor < ECHO:
        return False
    return seen.version - made.effective_round < state.settings.cooldown_rounds


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
    before, spoken = state.ladder_before, state.spoken_next
    state = replace(state, pending=None, ladder_before=None, spoken_next=None)
    if spoken is not None and not answer.refusals:
        state = replace(state, spoken=spoken)
    if before is not None and answer.refusals:
        return replace(state, ladder=replace(before, windows=0), wait_until=now + state.settings.interval_seconds)
    if not answer.refusals and pending.blind:
        return state
    if not answer.refusals:
        made = replace(pending, generation=answer.generation, effective_round=answer.effective_round)
        return replace(calmed(state), guard=guards.after_change(state.guard, state.settings, made, now))
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
    # What a worker took for the same share in one go says nothing of what it takes in parts.
    anew = {name: forget(state.tracks[name], made.after[name]) for name in made.parts if name in state.tracks}
    state = replace(state, tracks={**state.tracks, **anew})
    return replace(state, guard=replace(state.guard, made=replace(made, marks=marks)))
