"""Workers that the adaptation asks to replace: which can be, and what is done about it. Pure.

A worker is replaced by deleting its pod: it leaves as on any SIGTERM, and its place is filled as after any loss
(`heterotrain_operator.job.losses`), which counts against ``spec.runPolicy.backoffLimit``. So who cannot be started
again is not replaced.
"""

from __future__ import annotations

from datetime import datetime

from heterotrain_api.contract import Role
from heterotrain_operator.job.decision import DeletePod
from heterotrain_operator.job.failures import fills
from heterotrain_operator.job.losses import cannot_restart
from heterotrain_operator.job.observed import Observed
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.view import View, read


def irreplaceable(observed: Observed, settings: JobSettings, now: datetime) -> dict[str, str]:
    """Workers that must not be replaced, and why."""
    view = read(observed, settings, now)
    if view.job is None:
        return {}
    found = {slot.name: cannot_restart(view, slot) for slot in view.pods if slot.role is Role.WORKER}
    return {name: f"{name} cannot be replaced: {why}" for name, why in found.items() if why}


def removals(view: View) -> tuple[DeletePod, ...]:
    """Pods to delete, so that others take their places. A place that has another pod already is not touched."""
    found = []
    for slot, pods in view.pods.items():
        place = view.observed.replacing.get(slot.name)
        pod = fills(view, pods)
        if place is None or pod is None or pod.name != place.pod or pod.deleting or cannot_restart(view, slot):
            continue
        found.append(DeletePod(pod.name, pod.uid, f"{slot.name} holds the others up: it is made again elsewhere"))
    return tuple(found)
