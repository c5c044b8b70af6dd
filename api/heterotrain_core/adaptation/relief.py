"""The escalation beside the shares: one step of the ladder a window, once the shares are as good as they get. Pure."""

from __future__ import annotations

from dataclasses import replace

from heterotrain_core.adaptation.escalate import Means, Measure, climb
from heterotrain_core.adaptation.saying import propose, said
from heterotrain_core.adaptation.state import State
from heterotrain_core.adaptation.values import Action, Decision, Mode, Observation, Settings
from heterotrain_core.adaptation.weigh import Weighed
from heterotrain_core.synchronization import Delay, Ssp, Synchronization


def relieve(
    state: State, seen: Observation, weighed: Weighed, decision: Decision, now: float, *, window: bool
) -> tuple[State, Decision]:
    """Climb the ladder, or come down, where `decision` leaves the shares as they are; else return both unchanged."""
    settled = weighed.wanted == weighed.present or weighed.gain <= weighed.usual
    if decision.action is not Action.KEEP or weighed.unknown or weighed.lost or not settled:
        return state, decision
    if state.ladder.replaced and state.ladder.replaced not in weighed.present:
        return state, replace(decision, escalation=f"{state.ladder.replaced} is being replaced")
    if not window or now < state.wait_until:
        return state, replace(decision, escalation=_standing(state, weighed))
    before, means = state.ladder, _means(state, seen, weighed.signs.straggler)
    ladder, measure = climb(before, state.settings.escalation, weighed.signs, means)
    if measure.bound is not None and seen.synchronization is not None:
        wanted = with_bound(seen.synchronization, measure.bound)
        state, relaxed = propose(
            replace(state, ladder=ladder if state.settings.mode is Mode.APPLY else before),
            seen,
            weighed,
            now,
            action=Action.RELAX,
            shares=weighed.present,
            why=measure.words,
            synchronization=wanted,
        )
        return replace(state, ladder_before=before if relaxed.proposal is not None else None), relaxed
    action = _action(state, measure, gives_up=ladder.step >= len(state.settings.escalation) > before.step)
    if action is Action.RECOMMEND:
        words = f"recommended, not applied: {measure.words}"
        return state, replace(said(action, words, seen, weighed, now), escalation=measure.words)
    if action is not Action.KEEP:
        decision = replace(said(action, measure.words, seen, weighed, now), replace=measure.replace)
    return replace(state, ladder=ladder), replace(decision, escalation=measure.words)


def _action(state: State, measure: Measure, *, gives_up: bool) -> Action:
    if measure.replace:
        return Action.REPLACE if state.settings.mode is Mode.APPLY else Action.RECOMMEND
    return Action.GIVE_UP if gives_up else Action.KEEP


def _means(state: State, seen: Observation, straggler: str) -> Means:
    own = next((worker.irreplaceable for worker in seen.workers if worker.name == straggler), "")
    means = means_of(state.settings, seen.synchronization)
    return means._replace(no_replacing=means.no_replacing or own)


def means_of(settings: Settings, synchronization: Synchronization | None) -> Means:
    """What there is to use."""
    if settings.staleness is None:
        why = "no range is declared for the staleness bound"
    elif not isinstance(synchronization, Ssp | Delay):
        mode = "not known yet" if synchronization is None else f"{synchronization.mode}, which has no staleness bound"
        why = f"the mode is {mode}"
    elif synchronization.staleness_bound is None:
        why = "the staleness has no bound"
    else:
        least, most = settings.staleness
        return Means(synchronization.staleness_bound, least, most, no_replacing=settings.no_replacing)
    return Means(no_relaxing=why, no_replacing=settings.no_replacing)


def with_bound(synchronization: Synchronization, bound: int) -> Synchronization:
    """The same mode with another staleness bound."""
    if isinstance(synchronization, Ssp | Delay):
        return replace(synchronization, staleness_bound=bound)
    return synchronization


def _standing(state: State, weighed: Weighed) -> str:
    """Where the ladder stands, between two windows."""
    declared, ladder = state.settings.escalation, state.ladder
    if not weighed.signs.straggler or not weighed.signs.holds_up:
        return ""
    if ladder.step >= len(declared):
        return f"{', '.join(declared)} did not help against {weighed.signs.straggler}: given up, training goes on"
    return f"{declared[ladder.step]} has its turn against {weighed.signs.straggler}"
