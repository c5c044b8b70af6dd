"""The last third of a pass: turn a decision into API calls, in the order of its fields.

Every call may be repeated by a later pass without doing anything twice: names are fixed, a name that is taken (409)
counts as done only if just this job controls the object, deletions name the UID, the status is written on what was
read. Events come last, once the status stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from heterotrain_api.contract import Label
from heterotrain_api.names import MAX_ATTEMPT
from heterotrain_operator.errors import ApiError
from heterotrain_operator.job.decision import (
    ApplyPlan,
    ApplyService,
    Decision,
    MakeCertificate,
    MakePod,
    MakeSecret,
    ScaleGroup,
    SendCommand,
)
from heterotrain_operator.job.event_log import EventLog, Said
from heterotrain_operator.job.manifests import with_attempt
from heterotrain_operator.job.observed import Observed
from heterotrain_operator.job.pruned import pruned_fields
from heterotrain_operator.job.secret import make_certificate, make_secret
from heterotrain_operator.job.seen import is_ours
from heterotrain_operator.kube import Kube

logger = logging.getLogger(__name__)

STRANGERS: Final = 5
"""Names of one pod that may be taken by others before it is given up for this pass."""

Request = ApplyPlan | SendCommand | ScaleGroup


@dataclass(slots=True)
class Outcome:
    """What the API server made of it, for the next pass."""

    refusals: dict[str, str] = field(default_factory=dict)
    """Its own words, by name in the job; ``secret`` and ``service`` for those two."""
    passing: set[str] = field(default_factory=set)
    """Those of `refusals` that may be another answer the next time: the API server, or a webhook, was in trouble."""
    foreign: list[str] = field(default_factory=list)
    """What we need and others have, as ``kind/name``."""
    made: list[str] = field(default_factory=list)
    """Names in the job of the pods that were made."""
    error: Exception | None = None
    """A failure that is worth a retry although the rest of the pass was carried out."""

    def refused(self, name: str, error: ApiError) -> None:
        """Keep what the API server said, so that the status can; a server error may pass by itself."""
        self.refusals[name] = error.message
        if not error.is_refusal:
            self.passing.add(name)
            self.error = error


@dataclass(frozen=True, slots=True)
class Tools:
    """What a decision is carried out with."""

    kube: Kube
    events: EventLog
    send: Callable[[Request], None]
    """To the coordinator; returns at once, the answer comes by itself."""
    concurrent_creates: int


async def carry_out(decision: Decision, observed: Observed, tools: Tools, now: datetime) -> Outcome:
    """Do what was decided. Raises as `Kube` does where nothing that follows would make sense."""
    outcome = Outcome()
    tools.events.settle(observed.job)
    if await _make_shared(decision, observed, tools, now, outcome):
        await _make_pods(decision.make, observed.job, tools, now, outcome)
    await _delete_pods(decision, observed.job, tools, outcome)
    for request in decision.requests:
        tools.send(request)
    tools.events.hold(decision.events, decision.status, now)
    written = await _write_status(decision, observed, tools)
    tools.events.settle(written)
    await _send_events(observed.job, tools)
    return outcome


async def _make_shared(decision: Decision, observed: Observed, tools: Tools, now: datetime, outcome: Outcome) -> bool:
    """Make what pods need; false: they would wait for it in vain."""
    try:
        if decision.secret is not None:
            await _ensure_secret(decision.secret, observed.job, tools.kube, now, outcome)
    except ApiError as error:
        outcome.refused("secret", error)
    try:
        if decision.service is not None:
            await _ensure_service(decision.service, observed.job, tools.kube, outcome)
    except ApiError as error:
        outcome.refused("service", error)
    return not outcome.refusals and not outcome.foreign


async def _ensure_secret(make: MakeSecret, job: Mapping[str, Any], kube: Kube, now: datetime, outcome: Outcome) -> None:
    namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
    manifest = await asyncio.to_thread(make_secret, make, job, now)
    await _create_secret(namespace, uid, manifest, kube, outcome)


async def _ensure_certificate(
    make: MakeCertificate, job: Mapping[str, Any], kube: Kube, now: datetime, outcome: Outcome
) -> None:
    namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
    authority = await kube.get_secret(namespace, make.authority)
    if authority is None:
        raise ApiError(404, "NotFound", f"Secret {make.authority} with the job's authority is gone")
    await _create_secret(namespace, uid, make_certificate(make, authority, job, now), kube, outcome)


async def _create_secret(namespace: str, uid: str, manifest: Mapping[str, Any], kube: Kube, outcome: Outcome) -> None:
    name = manifest["metadata"]["name"]
    try:
        await kube.create_secret(namespace, manifest)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        found = await kube.get_secret_metadata(namespace, name)
        if found is not None and not is_ours(found["metadata"], uid):
            outcome.foreign.append(f"secret/{name}")


async def _ensure_service(apply: ApplyService, job: Mapping[str, Any], kube: Kube, outcome: Outcome) -> None:
    """Create or apply. An apply alone would take over a stranger's Service without a word."""
    namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
    name = apply.manifest["metadata"]["name"]
    found = await kube.get_service(namespace, name)
    if found is None:
        try:
            await kube.create_service(namespace, apply.manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            found = await kube.get_service(namespace, name)
    elif is_ours(found["metadata"], uid):
        await kube.apply_service(namespace, apply.manifest, found["metadata"]["uid"])
    if found is not None and not is_ours(found["metadata"], uid):
        outcome.foreign.append(f"service/{name}")


async def _make_pods(
    make: Sequence[MakePod], job: Mapping[str, Any], tools: Tools, now: datetime, outcome: Outcome
) -> None:
    slots = asyncio.Semaphore(tools.concurrent_creates)

    async def one(pod: MakePod) -> None:
        async with slots:
            try:
                if pod.certificate is not None:
                    await _ensure_certificate(pod.certificate, job, tools.kube, now, outcome)
                await _make_pod(pod, job, tools.kube, outcome)
            except ApiError as error:
                outcome.refused(pod.name_in_job, error)

    await _all([one(pod) for pod in make])


async def _make_pod(make: MakePod, job: Mapping[str, Any], kube: Kube, outcome: Outcome) -> None:
    """POST until the pod is there; if it comes to nothing, the names that others have are foreign."""
    namespace, uid = job["metadata"]["namespace"], job["metadata"]["uid"]
    manifest = make.manifest
    taken: list[str] = []
    while len(taken) < STRANGERS:
        name, labels = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        try:
            await kube.create_pod(namespace, manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        else:
            outcome.made.append(make.name_in_job)
            return
        found = await kube.get_pod_metadata(namespace, name)
        if found is None:
            continue  # gone meanwhile: the name is free
        # Ours without its labels would be missing in every list: as good as a stranger's.
        if is_ours(found["metadata"], uid) and (found["metadata"].get("labels") or {}).get(Label.JOB_UID) == uid:
            logger.debug("Pod %s/%s was there already.", namespace, name)
            return
        taken.append(f"pod/{name}")
        attempt = int(labels[Label.ATTEMPT]) + 1
        if attempt > MAX_ATTEMPT:
            break
        logger.info("Pod %s/%s belongs to somebody else; tried attempt %d.", namespace, name, attempt)
        manifest = with_attempt(manifest, attempt)
    outcome.foreign += taken


async def _delete_pods(decision: Decision, job: Mapping[str, Any], tools: Tools, outcome: Outcome) -> None:
    """What the API server will not delete must not keep the status from being written: tried again after that."""
    namespace = job["metadata"]["namespace"]
    slots = asyncio.Semaphore(tools.concurrent_creates)

    async def one(name: str, uid: str, why: str) -> None:
        async with slots:
            try:
                await tools.kube.delete_pod(namespace, name, uid)
            except ApiError as error:
                outcome.error = error
                return
            logger.info("Pod %s/%s was deleted: %s.", namespace, name, why)

    await _all([one(pod.name, pod.uid, pod.why) for pod in decision.delete])


async def _write_status(decision: Decision, observed: Observed, tools: Tools) -> Mapping[str, Any]:
    """Returns the job with the status that it has now."""
    if decision.status is None or decision.status == observed.job.get("status"):
        return observed.job
    try:
        written = await tools.kube.replace_status(observed.job, decision.status)
    except ApiError as error:
        if error.status != 404:
            raise
        return observed.job  # deleted meanwhile: the next pass finds that out
    if lost := pruned_fields(decision.status, written.get("status") or {}):
        logger.warning(
            "The cluster's CRD is older than the operator and dropped %s of the status; apply the CRD of this release.",
            ", ".join(lost),
        )
    return {**observed.job, "status": decision.status}


async def _send_events(job: Mapping[str, Any], tools: Tools) -> None:
    namespace = job["metadata"]["namespace"]
    for said in tools.events.unsent:
        try:
            await _send_event(said, job, namespace, tools.kube)
        except ApiError as error:
            if not error.is_refusal:
                raise
            logger.warning("Event %s of job %s/%s was refused: %s", said.event.reason, namespace, said.name, error)
        tools.events.sent(said)


async def _send_event(said: Said, job: Mapping[str, Any], namespace: str, kube: Kube) -> None:
    if said.count > 1:
        try:
            await kube.patch_event(namespace, said.name, said.repetition())
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            return
    try:
        await kube.create_event(namespace, said.manifest(job))
    except ApiError as error:
        if error.reason != "AlreadyExists":  # else its answer was lost
            raise


async def _all(calls: Sequence[Any]) -> None:
    """Await all; then raise the first error, if any: what could be done is done by then."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
