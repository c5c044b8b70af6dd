"""Why pods do not run: from the API server's refusals, the scheduler and the kubelets, in their own words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from heterotrain_api.conditions import Reason
from heterotrain_api.status import format_time
from heterotrain_operator.job.children import due_at
from heterotrain_operator.job.failures import fills
from heterotrain_operator.job.losses import is_awaited
from heterotrain_operator.job.observed import PodSeen
from heterotrain_operator.job.slots import STUCK_AFTER, Slot, is_done, stuck_from
from heterotrain_operator.job.view import View

WAITING: Final[Mapping[str, Reason]] = {
    "ErrImagePull": Reason.IMAGE_PULL_FAILED,
    "ImagePullBackOff": Reason.IMAGE_PULL_FAILED,
    "InvalidImageName": Reason.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": Reason.IMAGE_PULL_FAILED,
    "ImageInspectError": Reason.IMAGE_PULL_FAILED,
    "RegistryUnavailable": Reason.IMAGE_PULL_FAILED,
    "SignatureValidationFailed": Reason.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": Reason.CONTAINER_CONFIG_FAILED,
    "CreateContainerError": Reason.CONTAINER_CONFIG_FAILED,
    "RunContainerError": Reason.CONTAINER_CONFIG_FAILED,
    "PreCreateHookError": Reason.CONTAINER_CONFIG_FAILED,
    "PreStartHookError": Reason.CONTAINER_CONFIG_FAILED,
    "PostStartHookError": Reason.CONTAINER_CONFIG_FAILED,
}
"""Reasons of waiting containers that do not pass by themselves. CrashLoopBackOff cannot be: nothing is restarted."""

_URGENCY: Final = (
    Reason.IMAGE_PULL_FAILED,
    Reason.CONTAINER_CONFIG_FAILED,
    Reason.VOLUME_PENDING,
    Reason.UNSCHEDULABLE,
    Reason.POD_DELETED,
    Reason.PODS_PENDING,
)
"""What is said when pods differ: first what will not pass by itself."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that keeps a pod from running."""

    reason: Reason
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """How the job's pods stand."""

    ready: bool
    reason: Reason
    message: str
    by_slot: Mapping[Slot, Trouble]
    """What is wrong with each pod that is not ready."""
    count: int


def readiness(view: View) -> Readiness:
    """Whether all pods run and answer (or have done their work), else what is in the way."""
    troubles: dict[Slot, Trouble] = {}
    for slot, pods in view.pods.items():
        trouble = _trouble(view, slot, pods)
        if trouble is not None:
            troubles[slot] = trouble
    total, count = len(view.pods), len(view.pods) - len(troubles)
    if not troubles and total:
        return Readiness(
            ready=True, reason=Reason.ALL_PODS_READY, message=f"all {total} pods are ready", by_slot={}, count=count
        )
    first = min(troubles.values(), key=lambda t: _URGENCY.index(t.reason), default=None)
    if first is None:
        return Readiness(ready=False, reason=Reason.PODS_PENDING, message="", by_slot={}, count=0)
    alike = sum(trouble.reason is first.reason for trouble in troubles.values()) - 1
    others = f"; {alike} more pod{'s' if alike > 1 else ''} likewise" if alike else ""
    # What cannot be cut must come first: the words of a kubelet may be long.
    message = f"{count} of {total} pods are ready; {first.text}"
    message = message[: 900 - len(others)] + others
    return Readiness(ready=False, reason=first.reason, message=message, by_slot=troubles, count=count)


def look_again_at(view: View) -> datetime | None:
    """When to look what nodes say of pods that they have not started; `None`: there are none."""
    starting = [since for pod in view.observed.pods if (since := stuck_from(pod)) is not None]
    return min((since if since > view.now else view.now + STUCK_AFTER for since in starting), default=None)


def refusal(view: View) -> Trouble | None:
    """Why the API server did not take a child, in its own words; `None`: it took all."""
    refusals = view.observed.refusals or {}
    for name, text in sorted(refusals.items(), key=lambda item: (_refusal_reason(item[1]), item[0])):
        more = len(refusals) - 1
        others = f"; {more} more likewise" if more else ""
        return Trouble(_refusal_reason(text), f"{name} could not be created: {text[:800]}{others}")
    return None


def namespace_is_ending(view: View) -> bool:
    """Whether the API server takes nothing because the namespace is being deleted."""
    return any("being terminated" in text for text in (view.observed.refusals or {}).values())


def conflicts(view: View) -> tuple[str, ...]:
    """Names that the job cannot do without and that belong to somebody else. (A pod can take another name.)"""
    return tuple(name for name in view.observed.foreign if not name.lower().startswith("pod/"))


def _refusal_reason(text: str) -> Reason:
    quota = "exceeded quota" in text or "failed quota" in text
    return Reason.QUOTA_EXCEEDED if quota else Reason.CREATE_REFUSED


def _trouble(view: View, slot: Slot, pods: tuple[PodSeen, ...]) -> Trouble | None:
    pod = fills(view, pods)
    if pod is None:
        return _absence(view, slot, pods[-1] if pods else None)
    if pod.ready or is_done(pod):
        return None
    if pod.unschedulable:
        volume = "persistentvolumeclaim" in pod.unschedulable.lower()
        reason = Reason.VOLUME_PENDING if volume else Reason.UNSCHEDULABLE
        return Trouble(reason, f"pod {pod.name}: {pod.unschedulable}")
    return next(_waiting(pod), None) or _stuck(pod) or Trouble(Reason.PODS_PENDING, f"pod {pod.name}: {_stage(pod)}")


def _absence(view: View, slot: Slot, last: PodSeen | None) -> Trouble | None:
    """What a slot without a pod means; `last`: what is left of the one before."""
    if view.began and view.has_finished(slot):
        return None
    again = _when_again(view, slot) if not view.began or is_awaited(view, slot) else ""
    if last is not None:
        what = f"was taken away ({last.disrupted})" if last.disrupted else "is being deleted"
        return Trouble(Reason.POD_DELETED, f"pod {last.name} {what}{again}")
    if view.began:
        return Trouble(Reason.POD_DELETED, f"the pod of {slot.name} is gone{again}")
    if again:
        return Trouble(Reason.POD_DELETED, f"the pod of {slot.name} was deleted again and again{again}")
    return Trouble(Reason.PODS_PENDING, f"the pod of {slot.name} does not exist yet")


def _when_again(view: View, slot: Slot) -> str:
    """When the next pod is made, if that is not at once."""
    at = due_at(view, slot)
    return f"; the next is made at {format_time(at)}" if at > view.now else ""


def _waiting(pod: PodSeen) -> Iterator[Trouble]:
    for seen in pod.containers:
        reason = WAITING.get(seen.waiting_reason)
        if reason is not None:
            detail = f": {seen.waiting_message}" if seen.waiting_message else ""
            yield Trouble(reason, f"pod {pod.name}, container {seen.name}: {seen.waiting_reason}{detail}")


def _stuck(pod: PodSeen) -> Trouble | None:
    """What the pod's node complained of."""
    if not pod.warning:
        return None
    missing = any(f'{kind} "' in pod.warning for kind in ("configmap", "secret"))
    volume = pod.warning.startswith(("FailedMount", "FailedAttachVolume")) and not missing
    reason = Reason.VOLUME_PENDING if volume else Reason.CONTAINER_CONFIG_FAILED
    return Trouble(reason, f"pod {pod.name} on node {pod.node}: {pod.warning}")


def _stage(pod: PodSeen) -> str:
    if not pod.node:
        return "not scheduled yet"
    running = [seen.name for seen in pod.containers if seen.state == "running"]
    if pod.phase == "Pending":
        return f"being started on node {pod.node} (its images pulled, its volumes mounted)"
    return f"runs on node {pod.node} ({', '.join(running)}), not ready yet" if running else f"phase {pod.phase}"
