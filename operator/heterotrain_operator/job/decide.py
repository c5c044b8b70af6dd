"""What one pass does about a job: `decide` is a ladder, read from the top; the first rung that holds decides. Pure.

Called by the reconcile pass with what it has just observed; what comes out is carried out as it is. It may be called
again with the same observation at any time: names are derived, requests have ids, events come with a status write.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from heterotrain_api.conditions import Reason
from heterotrain_operator.job.children import Children, children
from heterotrain_operator.job.conditions import unreachable_from
from heterotrain_operator.job.decision import Decision
from heterotrain_operator.job.diagnosis import conflicts, look_again_at, namespace_is_ending, readiness
from heterotrain_operator.job.ending import after_the_end
from heterotrain_operator.job.events import active_events, final_events
from heterotrain_operator.job.judge import End, Verdict, Wait, judge
from heterotrain_operator.job.losses import away_until
from heterotrain_operator.job.membership import scalings
from heterotrain_operator.job.observed import Observed
from heterotrain_operator.job.recovery import has_news
from heterotrain_operator.job.replacing import removals
from heterotrain_operator.job.requests import Desk, accepted, closed, desk
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.status import active_status, due_at, final_status, is_changed, is_due
from heterotrain_operator.job.view import View, read

CHECK_SECONDS: Final = 5.0
"""After pods were made: were they taken? Their events usually come sooner."""
RETRY_SECONDS: Final = 30.0
"""After the API server refused a child: nothing tells when a quota has room again."""


def decide(observed: Observed, settings: JobSettings, now: datetime) -> Decision:
    """Return what to do; never raises for anything that the API server may hold."""
    view = read(observed, settings, now)
    if view.deleting:
        return Decision(why="the job is being deleted: garbage collection takes its children")
    if view.finished:
        return after_the_end(view)
    if namespace_is_ending(view):
        return Decision(why="the namespace is being deleted")
    found = desk(view)
    verdict = judge(view)
    if verdict is None and found.stop is not None and not view.began and not view.connected:
        # Nobody is there yet who could save anything.
        verdict = End(succeeded=False, reason=Reason.STOPPED.value, message="stopped before training began", at=now)
        found = accepted(found, view, found.stop, "stopped before training began")
    if isinstance(verdict, End):
        return _over(view, found, verdict)
    return _going_on(view, found, verdict)


def _over(view: View, found: Desk, end: End) -> Decision:
    """The job has just ended: say how, and come back for pods that do not end."""
    ready = readiness(view)
    status = final_status(view, ready, end, closed(found, view, end).answers)
    return Decision(
        status=status.to_document(),
        events=final_events(view, status, end),
        wake_at=view.now + timedelta(seconds=view.settings.leftover_seconds),
        why=f"the job is over: {end.reason}",
    )


def _going_on(view: View, found: Desk, verdict: Verdict) -> Decision:
    """The job is not over: make what is missing, ask what is open, say how it stands."""
    blocked = bool(view.faults) or bool(conflicts(view))
    # While the end of the job is being looked into, nothing is made that it would only have to take down again.
    made = Children() if blocked or isinstance(verdict, Wait) else children(view)
    ready = readiness(view)
    status = active_status(view, ready, found.answers, hold=isinstance(verdict, Wait))
    events = active_events(view, status, made.replaced)
    write = is_due(view, status) or bool(made.replaced and events)
    return Decision(
        secret=made.secret,
        service=made.service,
        make=made.make,
        delete=(*made.delete, *(() if blocked or isinstance(verdict, Wait) else removals(view))),
        requests=(*found.send, *scalings(view)) if view.connected else (),
        status=status.to_document() if write else None,
        events=events if write else (),
        wake_at=view.now
        if has_news(view, status)
        else _wake_at(view, made, verdict, unwritten=not write and is_changed(view, status)),
        looked=not isinstance(verdict, Wait),
        why=_why(view, made, verdict),
    )


def _wake_at(view: View, made: Children, verdict: Verdict, *, unwritten: bool) -> datetime | None:
    """The earliest moment at which a pass would decide otherwise without anything having happened."""
    late = unreachable_from(view)
    candidates = [
        made.retry_at,
        verdict.until if isinstance(verdict, Wait) else None,
        late if late is not None and late > view.now else None,
        due_at(view) if unwritten else None,
        look_again_at(view),
        *(at for slot in view.pods if (at := away_until(view, slot)) is not None and at > view.now),
    ]
    if made.make:
        refused = bool(view.observed.refusals)
        candidates.append(view.now + timedelta(seconds=RETRY_SECONDS if refused else CHECK_SECONDS))
    return _earliest(candidates)


def _earliest(candidates: Iterable[datetime | None]) -> datetime | None:
    return min((at for at in candidates if at is not None), default=None)


def _why(view: View, made: Children, verdict: Verdict) -> str:
    if isinstance(verdict, Wait):
        why = verdict.why
    elif view.faults:
        why = f"the spec is not valid: {view.faults[0]}"
    elif conflicts(view):
        why = f"a name belongs to somebody else: {conflicts(view)[0]}"
    elif made.make:
        why = f"{_pods(len(made.make))} missing"
    elif made.delete:
        why = f"{_pods(len(made.delete))} too many"
    else:
        why = "training" if view.began else "waiting for the start"
    return why


def _pods(count: int) -> str:
    return "1 pod is" if count == 1 else f"{count} pods are"
