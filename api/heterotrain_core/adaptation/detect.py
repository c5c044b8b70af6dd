"""What is the matter with a worker, with a cause in words (table B3). Pure.

Each knob has its own signal: shares follow compute times, never the wait, which is a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from heterotrain_core.adaptation.estimate import TRUSTED, Point
from heterotrain_core.adaptation.track import Change, Track
from heterotrain_core.adaptation.values import Finding, Found, NodeFact, Observation, Settings, WorkerSeen
from heterotrain_core.info.stats import quantile

BUSY: Final = 0.85
"""Processors in use from which on a node counts as busy."""
OTHERS_BUSY: Final = 0.2
THROTTLED: Final = 0.1
STARVED: Final = 0.8
"""A worker that gets so much of its former processor time waits for its processor."""
MORE_WORK: Final = 1.1
"""Times the processor time of a sample from which on computing itself is said to be dearer."""
SLOWED: Final = 1.25
"""A worker so many times slower than at first is told of with its cause."""
NOISY: Final = 1.5
"""p95 over p50 of a worker's steps (table B3)."""
BUILT_IN: Final = 0.5
"""A worker that from the beginning has less than this part of the median speed is slow by nature."""


def cause(node: NodeFact | None) -> str:
    """Why a worker may be slow, from what is known of its node; empty: nothing there explains it."""
    if node is None:
        return ""
    if node.others_busy is not None and node.others_busy >= OTHERS_BUSY:
        return f"node {node.name} is {node.others_busy:.0%} busy with other pods"
    if node.throttled is not None and node.throttled >= THROTTLED:
        return f"its CPU quota on node {node.name} held it up for {node.throttled:.0%} of the time"
    if node.busy is not None and node.busy >= BUSY:
        return f"node {node.name} is {node.busy:.0%} busy"
    return ""


def change_words(change: Change, node: NodeFact | None, since: str = "") -> Found:
    """A change of speed as a finding; `since` when, if that is not so many steps ago."""
    slower = change.factor > 1
    ratio = change.factor if slower else 1 / change.factor
    why = (cause(node) or _own_cause(change)) if slower else ""
    if change.samples:
        words = f"{change.worker} takes {change.factor:.2f}x as long for {change.samples} samples as others let expect"
    else:
        when = since or f"{change.steps} steps ago"
        words = f"{change.worker} became {ratio:.2f}x {'slower' if slower else 'faster'} {when}"
    return Found(change.worker, Finding.SLOWER if slower else Finding.FASTER, words + (f": {why}" if why else ""))


def _own_cause(change: Change) -> str:
    """Why a worker became slower, from its own processor time: where nothing is known of its node."""
    if 0 < change.cores < STARVED:
        return f"it gets {change.cores:.0%} of the processor time that it had"
    if change.work > MORE_WORK:
        return f"a sample takes {change.work:.2f}x the processor time"
    return ""


def is_lost(track: Track | None, settings: Settings, now: float, newest: float | None) -> bool:
    """Whether a worker's metrics are lost: others have had news since, and it has had none for too long.

    `newest`: when anybody's newest usable record came. Nobody has news: then the job stands still, nothing is lost.
    """
    if newest is None:
        return False
    if track is None or track.news_at is None:
        return False  # its first step is still to come
    lost = newest - track.news_at >= settings.lost_seconds
    return lost or (track.bad >= TRUSTED and now - track.news_at >= settings.lost_seconds)


def lost_words(worker: str, track: Track, now: float) -> Found:
    """Lost metrics as a finding."""
    since = now - (track.news_at or now)
    what = f"{track.bad} records without a usable time" if track.bad else "no record of a step"
    words = f"{what} of {worker} for {since:.0f} s: its share stays as it is and does not grow"
    return Found(worker, Finding.LOST, words)


def noisy(worker: str, points: Sequence[Point], node: NodeFact | None) -> Found | None:
    """Transient noise: 95 of 100 steps take up to half as long again as the median, or more."""
    times = [p.busy / p.samples for p in points]
    if len(times) < 20:
        return None
    middle, high = quantile(times, 0.5), quantile(times, 0.95)
    if high <= NOISY * middle:
        return None
    why = cause(node)
    words = f"the steps of {worker} vary: one in twenty takes {high / middle:.1f}x the median"
    return Found(worker, Finding.NOISY, words + (f" ({why})" if why else ""))


def built_in(workers: Sequence[WorkerSeen], tracks: Mapping[str, Track]) -> list[Found]:
    """Workers that were slow when first measured and have not changed since: no fault, another machine."""
    first = {w.name: tracks[w.name].first_speed for w in workers if w.live and w.name in tracks}
    speeds = [s for s in first.values() if s > 0]
    if len(speeds) < 2:
        return []
    middle = quantile(speeds, 0.5)
    return [
        Found(name, Finding.BUILT_IN, f"{name} has {speed / middle:.0%} of the median speed, and had from the start")
        for name, speed in first.items()
        if 0 < speed < BUILT_IN * middle and tracks[name].changes == 0
    ]


def slowed(worker: WorkerSeen, track: Track) -> Found | None:
    """A worker that has become slower than it was at first, if its node tells why: often seconds after the change."""
    why = cause(worker.node)
    if not why or not track.changes or track.model is None or not track.first_speed:
        return None
    now = track.points[-1].samples / track.model.seconds(track.points[-1].samples)
    if track.first_speed < SLOWED * now:
        return None
    words = f"{worker.name} is {track.first_speed / now:.1f}x slower than at first: {why}"
    return Found(worker.name, Finding.SLOWER, words)


def straggler(worker: WorkerSeen, track: Track, seconds: float, others: float) -> Found:
    """A worker that finishes last although nothing more can be taken from it."""
    why = cause(worker.node)
    if not why:
        why = f"it became {track.last_factor:.1f}x slower" if track.last_factor > 1 and track.changes else "it is slow"
    words = (
        f"{worker.name} takes {seconds:.3g} s with its smallest share of {worker.bounds.minimum}, "
        f"the others {others:.3g} s: {why}"
    )
    return Found(worker.name, Finding.STRAGGLER, words)


def steady(observation: Observation, tracks: Mapping[str, Track]) -> list[Found]:
    """Findings that need no plan: noise, slowness that its node explains, and built-in slowness."""
    live = [w for w in observation.workers if w.live]
    found = [noisy(w.name, tracks[w.name].points, w.node) for w in live if w.name in tracks]
    found += [slowed(w, tracks[w.name]) for w in live if w.name in tracks]
    return [f for f in found if f is not None] + built_in(live, tracks)
