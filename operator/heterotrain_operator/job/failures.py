"""Which failed container of a job is the one to name. Pure.

When one process fails others fail because of it. The user must read the first cause: pod, exit code, last error line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Final

from heterotrain_api.conditions import Reason, one_line
from heterotrain_api.contract import Container, ExitCode, Role
from heterotrain_api.status import Failure
from heterotrain_operator.job.last_words import last_words, remedy
from heterotrain_operator.job.observed import ContainerEnd, PodSeen
from heterotrain_operator.job.outcome import OOM_KILLED
from heterotrain_operator.job.slots import Slot, container, is_gone, trainer_end
from heterotrain_operator.job.view import View

CONSEQUENCES: Final = frozenset({ExitCode.PEER_LOST, ExitCode.STOPPED})
"""Exit codes of trainers that are well: a peer is gone, or they were told to end."""


class Rank(IntEnum):
    """Whose word counts first; within a rank the earliest."""

    OWN = 0
    """It failed by itself, or was killed for its memory, or its pod was taken away."""
    CONSEQUENCE = 1
    """It ended because others did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A failure, and when."""

    rank: Rank
    failure: Failure
    at: datetime | None
    """`None`: not known."""

    @property
    def order(self) -> tuple[int, bool, float, str]:
        """Sorts the cause to be named first."""
        return self.rank, self.at is None, self.at.timestamp() if self.at else 0.0, self.failure.pod


def causes(view: View, *, gone: bool, mended: Collection[Slot] = ()) -> list[Cause]:
    """All failures that can be seen, the one to be named first. `gone`: whether pods that were taken away count.

    Of a slot that was filled again only the pod that fills it counts; of one that is being filled (`mended`) none.
    """
    found = []
    for slot, pods in view.pods.items():
        if slot in mended:
            continue
        pod = fills(view, pods)
        if pod is not None:
            found.append(_own_cause(view, slot, pod))
        elif gone and pods:
            found.append(_gone_cause(slot, pods[-1]))
    return sorted((cause for cause in found if cause is not None), key=lambda cause: cause.order)


def fills(view: View, pods: Sequence[PodSeen]) -> PodSeen | None:
    """The pod of a slot that counts: of those not gone (nor ended with a peer that was replaced) the first made."""
    return next((pod for pod in pods if not is_gone(pod) and not outlived_peer(view, pod)), None)


def outlived_peer(view: View, pod: PodSeen) -> bool:
    """Whether a trainer ended only because the coordinator's pod was replaced before training began.

    It is then as good as gone: a new one will find the new coordinator. Shards that a coordinator sends home end well.
    """
    end = trainer_end(pod)
    sent_home = end is not None and pod.role is Role.PS and end.exit_code == ExitCode.SUCCEEDED
    if end is None or not (sent_home or end.exit_code in CONSEQUENCES):
        return False
    coordinator = view.coordinator_pod
    if coordinator is None:
        return not view.began
    return coordinator.attempt > 1 and coordinator.created_at > pod.created_at


def who(slot: Slot) -> str:
    """``worker cpu-0``, ``parameter server ps-1``."""
    return f"{'worker' if slot.role is Role.WORKER else 'parameter server'} {slot.name}"


def gone_failure(slot: Slot, pod: PodSeen | None, *, name: str = "") -> Failure:
    """The failure of a job whose pod was taken away; `pod`: `None` if nothing of it is left but perhaps its `name`."""
    pod_name = name if pod is None else pod.name
    in_pod = f" (pod {pod_name})" if pod_name else ""
    if pod is not None and pod.disrupted:
        detail = f": {pod.message}" if pod.message else ""
        node = f" from node {pod.node}" if pod.node else ""
        message = f"{who(slot)}{in_pod} was taken{node} ({pod.disrupted}){detail}"
        return Failure(pod=pod_name, reason=Reason.EVICTED.value, message=one_line(message))
    message = f"{who(slot)}{in_pod} was deleted while the job ran"
    return Failure(pod=pod_name, reason=Reason.POD_DELETED.value, message=message)


def _gone_cause(slot: Slot, pod: PodSeen) -> Cause | None:
    """Only once its process has ended: until then it may still come to a good end."""
    ends = [seen.end for seen in pod.containers if seen.end is not None]
    end = trainer_end(pod) or next(iter(ends), None)
    if end is None and not pod.disrupted:
        return None
    failure = gone_failure(slot, pod)
    if end is not None:
        failure = failure.model_copy(update={"container": Container.TRAINER, "exit_code": end.exit_code})
    return Cause(rank=Rank.OWN, failure=failure, at=None if end is None else end.finished_at)


def _own_cause(view: View, slot: Slot, pod: PodSeen) -> Cause | None:
    for name, end in _failed_ends(pod):
        rank = Rank.CONSEQUENCE if end.exit_code in CONSEQUENCES and end.reason != OOM_KILLED else Rank.OWN
        return Cause(rank=rank, failure=failure_of(view, slot, pod, name, end), at=end.finished_at)
    return None


def _failed_ends(pod: PodSeen) -> Iterator[tuple[str, ContainerEnd]]:
    """The trainer's end, if bad; of a pod that failed before its trainer ran, what else ended badly (init containers).

    Containers of the user's that run beside the trainer do not decide about the job.
    """
    end = trainer_end(pod)
    if end is not None:
        if end.exit_code != ExitCode.SUCCEEDED:
            yield Container.TRAINER, end
    elif pod.phase == "Failed":
        for seen in pod.containers:
            if seen.name == Container.COORDINATOR or seen.end is None:
                continue
            if seen.end.exit_code != ExitCode.SUCCEEDED:
                yield seen.name, seen.end


def failure_of(view: View, slot: Slot, pod: PodSeen, name: str, end: ContainerEnd) -> Failure:
    """What the end of a container says of its job."""
    words = last_words(end.message) or one_line(pod.message)
    place = f"pod {pod.name}" + (f", container {name}" if name != Container.TRAINER else "")
    text = f"{who(slot)} ({place}) "
    if end.reason == OOM_KILLED:
        reason = Reason.OUT_OF_MEMORY
        text += f"ran out of memory (OOMKilled){_memory_words(view, slot, pod, name)}"
    else:
        reason = Reason.WORKER_FAILED if slot.role is Role.WORKER else Reason.SHARD_FAILED
        text += f"exited with code {end.exit_code}"
        if end.reason and end.reason not in ("Error", "Completed"):
            text += f" ({end.reason})"
        text += f": {words}" if words else ""
        advice = remedy(words, slot.group)
        text += f"; {advice}" if advice else ""
    return Failure(pod=pod.name, container=name, exit_code=end.exit_code, reason=reason.value, message=one_line(text))


def _memory_words(view: View, slot: Slot, pod: PodSeen, name: str) -> str:
    """How much it had, what it did with it, and what to change."""
    seen = container(pod, name)
    row = next((row for row in view.status.workers if row.name == slot.name), None)
    share = f", with a share of {row.share} samples" if row is not None and row.share else ""
    if seen is None or not seen.memory_limit:
        return f"{share}: it has no limit, its node had no memory left; give it resources.requests.memory"
    less = f", or lower batch.max of group {slot.group}" if slot.role is Role.WORKER else ""
    return f" at its limit of {seen.memory_limit}{share}: raise resources.limits.memory{less}"
