"""One pass: what is seen, what is kept between passes, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from heterotrain_api.contract import Label
from heterotrain_operator.errors import ApiError
from heterotrain_operator.job.decision import ApplyPlan, Decision, MakePod
from heterotrain_operator.job.memory import JobKey
from heterotrain_operator.job.names import owner_reference, service_name
from heterotrain_operator.job.observed import Answer, Observed
from heterotrain_operator.job.reconcile import Reconciler, World
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.link import Links
from heterotrain_operator.settings import OperatorSettings
from heterotrain_operator.supervisor import Pass
from heterotrain_operator.watch_ledger import Version
from support.fake_kube import FakeKube

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = JobKey("ml", "fashion")
UID = "6d0f3c1e-0000-4000-8000-000000000001"


def make_job(uid: str = UID) -> dict[str, Any]:
    return {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": "fashion", "namespace": "ml", "uid": uid, "resourceVersion": "7"},
    }


def make_pod(name: str = "fashion-cpu-0-1", owner: str = UID, **labels: str) -> dict[str, Any]:
    own = {"role": "worker", "group": "cpu", "index": "0", "attempt": "1", **labels}
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "labels": {Label.JOB_UID: UID, **{f"heterotrain.io/{key}": value for key, value in own.items()}},
            "ownerReferences": [owner_reference("fashion", owner)],
        },
    }


class SpyLinks(Links):
    """Opens nothing, notes what is asked."""

    def __init__(self) -> None:
        super().__init__(OperatorSettings(), lambda: NOW, lambda: 0.5)
        self.closed: list[str] = []
        self.answer: Answer | None = None

    def keep(self, *_: Any) -> None:
        pass

    def close(self, job_uid: str) -> None:
        self.closed.append(job_uid)

    def send(self, job_uid: str, request: object, answered: Callable[[Answer], None]) -> None:
        if self.answer is not None:
            answered(self.answer)


@dataclass
class Stage:
    decisions: list[Decision]
    """One per pass; the last one again and again."""
    kube: FakeKube = field(default_factory=lambda: FakeKube(make_job()))
    links: SpyLinks = field(default_factory=SpyLinks)
    seen: list[Observed] = field(default_factory=list)
    saw: list[tuple[str, list[Version]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(
            World(
                kube=self.kube,
                links=self.links,
                decide=self._decide,
                settings=OperatorSettings(),
                job_settings=JobSettings(trainer_image="trainer:test"),
                now=lambda: NOW,
                wake=lambda _: None,
                saw_pods=lambda uid, pods: self.saw.append((uid, list(pods))),
                forget=self.forgotten.append,
            )
        )

    def _decide(self, observed: Observed, _settings: JobSettings, _now: datetime) -> Decision:
        self.seen.append(observed)
        return self.decisions.pop(0) if len(self.decisions) > 1 else self.decisions[0]

    async def play(self) -> Pass:
        return await self.reconciler.run(KEY)


async def test_a_pass_sees_the_job_and_just_the_children_that_it_controls() -> None:
    stage = Stage([Decision(wake_at=NOW + timedelta(seconds=5), why="test")])
    name = service_name("fashion", UID)
    service = stage.kube.put("services", make_pod(name))
    stage.kube.put("secrets", make_pod(name, owner="somebody else"))
    ours = stage.kube.put("pods", make_pod("fashion-cpu-1-1", index="1"))
    also = stage.kube.put("pods", make_pod())
    stage.kube.put("pods", make_pod("false", owner="somebody else"))
    odd = stage.kube.put("pods", make_pod("odd", index="x"))

    assert await stage.play() == Pass(wake_at=NOW + timedelta(seconds=5))

    (observed,) = stage.seen
    assert observed.job == make_job()
    assert [pod.name for pod in observed.pods] == ["fashion-cpu-0-1", "fashion-cpu-1-1"]
    assert observed.service == service
    assert not observed.secret_present
    assert observed.foreign == (f"secret/{name}",)
    versions = {Version(pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]) for pod in (ours, also, odd)}
    assert [(uid, set(pods)) for uid, pods in stage.saw] == [(UID, versions)]


async def test_what_a_node_complains_of_is_read_for_a_few_stuck_pods_only() -> None:
    stage = Stage([Decision()])
    stuck = {"spec": {"nodeName": "one"}, "status": {"phase": "Pending"}}
    for index in range(6):
        pod = stage.kube.put("pods", make_pod(f"fashion-cpu-{index}-1", index=str(index)) | stuck)
        pod["metadata"]["creationTimestamp"] = "2026-01-01T11:59:00Z" if index else "2026-01-01T11:59:50Z"
        about = {"uid": pod["metadata"]["uid"]}
        event = {
            "metadata": {"name": f"e-{index}"},
            "involvedObject": about,
            "type": "Warning",
            "reason": "FailedMount",
        }
        stage.kube.put("events", event | {"message": "no such volume", "lastTimestamp": "2026-01-01T11:59:55Z"})

    await stage.play()
    words = "FailedMount: no such volume"
    assert [pod.warning for pod in stage.seen[0].pods] == ["", words, words, words, words, ""]


async def test_without_the_right_to_read_events_the_pass_goes_on() -> None:
    stage = Stage([Decision()])
    pod = make_pod() | {"spec": {"nodeName": "one"}, "status": {"phase": "Pending"}}
    pod["metadata"]["creationTimestamp"] = "2026-01-01T11:59:00Z"
    stage.kube.put("pods", pod)

    def refuse(verb: str, resource: str, _name: str) -> None:
        if (verb, resource) == ("list", "events"):
            raise ApiError(403, "Forbidden", "cannot list events")

    stage.kube.before = refuse
    await stage.play()
    assert [seen.warning for seen in stage.seen[0].pods] == [""]


async def test_there_is_no_such_job() -> None:
    stage = Stage([Decision()], kube=FakeKube())
    assert await stage.play() == Pass(gone=True)
    assert stage.seen == []


async def test_what_the_api_server_refused_is_seen_by_the_next_pass_which_comes_at_once_but_only_once() -> None:
    make = MakePod("cpu-0", make_pod())
    stage = Stage([Decision(make=(make,))])

    def refuse(verb: str, _resource: str, _name: str) -> None:
        if verb == "create":
            raise ApiError(403, "Forbidden", "exceeded quota")

    stage.kube.before = refuse
    assert await stage.play() == Pass(again=True)
    assert await stage.play() == Pass()
    assert [observed.refusals for observed in stage.seen] == [None, {"cpu-0": "exceeded quota"}]

    stage.kube.before = lambda _verb, _resource, _name: None
    assert await stage.play() == Pass()
    await stage.play()
    assert stage.seen[-1].refusals is None


async def test_answers_of_the_coordinator_are_seen_by_the_next_pass() -> None:
    stage = Stage([Decision(requests=(ApplyPlan("r-1", {"cpu-0": 3}, "because"),))])
    stage.links.answer = Answer("r-1", True, "plan 2 is in force from round 9")
    await stage.play()
    await stage.play()
    assert [observed.answers for observed in stage.seen] == [(), (stage.links.answer,)]


async def test_nothing_of_an_old_job_counts_for_a_new_one_of_its_name() -> None:
    stage = Stage([Decision(requests=(ApplyPlan("r-1", {}, ""),))])
    stage.links.answer = Answer("r-1", False, "no")
    await stage.play()
    stage.kube.objects["heterotrainjobs", "fashion"] = make_job("another uid")
    await stage.play()
    assert stage.seen[-1].answers == ()
    assert (stage.links.closed, stage.forgotten) == ([UID], [UID])


async def test_a_job_that_is_gone_is_forgotten() -> None:
    stage = Stage([Decision()])
    await stage.play()
    del stage.kube.objects["heterotrainjobs", "fashion"]
    assert await stage.play() == Pass(gone=True)
    assert (stage.links.closed, stage.forgotten) == ([UID], [UID])


async def test_a_server_error_on_a_child_is_raised_after_the_status_was_written_and_said_once_it_lasts() -> None:
    stage = Stage([Decision(make=(MakePod("cpu-0", make_pod()),), status={"state": "Starting"})])

    def fail(verb: str, resource: str, _name: str) -> None:
        if (verb, resource) == ("create", "pods"):
            raise ApiError(500, "InternalError", "webhook down")

    stage.kube.before = fail
    with pytest.raises(ApiError, match="webhook down"):
        await stage.play()
    assert stage.kube.objects["heterotrainjobs", "fashion"]["status"] == {"state": "Starting"}
    for _ in range(2):
        with pytest.raises(ApiError):
            await stage.play()
    assert [observed.refusals for observed in stage.seen] == [None, None, {"cpu-0": "webhook down"}]


async def test_a_server_error_that_passes_is_never_said() -> None:
    stage = Stage([Decision(make=(MakePod("cpu-0", make_pod()),))])
    outages = [True, False, True, False]

    def fail(verb: str, resource: str, name: str) -> None:
        if (verb, resource) == ("create", "pods"):
            stage.kube.objects.pop((resource, name), None)
            if outages.pop(0):
                raise ApiError(503, "ServiceUnavailable", "etcd has no leader")

    stage.kube.before = fail
    for _ in range(2):
        with pytest.raises(ApiError):
            await stage.play()
        await stage.play()
    assert [observed.refusals for observed in stage.seen] == [None] * 4
