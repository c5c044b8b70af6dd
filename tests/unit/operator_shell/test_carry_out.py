"""A decision becomes API calls, in its order, and may be carried out again at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from heterotrain_api.contract import Label
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.job.carry_out import Outcome, Request, Tools, carry_out
from heterotrain_operator.job.decision import (
    ApplyPlan,
    ApplyService,
    Decision,
    DeletePod,
    JobEvent,
    MakePod,
    MakeSecret,
)
from heterotrain_operator.job.event_log import EventLog
from heterotrain_operator.job.names import owner_reference
from heterotrain_operator.job.observed import Observed
from support.fake_kube import FakeKube

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
UID = "6d0f3c1e-0000-4000-8000-000000000001"
STATUS = {"state": "Starting"}
EVENT = JobEvent(False, "Started", "words")
PLAN = ApplyPlan("r-1", {"cpu-0": 3}, "because")


def make_job() -> dict[str, Any]:
    return {
        "apiVersion": "heterotrain.io/v1alpha1",
        "kind": "HeteroTrainJob",
        "metadata": {"name": "fashion", "namespace": "ml", "uid": UID, "resourceVersion": "7"},
    }


def child(name: str, owner: str = UID) -> dict[str, Any]:
    labels = {Label.JOB_UID: owner, Label.ATTEMPT: name.rpartition("-")[2]}
    return {
        "metadata": {"name": name, "labels": labels, "ownerReferences": [owner_reference("fashion", owner)]},
    }


def make_pod(name: str = "fashion-cpu-0-1") -> MakePod:
    return MakePod(name.removeprefix("fashion-").rpartition("-")[0], child(name))


FULL = Decision(
    secret=MakeSecret("fashion-6d0f", ("ps-0", "cpu-0")),
    service=ApplyService(child("fashion-6d0f")),
    make=(make_pod("fashion-ps-0-1"), make_pod()),
    delete=(DeletePod("fashion-cpu-9-1", "uid-x", "too many"),),
    requests=(PLAN,),
    status=STATUS,
    events=(EVENT,),
)


class Stage:
    def __init__(self) -> None:
        self.kube = FakeKube(make_job())
        self.events = EventLog(timedelta(minutes=10))
        self.sent: list[Request] = []

    async def play(self, decision: Decision, creates: int = 10) -> Outcome:
        job = self.kube.objects["heterotrainjobs", "fashion"]
        observed = Observed(job=job, pods=(), service=None, secret_present=False)

        def send(request: Request) -> None:
            self.kube.calls.append("send")
            self.sent.append(request)

        return await carry_out(decision, observed, Tools(self.kube, self.events, send, creates), NOW)


def fail_on(call: str, error: Exception) -> Callable[[str, str, str], None]:
    def before(verb: str, resource: str, name: str) -> None:
        if f"{verb} {resource}/{name}".startswith(call):
            raise error

    return before


def refusal() -> ApiError:
    return ApiError(403, "Forbidden", "exceeded quota: small")


async def test_everything_in_its_order() -> None:
    stage = Stage()
    outcome = await stage.play(FULL)
    assert outcome == Outcome(made=["ps-0", "cpu-0"])
    (event,) = stage.kube.names("events")
    assert stage.kube.calls == [
        "create secrets/fashion-6d0f",
        "create services/fashion-6d0f",
        "create pods/fashion-ps-0-1",
        "create pods/fashion-cpu-0-1",
        "delete pods/fashion-cpu-9-1",
        "send",
        "update heterotrainjobs/status/fashion",
        f"create events/{event}",
    ]
    assert stage.sent == [PLAN]
    assert stage.kube.objects["heterotrainjobs", "fashion"]["status"] == STATUS


async def test_a_second_time_makes_nothing_twice() -> None:
    stage = Stage()
    await stage.play(FULL)
    before = {key: value["metadata"]["uid"] for key, value in stage.kube.objects.items()}
    assert await stage.play(FULL) == Outcome()
    after = {key: value["metadata"]["uid"] for key, value in stage.kube.objects.items()}
    assert after == before


async def test_a_status_that_says_the_same_is_not_written() -> None:
    stage = Stage()
    await stage.play(Decision(status=STATUS))
    await stage.play(Decision(status=STATUS))
    assert stage.kube.calls == ["update heterotrainjobs/status/fashion"]


@pytest.mark.parametrize("creates", [1, 4])
async def test_pods_are_made_side_by_side_but_not_all_at_once(creates: int) -> None:
    stage = Stage()
    await stage.play(Decision(make=tuple(make_pod(f"fashion-cpu-{i}-1") for i in range(12))), creates)
    assert (stage.kube.most_creating, len(stage.kube.names("pods"))) == (creates, 12)


async def test_a_name_that_a_stranger_has_is_left_for_the_next_attempt() -> None:
    stage = Stage()
    stage.kube.put("pods", child("fashion-cpu-0-1", owner="the job before"))
    stage.kube.put("pods", {"metadata": {"name": "fashion-cpu-0-2"}})
    assert await stage.play(Decision(make=(make_pod(),))) == Outcome(made=["cpu-0"])
    made = stage.kube.objects["pods", "fashion-cpu-0-3"]["metadata"]
    assert made["labels"][Label.ATTEMPT] == "3"
    assert len(stage.kube.names("pods")) == 3


async def test_a_pod_of_ours_that_lost_its_label_does_not_count_either() -> None:
    stage = Stage()
    lost = child("fashion-cpu-0-1")
    lost["metadata"]["labels"] = {}
    stage.kube.put("pods", lost)
    assert await stage.play(Decision(make=(make_pod(),))) == Outcome(made=["cpu-0"])
    assert stage.kube.names("pods") == ["fashion-cpu-0-1", "fashion-cpu-0-2"]


async def test_many_strangers_are_named_and_the_pod_is_given_up_for_now() -> None:
    stage = Stage()
    for attempt in range(1, 9):
        stage.kube.put("pods", {"metadata": {"name": f"fashion-cpu-0-{attempt}"}})
    outcome = await stage.play(Decision(make=(make_pod(),)))
    assert outcome == Outcome(foreign=[f"pod/fashion-cpu-0-{attempt}" for attempt in range(1, 6)])


async def test_a_name_that_became_free_meanwhile_is_taken() -> None:
    stage = Stage()
    stage.kube.put("pods", {"metadata": {"name": "fashion-cpu-0-1"}})

    def before(verb: str, resource: str, name: str) -> None:
        if verb == "get":
            stage.kube.objects.pop((resource, name), None)

    stage.kube.before = before
    assert await stage.play(Decision(make=(make_pod(),))) == Outcome(made=["cpu-0"])
    assert stage.kube.calls == ["create pods/fashion-cpu-0-1"] * 2


@pytest.mark.parametrize("kind", ["secret", "service"])
async def test_a_strangers_secret_or_service_is_not_touched_and_no_pod_is_made(kind: str) -> None:
    stage = Stage()
    stage.kube.put(f"{kind}s", child("fashion-6d0f", owner="somebody"))
    outcome = await stage.play(FULL)
    assert outcome == Outcome(foreign=[f"{kind}/fashion-6d0f"])
    assert stage.kube.names("pods") == []
    assert stage.kube.objects["heterotrainjobs", "fashion"]["status"] == STATUS


async def test_a_service_of_ours_is_applied_with_its_uid() -> None:
    stage = Stage()
    uid = stage.kube.put("services", child("fashion-6d0f"))["metadata"]["uid"]
    await stage.play(Decision(service=ApplyService(child("fashion-6d0f"))))
    assert stage.kube.calls == ["patch services/fashion-6d0f"]
    assert stage.kube.objects["services", "fashion-6d0f"]["metadata"]["uid"] == uid


async def test_a_refused_pod_is_remembered_and_holds_up_neither_its_siblings_nor_the_status() -> None:
    stage = Stage()
    stage.kube.before = fail_on("create pods/fashion-ps", refusal())
    outcome = await stage.play(FULL)
    assert outcome == Outcome(refusals={"ps-0": "exceeded quota: small"}, made=["cpu-0"])
    assert stage.kube.names("pods") == ["fashion-cpu-0-1"]
    assert stage.kube.objects["heterotrainjobs", "fashion"]["status"] == STATUS


@pytest.mark.parametrize("error", [refusal(), ApiError(500, "InternalError", "etcd has no leader")])
async def test_a_pod_that_cannot_be_deleted_keeps_neither_status_nor_events_back_and_is_tried_again(
    error: ApiError,
) -> None:
    stage = Stage()
    stage.kube.before = fail_on("delete pods/fashion-cpu-9", error)
    outcome = await stage.play(FULL)
    assert outcome == Outcome(made=["ps-0", "cpu-0"], error=error)
    assert stage.kube.objects["heterotrainjobs", "fashion"]["status"] == STATUS
    assert len(stage.kube.names("events")) == 1


async def test_a_webhook_that_fails_is_said_and_is_worth_a_retry() -> None:
    stage = Stage()
    error = ApiError(500, "InternalError", "failed calling webhook")
    stage.kube.before = fail_on("create pods/fashion-ps", error)
    outcome = await stage.play(FULL)
    assert outcome == Outcome(
        refusals={"ps-0": "failed calling webhook"}, passing={"ps-0"}, made=["cpu-0"], error=error
    )


@pytest.mark.parametrize("kind", ["secret", "service"])
async def test_without_secret_or_service_no_pod_is_made(kind: str) -> None:
    stage = Stage()
    stage.kube.before = fail_on(f"create {kind}s", refusal())
    outcome = await stage.play(FULL)
    assert outcome == Outcome(refusals={kind: "exceeded quota: small"})
    assert stage.kube.names("pods") == []


async def test_no_answer_ends_the_pass_but_only_after_all_that_was_begun() -> None:
    stage = Stage()
    stage.kube.before = fail_on("create pods/fashion-ps", ApiUnreachableError("down"))
    with pytest.raises(ApiUnreachableError):
        await stage.play(FULL)
    assert stage.kube.names("pods") == ["fashion-cpu-0-1"]
    assert "status" not in stage.kube.objects["heterotrainjobs", "fashion"]


async def test_when_somebody_wrote_in_between_neither_status_nor_events_are_written() -> None:
    stage = Stage()

    def after(_verb: str, resource: str, _name: str) -> None:
        if resource == "pods":
            stage.kube.put("heterotrainjobs", make_job())

    stage.kube.after = after
    with pytest.raises(ApiError, match="modified"):
        await stage.play(FULL)
    assert stage.kube.names("events") == []
    assert stage.events.unsent == ()


async def test_a_job_that_is_deleted_before_its_status_is_written_is_no_error_and_says_nothing_more() -> None:
    stage = Stage()

    def delete(verb: str, resource: str, _name: str) -> None:
        if (verb, resource) == ("update", "heterotrainjobs/status"):
            del stage.kube.objects["heterotrainjobs", "fashion"]

    stage.kube.before = delete
    await stage.play(Decision(status=STATUS, events=(EVENT,)))
    assert stage.kube.names("events") == []
    assert stage.events.unsent == ()


async def test_an_event_whose_sending_failed_is_sent_by_the_next_pass() -> None:
    stage = Stage()
    stage.kube.before = fail_on("create events", ApiUnreachableError("down"))
    with pytest.raises(ApiUnreachableError):
        await stage.play(Decision(status=STATUS, events=(EVENT,)))
    stage.kube.before = fail_on("nothing", refusal())
    await stage.play(Decision())
    assert len(stage.kube.names("events")) == 1
    assert stage.events.unsent == ()


async def test_an_event_that_stands_already_because_its_answer_was_lost_is_fine() -> None:
    stage = Stage()

    def lose(_verb: str, resource: str, _name: str) -> None:
        if resource == "events":
            raise ApiUnreachableError("the answer was lost")

    stage.kube.after = lose
    with pytest.raises(ApiUnreachableError):
        await stage.play(Decision(events=(EVENT,)))
    await stage.play(Decision())
    assert len(stage.kube.names("events")) == 1
    assert stage.events.unsent == ()


@pytest.mark.parametrize("written", [True, False], ids=["it was written", "it was not"])
async def test_events_of_a_status_whose_answer_was_lost_are_said_by_the_next_pass_if_it_stands(written: bool) -> None:
    """A pass that finds the new status has nothing new to tell by itself; one that finds the old tells all anew."""
    stage = Stage()

    def lose(verb: str, resource: str, _name: str) -> None:
        if (verb, resource) == ("update", "heterotrainjobs/status"):
            raise ApiUnreachableError("the answer was lost")

    if written:
        stage.kube.after = lose
    else:
        stage.kube.before = lose
    with pytest.raises(ApiUnreachableError):
        await stage.play(Decision(status=STATUS, events=(EVENT,)))
    assert stage.kube.names("events") == []
    assert ("status" in stage.kube.objects["heterotrainjobs", "fashion"]) is written

    await stage.play(Decision())
    assert len(stage.kube.names("events")) == written
    await stage.play(Decision())
    assert [stage.kube.objects["events", name]["count"] for name in stage.kube.names("events")] == [1] * written


async def test_a_repeated_event_is_a_patch_and_a_new_event_if_the_first_has_expired() -> None:
    stage = Stage()
    await stage.play(Decision(events=(EVENT,)))
    await stage.play(Decision(events=(EVENT,)))
    (name,) = stage.kube.names("events")
    assert stage.kube.objects["events", name]["count"] == 2
    del stage.kube.objects["events", name]
    await stage.play(Decision(events=(EVENT,)))
    assert stage.kube.objects["events", name]["count"] == 3


async def test_an_event_that_is_refused_is_dropped() -> None:
    stage = Stage()
    stage.kube.before = fail_on("create events", refusal())
    await stage.play(Decision(events=(EVENT,)))
    assert stage.events.unsent == ()


async def test_fields_that_an_older_crd_drops_are_told_of_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    put = stage.kube.put

    def prune(resource: str, document: Any) -> Any:
        return put(
            resource, {**document, "status": {"state": "Starting"}} if resource == "heterotrainjobs" else document
        )

    stage.kube.put = prune  # type: ignore[method-assign]
    await stage.play(Decision(status={"state": "Starting", "plan": {"generation": 1}}))
    assert "dropped plan of the status" in caplog.text


def test_the_whole_thing_survives_being_cut_off_after_any_call() -> None:
    """Whatever call a killed operator came to: the next one ends up with the same objects."""

    class Killed(BaseException):
        pass

    async def play(limit: int) -> tuple[FakeKube, bool]:
        stage, calls = Stage(), 0

        def count(_verb: str, _resource: str, _name: str) -> None:
            nonlocal calls
            calls += 1
            if calls > limit:
                raise Killed

        stage.kube.before = count
        try:
            await stage.play(FULL)
        except Killed:
            stage.kube.before = lambda _verb, _resource, _name: None
            stage.events = EventLog(timedelta(minutes=10))
            await stage.play(FULL)
            return stage.kube, True
        return stage.kube, False

    want = sorted(asyncio.run(play(1000))[0].objects)
    cut, limit = True, 0
    while cut:
        kube, cut = asyncio.run(play(limit))
        assert sorted(kube.objects) == want
        limit += 1
    assert limit > 8
