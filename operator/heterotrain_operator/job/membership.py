"""How many workers each group of a job has, and how an edit of ``replicas`` comes into force. Pure.

While a job trains its coordinator decides who is in it: it is asked for the wanted number, and pods follow what it
says. So a worker that is taken out is drained before its pod goes, and one that is added is expected before it comes.
"""

from __future__ import annotations

from collections.abc import Iterator

from heterotrain_api.contract import Role
from heterotrain_operator.job.decision import DeletePod, ScaleGroup
from heterotrain_operator.job.observed import PodSeen
from heterotrain_operator.job.slots import Slot, is_gone, strays, trainer_end
from heterotrain_operator.job.view import View
from heterotrain_rpc import control_pb2


def scalings(view: View) -> tuple[ScaleGroup, ...]:
    """What the coordinator must be asked for: the wanted number of each group that has another.

    An edit that it refused is not asked for again: the next edit, or a new term, is another request.
    """
    state = view.state
    if view.job is None or view.faults or state is None or not view.connected or not view.trains:
        return ()
    answered = {answer.id for answer in view.status.requests} | {a.request_id for a in view.observed.answers}
    told = {group.name: group.replicas for group in state.groups}
    wanted = (
        ScaleGroup(f"scale-{group.name}-{group.replicas}-g{view.generation}-t{state.term}", group.name, group.replicas)
        for group in view.job.spec.workers
        if told.get(group.name, group.replicas) != group.replicas
    )
    return tuple(request for request in wanted if request.request_id not in answered)


def is_newcomer(view: View, slot: Slot) -> bool:
    """Whether the coordinator of a training job expects a worker that has no pod yet: none was lost."""
    if slot.role is not Role.WORKER or not view.began:
        return False
    worker = view.worker_state(slot.name)
    if not view.connected or worker is None:
        return False
    return view.trains and worker.phase == control_pb2.WORKER_PHASE_ABSENT


def outdated_coordinator(view: View) -> PodSeen | None:
    """The pod of ps-0 whose coordinator waits for other workers than the manifest has now: it has not begun, and
    nothing is lost by making it anew. `None`: it waits for the right ones, or has begun.
    """
    pod, job = view.coordinator_pod, view.job
    if pod is None or job is None or view.began or pod.deleting:
        return None
    wanted = {group.name: group.replicas for group in job.spec.workers}
    if {name: count for name, count in view.replicas.items() if name in wanted} == wanted:
        return None
    state = view.state
    complete = state is not None and not any(w.phase == control_pb2.WORKER_PHASE_ABSENT for w in state.workers)
    return None if complete else pod  # all are there: it begins at any moment, and is scaled then


def left_over(view: View) -> Iterator[DeletePod]:
    """Pods that no place is for, once they have nothing more to do."""
    for pod in strays(view.pods, view.observed.pods):
        if not pod.deleting and (not view.began or _has_left(view, pod)):
            yield DeletePod(pod.name, pod.uid, "the job has no place for it")


def _has_left(view: View, pod: PodSeen) -> bool:
    if pod.phase in ("Pending", "Succeeded", "Failed") or trainer_end(pod) is not None or is_gone(pod):
        return True
    worker = view.worker_state(pod.name_in_job)
    return view.connected and worker is not None and worker.phase == control_pb2.WORKER_PHASE_LOST
