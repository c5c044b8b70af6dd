"""One step of the adaptation loop: what was seen in, a decision out. Pure; `now` is an instant of the caller's clock.

Called with every state of the coordinator, whatever the distance. It decides once an interval, and at once when a speed
or the membership changed; between, it only takes the records in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from heterotrain_core.adaptation import guard as guards
from heterotrain_core.adaptation.detect import MORE_WORK
from heterotrain_core.adaptation.drift import drifted, noted
from heterotrain_core.adaptation.estimate import TRUSTED
from heterotrain_core.adaptation.guard import Made, Speed
from heterotrain_core.adaptation.relief import relieve
from heterotrain_core.adaptation.saying import gain_words, propose, said, seconds
from heterotrain_core.adaptation.start import start_plan
from heterotrain_core.adaptation.state import Ceiling, State, calmed, hurried, may_go_again, num_changes, take_in
from heterotrain_core.adaptation.track import cpu_per_sample
from heterotrain_core.adaptation.values import Action, Decision, Mode, Observation, Verification
from heterotrain_core.adaptation.weigh import Weighed, balanced, weigh
from heterotrain_core.plan import reachable_total
from heterotrain_core.shares import start_shares

__all__ = ["State", "step"]

CEILING_FREEZES: Final = 2
"""Freezes after which a share is tried again that a worker did not bear; twice as many each time it does not again."""

REFINED: Final = "the shares in force were chosen from fewer steps than are known now"

PATIENCE: Final = 4
"""Times `lost_seconds`: workers that have given no model by then no longer hold the first plan up."""


def step(state: State, seen: Observation, now: float) -> tuple[State, Decision]:
    """Take in `seen` and decide."""
    state, woken = take_in(state, seen, now)
    if not seen.training or not state.live:
        return state, Decision(Action.NONE, "nothing is being trained")
    if state.settings.mode is Mode.OFF:
        return state, Decision(Action.NONE, "the adaptation is off")
    state, checked = _check_change(state, seen, now)
    if checked is not None:
        return state, checked
    window = state.ticked is None or now - state.ticked >= state.settings.interval_seconds
    if state.pending is not None or not (window or woken):
        return state, Decision(Action.NONE, "the next window is not over yet")
    state = replace(state, guard=guards.of_plan(state.guard, seen.generation))
    weighed = weigh(state, seen, now)
    ticked = replace(state, ticked=now, changes=())
    found = (*state.changes, *weighed.found)
    begun = _begin(ticked, seen, weighed, now)
    state, decision = begun or _decide(ticked, seen, weighed, now, window=window)
    state, decision = relieve(state, seen, weighed, decision, now, window=window)
    ceiling = balanced(weighed)
    told = (*found, ceiling) if ceiling is not None else found
    return state, replace(decision, found=(*told, *decision.found))


def _decide(state: State, seen: Observation, weighed: Weighed, now: float, *, window: bool) -> tuple[State, Decision]:
    if _is_starved(state, weighed, now):
        return _start_again(state, seen, weighed, now)
    waiting = _waits_for_models(state, weighed, now)
    if waiting:
        return state, said(Action.KEEP, waiting, seen, weighed, now)
    if weighed.refined:
        state = replace(state, guard=replace(state.guard, refined=True))
    young = may_go_again(state)
    if weighed.wanted == weighed.present:
        state = replace(state, guard=replace(state.guard, over=0))
        words = "the shares are the best for the present speeds"
        return state if young else calmed(state), said(Action.KEEP, words, seen, weighed, now)
    if now < state.wait_until:
        return state, said(Action.KEEP, "the last plan was refused: the next one waits a window", seen, weighed, now)
    guard, verdict = guards.judge(
        state.guard,
        state.settings,
        gain=weighed.gain,
        limit=weighed.band,
        version=seen.version,
        now=now,
        urgent="" if young else state.urgent,
        window=window,
    )
    state = replace(state, guard=guard)
    if not verdict.act:
        is_over = (weighed.gain <= weighed.band and not young) or now < guard.frozen_until
        settled = calmed(state) if is_over else state
        words = f"{verdict.words}; {state.urgent}: that must last" if young else verdict.words
        return settled, said(Action.KEEP, words, seen, weighed, now)
    nodes, errors = {w.name: w.node for w in seen.workers}, {row.name: row.error for row in weighed.rows}
    # An alarm has told what it is about.
    found = () if state.urgent else drifted(state.spoken, weighed.rooms, errors, state.tracks, nodes)
    refined = [REFINED] if weighed.gain <= weighed.usual else []
    why = "; ".join([verdict.words, *refined, *(f.words for f in found), gain_words(weighed)])
    state, decision = propose(state, seen, weighed, now, action=Action.PROPOSE, shares=weighed.wanted, why=why)
    if state.pending is None:  # only recommended, and not again and again
        state = replace(state, guard=replace(state.guard, refined=True))
    generation = seen.generation if state.pending is None else state.pending.generation
    spoken = noted(state.spoken, weighed.rooms, errors, state.tracks, told=found, generation=generation)
    told = replace(state, spoken=spoken) if state.pending is None else replace(state, spoken_next=spoken)
    return told, replace(decision, found=found)


def _begin(state: State, seen: Observation, weighed: Weighed, now: float) -> tuple[State, Decision] | None:
    """Propose shares by what is known of the nodes, while nothing is known of the workers; `None`: nothing to begin."""
    if any(room.known for room in weighed.rooms) or now < state.wait_until:
        return None
    start = start_plan(seen, state.settings.global_batch, state.settings.grain)
    if start is None:
        return None
    state, decision = propose(state, seen, weighed, now, action=Action.PROPOSE, shares=start.shares, why=start.why)
    if state.pending is None:
        return state, decision  # only recommended
    return replace(state, pending=replace(state.pending, verified=True, blind=True)), decision


def _waits_for_models(state: State, weighed: Weighed, now: float) -> str:
    began = now if state.began is None else state.began
    if not weighed.unknown or now - began > PATIENCE * state.settings.lost_seconds:
        return ""
    return f"waiting for step records of {', '.join(weighed.unknown)}"


# Afterwards


def _check_change(state: State, seen: Observation, now: float) -> tuple[State, Decision | None]:
    """Hold the newest change against its prediction once enough steps are there; undo it if it made things worse."""
    made = state.guard.made
    if made is None or made.verified or made.marks is None or state.pending is not None:
        return state, None
    done = replace(state, guard=replace(state.guard, made=replace(made, verified=True)))
    changed = _changed_since(state, made)
    if seen.generation != made.generation or not changed <= _grown(made):
        return done, None  # another plan, or another machine: the comparison would say nothing
    live = [w for w in seen.workers if w.live]
    first = guards.measured(live, state.tracks, made.marks, TRUSTED)
    goes_on = first is not None and not changed and _may_go_on(state, made, first)
    least = guards.VERIFY_STEPS if not changed and not made.parts else TRUSTED
    after = first if goes_on else guards.measured(live, state.tracks, made.marks, least)
    if after is None:
        return state, None
    verified, fair = guards.verify(made, after), guards.fair(after, made, state.tracks)
    if not changed:
        done = replace(done, guard=guards.doubted(done.guard, guards.verify(made, fair), now, made))
    if guards.made_worse(made, fair, state.settings):
        return _relent(done, seen, made, verified, now)
    if changed:
        return done, None
    if goes_on:
        why = f"plan {made.generation}, which the trust region held back, is as fast as predicted"
        done = replace(hurried(done, why), ticked=None)
    words = f"plan {made.generation} is verified: predicted {seconds(made.predicted_seconds)}"
    words += f" a round, measured {seconds(after.seconds)}"
    weighed = weigh(done, seen, now)
    return done, replace(said(Action.KEEP, words, seen, weighed, now), verified=verified, found=weighed.found)


def _may_go_on(state: State, made: Made, first: Speed) -> bool:
    """Whether the rest of a plan that trust held back follows it without cool-down: its first steps are as predicted.

    Not while the shares went to and fro lately: going on is what would carry them too far.
    """
    calm = state.guard.part >= 1.0 and not state.guard.reversals
    fair = guards.fair(first, made, state.tracks)
    return made.held and calm and guards.is_as_predicted(made, fair, state.settings)


def _relent(state: State, seen: Observation, made: Made, verified: Verification, now: float) -> tuple[State, Decision]:
    """A change made rounds slower: who became slower by it works in parts; if that does not help, all goes back.

    At once if nobody computes more for a sample than before: then it is a processor that was waited for (a CPU limit,
    neighbours), and parts do not help against that.
    """
    changed = _changed_since(state, made) if not made.parts else set()
    heavier = {n: made.before[n] for n in changed if made.before.get(n) and _computes_more(state, made, n)}
    if heavier:
        return _split(state, seen, made, heavier, now)
    return _roll_back(state, seen, made, verified, now)


def _computes_more(state: State, made: Made, name: str) -> bool:
    """Whether a sample takes a worker more processor time than before the change; true if that is not known."""
    before, mark = made.cpus.get(name, 0.0), -1 if made.marks is None else made.marks.get(name, -1)
    now = cpu_per_sample(state.tracks[name], made.after[name], mark)
    return not before or not now or now > MORE_WORK * before


def _split(
    state: State, seen: Observation, made: Made, suspects: Mapping[str, int], now: float
) -> tuple[State, Decision]:
    """Have workers that became slower as their share grew compute it in parts of the size that they bore before.

    Page faults and caches make large batches slow where the same samples in two parts are not; if that was not it, the
    shares from before come back with the next verification.
    """
    who = ", ".join(f"{name} in parts of {size}" for name, size in sorted(suspects.items()))
    why = f"plan {made.generation} made rounds slower: the shares stay, and are computed by {who}"
    weighed = weigh(state, seen, now)
    state, decision = propose(
        state, seen, weighed, now, action=Action.SPLIT, shares=made.after, why=why, micro_batches=suspects
    )
    if state.pending is not None:
        pending = replace(
            state.pending,
            before=made.before,
            predicted_seconds=made.predicted_seconds,
            speed_before=made.speed_before,
            noise_before=made.noise_before,
            paces=made.paces,
            foretold=made.foretold,
        )
        state = replace(state, pending=pending)
    return state, replace(decision, found=(*state.changes, *weighed.found))


def _changed_since(state: State, made: Made) -> set[str]:
    return {name for name, count in num_changes(state).items() if count != made.changes.get(name)}


def _grown(made: Made) -> set[str]:
    """Workers with a larger share. One that becomes slower just then may not bear it (memory, cache)."""
    return {name for name, share in made.after.items() if share > made.before.get(name, share)}


def _roll_back(
    state: State, seen: Observation, made: Made, verified: Verification, now: float
) -> tuple[State, Decision]:
    why = (
        f"plan {made.generation} made rounds slower ({verified.speed_before:.0f} → {verified.speed_after:.0f}"
        " samples/s): the shares from before hold again"
    )
    until = now + state.settings.freeze_seconds
    guard = replace(state.guard, frozen_until=until, frozen_why="the last change made rounds slower")
    suspects = {*_changed_since(state, made), *made.parts}
    ceilings = {name: _suspected(state, made, name, now) for name in suspects}
    state = replace(state, guard=guard, ceilings={**state.ceilings, **ceilings})
    weighed = weigh(state, seen, now)
    state, decision = propose(state, seen, weighed, now, action=Action.ROLL_BACK, shares=made.before, why=why)
    return state, replace(decision, verified=verified, found=(*state.changes, *weighed.found))


def _suspected(state: State, made: Made, name: str, now: float) -> Ceiling:
    """The ceiling of a worker that became slower with a larger share: its old one, for a while."""
    known = state.ceilings.get(name)
    times = 1 if known is None else known.times + 1
    return Ceiling(
        samples=made.before[name],
        until=now + CEILING_FREEZES * state.settings.freeze_seconds * 2 ** (times - 1),
        share=made.before[name],
        pace=made.paces.get(name, math.inf),
        mark=state.tracks[name].seen,
        times=times,
    )


def _is_starved(state: State, weighed: Weighed, now: float) -> bool:
    """Whether a worker's metrics are lost for so long that what was adapted is not trusted any more."""
    since = [state.tracks[name].news_at for name in weighed.lost]
    return any(at is not None and now - at >= state.settings.equal_after_seconds for at in since)


def _start_again(state: State, seen: Observation, weighed: Weighed, now: float) -> tuple[State, Decision]:
    shares = _start_shares(state, seen)
    if shares is None or shares == weighed.present:
        words = "metrics are lost: the start shares stay until they are back"
        return state, said(Action.KEEP, words, seen, weighed, now)
    words = "metrics are lost for too long: the start shares hold again until they are back"
    return propose(state, seen, weighed, now, action=Action.FALL_BACK, shares=shares, why=words)


def _start_shares(state: State, seen: Observation) -> dict[str, int] | None:
    """The start shares of the live workers, equal parts where these do not sum up; `None`: their bounds allow none."""
    live = [w for w in seen.workers if w.live]
    total = reachable_total([w.bounds for w in live], state.settings.global_batch, state.settings.grain)
    if total is None:
        return None
    declared = [seen.start_shares.get(w.name) for w in live]
    if sum(share or 0 for share in declared) != total:
        declared = [None] * len(live)
    low, high = [w.bounds.minimum for w in live], [w.bounds.maximum for w in live]
    try:
        shares = start_shares(declared, low, high, total, state.settings.grain)
    except ValueError:  # shares of another manifest, which these bounds do not allow
        return None
    return dict(zip((w.name for w in live), shares, strict=True))
