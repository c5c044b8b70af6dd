"""Which children are missing, which are too many. Pure. Only for jobs that are not over and whose spec has no faults.

Names are derived from the job, so that a pass that is repeated (a lost answer, a restarted operator) asks for the same
names again and makes nothing twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from heterotrain_api.contract import Role
from heterotrain_operator.job import manifests
from heterotrain_operator.job.certificates import certificate_names
from heterotrain_operator.job.decision import ApplyService, DeletePod, MakeCertificate, MakePod, MakeSecret
from heterotrain_operator.job.drift import stands
from heterotrain_operator.job.failures import fills, outlived_peer
from heterotrain_operator.job.losses import is_awaited, may_have_trained
from heterotrain_operator.job.membership import is_newcomer, left_over, outdated_coordinator
from heterotrain_operator.job.names import secret_name, slot_pod_name
from heterotrain_operator.job.placement import Wish
from heterotrain_operator.job.slots import Slot, is_gone
from heterotrain_operator.job.view import View

FIRST_RETRY_SECONDS: Final = 20.0
LONGEST_RETRY_SECONDS: Final = 300.0
"""Between pods of one slot that a node refuses or evicts one after the other; the first is made again at once."""
QUICK_PODS: Final = 4
"""Pods of one slot that are made one after the other without a pause, when somebody deletes them."""
_LIVING: Final = frozenset({"Pending", "Running"})
FAILED_KEPT: Final = 6
"""Failed pods of one slot that stay to be looked at: with so many the wait has come to its longest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """What to make and delete."""

    secret: MakeSecret | None = None
    service: ApplyService | None = None
    make: tuple[MakePod, ...] = ()
    delete: tuple[DeletePod, ...] = ()
    replaced: tuple[str, ...] = ()
    """Names in the job of those in `make` whose pod is gone."""
    retry_at: datetime | None = None
    """When pods that wait after repeated evictions are made."""


def children(view: View) -> Children:
    """What is missing or too many."""
    empty = [slot for slot, pods in view.pods.items() if fills(view, pods) is None]
    surplus = _surplus(view)
    service = _service(view)
    if not view.observed.secret_present and view.began:
        return Children(service=service, delete=surplus)  # new certificates would not be trusted by those that train
    secret = None if view.observed.secret_present else _secret(view)
    if secret is not None and len(empty) < len(view.pods):
        # The pods that are there trust an authority that is lost: all start again, with certificates of a new one.
        return Children(secret=secret, service=service, delete=_all(view))
    if view.began or may_have_trained(view):
        # What was lost is written down first; then its place is filled.
        empty = [slot for slot in empty if is_awaited(view, slot) or is_newcomer(view, slot)]
    due = {slot: due_at(view, slot) for slot in empty}
    now = [slot for slot, at in due.items() if at <= view.now]
    again = () if view.began else [slot for slot in now if not is_awaited(view, slot)]
    later = [at for at in due.values() if at > view.now]
    return Children(
        secret=secret,
        service=service,
        make=tuple(_make(view, slot) for slot in now),
        delete=surplus,
        replaced=tuple(slot.name for slot in again if view.pods[slot] or view.status.attempt > 0),
        retry_at=min(later, default=None),
    )


def next_attempt(view: View, slot: Slot) -> int:
    """One more than the highest that is known, past names that belong to strangers."""
    restart = view.restart_of(slot)
    if restart is not None and is_awaited(view, slot):
        attempt = restart.attempt
    else:
        known = 0 if restart is None else restart.attempt
        attempt = 1 + max([view.status.attempt, known, *(pod.attempt for pod in view.pods[slot])])
    taken = {name.partition("/")[2] for name in view.observed.foreign if name.lower().startswith("pod/")}
    while slot_pod_name(view.name, slot, attempt) in taken:
        attempt += 1
    return attempt


def highest_attempt(view: View) -> int:
    """What the status remembers: raised only when all pods exist together.

    Until then the same names are asked for again, so that a pod whose creation was not seen is not made twice.
    """
    if not view.pods or any(fills(view, pods) is None for pods in view.pods.values()):
        return view.status.attempt
    return max([view.status.attempt, *(pod.attempt for pods in view.pods.values() for pod in pods)])


def _make(view: View, slot: Slot) -> MakePod:
    assert view.job is not None  # noqa: S101  # callers look at `faults` first
    place = view.observed.replacing.get(slot.name)
    capabilities = view.observed.capabilities if slot.role is Role.WORKER else {}
    wish = Wish(avoid="" if place is None else place.node, capabilities=capabilities)
    context = view.context
    shared, own = secret_name(view.name, view.uid), context.secret(slot)
    certificate = None if own == shared else MakeCertificate(own, slot.name, shared)
    manifest = manifests.pod(context, view.job, slot, next_attempt(view, slot), wish=wish)
    return MakePod(slot.name, manifest, certificate)


def _service(view: View) -> ApplyService | None:
    """The Service if it is missing, or not what we said any more: pods find each other by it alone."""
    wanted = manifests.service(view.context)
    stored = view.observed.service
    return None if stored is not None and stands(wanted, stored) else ApplyService(wanted)


def _secret(view: View) -> MakeSecret:
    names = certificate_names(view.context.spec, view.replicas)
    return MakeSecret(secret_name(view.name, view.uid), names, view.replicas)


def due_at(view: View, slot: Slot) -> datetime:
    """When a slot gets its next pod: now, or after pods that failed, or that somebody deletes again and again, with
    growing patience.
    """
    failed = [pod.created_at for pod in view.pods[slot] if not pod.deleting]
    made = view.observed.made.get(slot.name, ())
    due = [view.now]
    if len(failed) >= 2:
        due.append(max(failed) + _patience(len(failed) - 2))
    if len(made) >= QUICK_PODS:
        due.append(max(made) + _patience(len(made) - QUICK_PODS))
    return max(due)


def _patience(times: int) -> timedelta:
    return timedelta(seconds=min(FIRST_RETRY_SECONDS * 2.0 ** min(times, 10), LONGEST_RETRY_SECONDS))


def _surplus(view: View) -> tuple[DeletePod, ...]:
    """Pods beside the one that fills their slot, the oldest of many that failed, and pods that no slot is for."""
    extra = []
    for pods in view.pods.values():
        # A container of it has ended, others run on: the whole pod is replaced.
        left = [pod for pod in pods if pod.replaced and not pod.deleting and pod.phase in _LIVING]
        extra += [(pod, "a later attempt does its work") for pod in left]
        living = [pod for pod in pods if not is_gone(pod) and not outlived_peer(view, pod)]
        extra += [(pod, f"{living[0].name} does its work") for pod in living[1:]]
        failed = [pod for pod in pods if is_gone(pod) and not pod.deleting and pod not in left]
        extra += [(pod, "newer ones failed too") for pod in failed[:-FAILED_KEPT]]
    outdated = outdated_coordinator(view)
    extra += [(outdated, "it waits for other workers than the manifest has now")] if outdated is not None else []
    return (*(DeletePod(pod.name, pod.uid, why) for pod, why in extra), *left_over(view))


def _all(view: View) -> tuple[DeletePod, ...]:
    why = "the Secret with its certificates is gone"
    return tuple(DeletePod(pod.name, pod.uid, why) for pod in view.observed.pods if not pod.deleting)
