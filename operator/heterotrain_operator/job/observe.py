"""The first third of a pass: read the job and its children, once, into one frozen value."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Protocol

from heterotrain_operator.errors import ApiError
from heterotrain_operator.job.memory import JobKey, Memory
from heterotrain_operator.job.names import pod_selector, secret_name, service_name
from heterotrain_operator.job.observed import Observed, PodSeen, TrainingSeen, Unreachable
from heterotrain_operator.job.secret import certified
from heterotrain_operator.job.seen import NotAPodOfAJobError, is_ours, newest_warning, pod_seen
from heterotrain_operator.job.slots import is_stuck
from heterotrain_operator.kube import Json, Kube
from heterotrain_operator.watch_ledger import Version, version_of

logger = logging.getLogger(__name__)

MOST_LOOKED_UP: Final = 4
"""Pods of one job whose events are read in one pass."""


class Coordinators(Protocol):
    """What is known of jobs' coordinators without asking them now; by the job's UID."""

    def seen(self, job_uid: str) -> TrainingSeen | None:
        """What the coordinator said last."""

    def unreachable(self, job_uid: str) -> Unreachable | None:
        """That it does not answer; `None`: it does, or was not tried yet."""


async def observe(
    kube: Kube,
    key: JobKey,
    remember: Callable[[str], Memory],
    coordinators: Coordinators,
    saw_pods: Callable[[str, Sequence[Version]], None],
    *,
    now: datetime,
) -> Observed | None:
    """See the job as it is now; `None`: there is none.

    `remember` and `coordinators` are asked with the job's UID; `saw_pods` is told which pods of it there are. Children
    are read from the API each time, in parallel; the Secret without its content. Raises as `Kube` does.
    """
    job = await kube.get_job(*key)
    if job is None:
        return None
    uid = job["metadata"]["uid"]
    memory = remember(uid)
    service, secret = service_name(key.name, uid), secret_name(key.name, uid)
    pods, found, secret_meta = await asyncio.gather(
        kube.list_pods(key.namespace, pod_selector(uid)),
        kube.get_service(key.namespace, service),
        kube.get_secret_metadata(key.namespace, secret),
    )
    pods = [pod for pod in pods if is_ours(pod["metadata"], uid)]  # a label alone makes no pod ours
    saw_pods(uid, [version_of(pod["metadata"]) for pod in pods])
    strangers = [
        name
        for name, meta in ((f"service/{service}", found), (f"secret/{secret}", secret_meta))
        if meta is not None and not is_ours(meta["metadata"], uid)
    ]
    return Observed(
        job=job,
        pods=await _with_warnings(kube, key.namespace, _pods(pods), now),
        service=found if _present(found, uid) else None,
        secret_present=_present(secret_meta, uid),
        foreign=tuple(dict.fromkeys([*strangers, *memory.foreign])),
        training=coordinators.seen(uid),
        refusals=memory.refusals or None,
        answers=memory.answers,
        made=dict(memory.made),
        adaptation=memory.loop.decision if memory.loop is not None else None,
        replacing=dict(memory.loop.replacing) if memory.loop is not None else {},
        decisions=memory.loop.told if memory.loop is not None else (),
        unreachable=coordinators.unreachable(uid),
        certified=None if secret_meta is None else certified(secret_meta["metadata"]),
        first_look=not memory.looked,
    )


async def _with_warnings(kube: Kube, namespace: str, pods: tuple[PodSeen, ...], now: datetime) -> tuple[PodSeen, ...]:
    """With what nodes complain of: read for a few of the pods that are stuck, as one cause mostly holds for all."""
    stuck = [pod for pod in pods if is_stuck(pod, now)][:MOST_LOOKED_UP]
    found = await asyncio.gather(*(_complaint(kube, namespace, pod) for pod in stuck))
    warnings = {pod.uid: words for pod, words in zip(stuck, found, strict=True)}
    return tuple(replace(pod, warning=warnings.get(pod.uid, "")) for pod in pods)


async def _complaint(kube: Kube, namespace: str, pod: PodSeen) -> str:
    try:
        return newest_warning(await kube.list_pod_events(namespace, pod.uid))
    except ApiError as error:
        if not error.is_refusal:
            raise
        # A role of an older release: what only explains must not hold up what is to be done.
        logger.warning("Events of pod %s/%s cannot be read: %s", namespace, pod.name, error)
        return ""


def _present(found: Mapping[str, Any] | None, uid: str) -> bool:
    return found is not None and is_ours(found["metadata"], uid)


def _pods(pods: Iterable[Json]) -> tuple[PodSeen, ...]:
    """Sorted by name, without those that cannot be read."""
    found = []
    for pod in pods:
        try:
            found.append(pod_seen(pod))
        except NotAPodOfAJobError as error:
            logger.warning("Ignored pod %s/%s: %s", pod["metadata"]["namespace"], pod["metadata"]["name"], error)
    return tuple(sorted(found, key=lambda pod: pod.name))
