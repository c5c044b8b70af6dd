"""Decisions put together, and their words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from heterotrain_core.adaptation import guard as guards
from heterotrain_core.adaptation.estimate import TRUSTED
from heterotrain_core.adaptation.guard import Made
from heterotrain_core.adaptation.plan import TRUST
from heterotrain_core.adaptation.state import State, calmed, num_changes
from heterotrain_core.adaptation.track import cpu_per_sample
from heterotrain_core.adaptation.values import Action, Decision, Mode, Observation, Proposal
from heterotrain_core.adaptation.weigh import Weighed
from heterotrain_core.synchronization import Synchronization


def gain_words(weighed: Weighed) -> str:
    """What the wanted shares would come to."""
    return (
        f"a round takes {seconds(weighed.predicted_seconds)} instead of {seconds(weighed.present_seconds)} by the"
        f" speed models ({_moves(weighed.present, weighed.wanted)})"
    )


def seconds(value: float) -> str:
    """``146 ms``, ``2.31 s``."""
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"


def _moves(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """The largest changes of shares, old → new; at most four."""
    changed = sorted(
        (n for n in after if after[n] != before.get(n, 0)), key=lambda n: -abs(after[n] - before.get(n, 0))
    )
    words = [f"{name} {before.get(name, 0)}→{after[name]}" for name in changed[:4]]
    return ", ".join(words) + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")


def propose(
    state: State,
    seen: Observation,
    weighed: Weighed,
    now: float,
    *,
    action: Action,
    shares: Mapping[str, int],
    why: str,
    synchronization: Synchronization | None = None,
    micro_batches: Mapping[str, int] | None = None,
) -> tuple[State, Decision]:
    """Propose `shares`, and what else is given, or only show them where the mode is Recommend."""
    if state.settings.mode is Mode.RECOMMEND:
        shown = said(Action.RECOMMEND, f"recommended, not applied: {why}", seen, weighed, now)
        return calmed(state), shown
    measured = guards.measured([w for w in seen.workers if w.live], state.tracks, None, TRUSTED)
    generation = seen.generation + 1
    pending = Made(
        generation=generation,
        effective_round=0,
        before=weighed.present,
        after=shares,
        predicted_seconds=weighed.predicted_seconds,
        speed_before=0.0 if measured is None else measured.samples_per_second,
        noise_before=0.0 if measured is None else measured.error,
        changes=num_changes(state),
        paces={room.name: room.even for room in weighed.rooms if room.known},
        foretold={room.name: room.pace(max(1, shares[room.name])) for room in weighed.rooms if room.known},
        cpus={name: cpu_per_sample(track, weighed.present.get(name, 0)) for name, track in state.tracks.items()},
        parts=micro_batches or {},
        held=action is Action.PROPOSE and any(row.limit == TRUST for row in weighed.rows),
        # Only what was chosen by its prediction is held against it.
        verified=action not in {Action.PROPOSE, Action.SPLIT},
        steps=weighed.steps,
        refined=_refined(state, weighed, action),
    )
    proposal = Proposal(generation, shares, why, synchronization, micro_batches or {})
    return replace(state, pending=pending), replace(said(action, why, seen, weighed, now), proposal=proposal)


def _refined(state: State, weighed: Weighed, action: Action) -> bool:
    """Whether shares need no second look by more steps: what a look led to that is undone is not tried again."""
    if action is Action.PROPOSE:
        return weighed.steps >= guards.FEW
    return action is Action.ROLL_BACK or state.guard.refined


def said(action: Action, reason: str, seen: Observation, weighed: Weighed, now: float) -> Decision:
    """A decision with all that was weighed for it."""
    return Decision(
        action=action,
        reason=reason,
        time=now,
        version=seen.version,
        generation=seen.generation,
        workers=weighed.rows,
        gain=weighed.gain,
        band=weighed.band,
        predicted_seconds=weighed.predicted_seconds,
        present_seconds=weighed.present_seconds,
        measured_seconds=0.0 if weighed.measured is None else weighed.measured.seconds,
        advice=weighed.advice,
    )
