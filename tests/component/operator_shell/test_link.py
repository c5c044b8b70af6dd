"""The link to a coordinator, over real gRPC with the job's certificates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
import pytest

from heterotrain_api.contract import Role
from heterotrain_operator.job.decision import ApplyPlan, SendCommand
from heterotrain_operator.job.observed import Answer, PodSeen
from heterotrain_operator.link import Links, Target, backoff_seconds, coordinator_target, is_news
from heterotrain_operator.settings import OperatorSettings
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_channel
from support.credentials import JOB_UID, credentials
from support.fake_coordinator import FakeCoordinator, serve
from support.ports import free_port

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TRAINING = control_pb2.JobState(phase=control_pb2.PHASE_TRAINING, version=5)
PLAN = ApplyPlan("r-1", {"cpu-0": 3}, "because", {"cpu-0": 1})


class Stage:
    """Links with a coordinator behind; `wakes` counts how often the job was woken."""

    def __init__(self, **settings: float) -> None:
        given: dict[str, Any] = {"link_interval_seconds": 0.05, "link_backoff_seconds": 0.2, **settings}
        self.links = Links(OperatorSettings(**given), lambda: NOW, lambda: 0.5)
        self.coordinator = FakeCoordinator(state=TRAINING)
        self.answers: list[Answer] = []
        self.wakes = 0
        self.port = 0
        self._server = AsyncExitStack()

    async def start(self) -> None:
        own = credentials(Role.PS, "ps-0")
        served = serve(self.coordinator, own, JOB_UID, f"127.0.0.1:{self.port}")
        self.port = await self._server.enter_async_context(served)

    async def stop(self) -> None:
        await self._server.aclose()

    def keep(self, pod_uid: str | None = "pod-1") -> None:
        target = None if pod_uid is None else Target(pod_uid, f"127.0.0.1:{self.port}")
        self.links.keep(JOB_UID, target, self._credentials, self._wake)

    def send(self, request: ApplyPlan | SendCommand) -> None:
        self.links.send(JOB_UID, request, self.answers.append)

    async def until(self, question: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not question():  # noqa: ASYNC110  # what is asked changes in more places than one
                await asyncio.sleep(0.01)

    async def connected(self) -> None:
        await self.until(lambda: (seen := self.links.seen(JOB_UID)) is not None and seen.connected)

    async def _credentials(self) -> Credentials:
        return credentials(Role.OPERATOR, "operator")

    def _wake(self) -> None:
        self.wakes += 1


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    found = Stage()
    await found.start()
    yield found
    await found.links.close_all()
    await found.stop()


async def test_the_first_state_and_news_wake_the_job_and_mere_progress_does_not(stage: Stage) -> None:
    stage.keep()
    await stage.connected()
    assert stage.wakes == 1
    seen = stage.links.seen(JOB_UID)
    assert seen is not None
    assert (seen.state, seen.received_at) == (TRAINING, NOW)

    for version in range(6, 9):
        await stage.coordinator.say(control_pb2.JobState(phase=control_pb2.PHASE_TRAINING, version=version))
    await stage.until(lambda: (s := stage.links.seen(JOB_UID)) is not None and s.state.version == 8)
    assert stage.wakes == 1

    await stage.coordinator.say(control_pb2.JobState(phase=control_pb2.PHASE_FINISHING, version=8))
    await stage.until(lambda: stage.wakes == 2)
    assert stage.coordinator.intervals == [0.05]


async def test_progress_wakes_now_and_then() -> None:
    stage = Stage(link_wake_seconds=0.01)
    await stage.start()
    stage.keep()
    await stage.connected()
    await asyncio.sleep(0.02)
    await stage.coordinator.say(control_pb2.JobState(phase=control_pb2.PHASE_TRAINING, version=6))
    await stage.until(lambda: stage.wakes == 2)
    await stage.links.close_all()
    await stage.stop()


async def test_the_same_pod_keeps_its_link_and_another_pod_gets_another(stage: Stage) -> None:
    stage.keep()
    await stage.connected()
    stage.keep()
    await asyncio.sleep(0.1)
    assert len(stage.coordinator.intervals) == 1
    stage.keep("pod-2")
    await stage.until(lambda: len(stage.coordinator.intervals) == 2)
    await stage.connected()


async def test_a_coordinator_that_comes_back_is_found_again_and_its_last_state_is_kept_meanwhile(stage: Stage) -> None:
    stage.keep()
    await stage.connected()
    await stage.stop()
    await stage.until(lambda: stage.wakes == 2)
    seen = stage.links.seen(JOB_UID)
    assert seen is not None
    assert (seen.state, seen.connected) == (TRAINING, False)
    await stage.start()
    await stage.connected()
    assert stage.wakes == 3


async def test_a_coordinator_that_never_answers_is_told_of_once_with_since_when_and_why() -> None:
    stage = Stage(link_backoff_seconds=0.02)
    stage.keep()
    await stage.until(lambda: stage.links.unreachable(JOB_UID) is not None)
    said = stage.links.unreachable(JOB_UID)
    assert said is not None
    assert said.since == NOW
    assert said.why.startswith("UNAVAILABLE: ")
    await asyncio.sleep(0.2)  # several attempts more
    assert stage.wakes == 1
    await stage.links.close_all()


async def test_once_it_answers_it_counts_as_reachable_and_anew_when_it_is_lost(stage: Stage) -> None:
    stage.keep()
    await stage.connected()
    assert stage.links.unreachable(JOB_UID) is None
    await stage.stop()
    await stage.until(lambda: stage.links.unreachable(JOB_UID) is not None)
    await stage.start()
    await stage.connected()
    assert stage.links.unreachable(JOB_UID) is None


async def test_without_a_pod_nothing_is_connected_but_what_was_said_stays(stage: Stage) -> None:
    stage.keep()
    await stage.connected()
    stage.keep(None)
    seen = stage.links.seen(JOB_UID)
    assert seen is not None
    assert (seen.state, seen.connected) == (TRAINING, False)
    stage.keep()
    await stage.connected()
    stage.links.close(JOB_UID)
    assert stage.links.seen(JOB_UID) is None


async def test_a_plan_is_asked_for_once_and_answered(stage: Stage) -> None:
    stage.coordinator.verdict = control_pb2.PlanVerdict(accepted=True, generation=2, effective_round=9)
    stage.coordinator.hold = asyncio.Event()
    stage.keep()
    await stage.connected()
    for _ in range(5):
        stage.send(PLAN)  # each pass asks again while there is no answer
    await stage.until(lambda: len(stage.coordinator.plans) > 0)
    stage.coordinator.hold.set()
    await stage.until(lambda: len(stage.answers) > 0)
    assert stage.answers == [Answer("r-1", True, "plan 2 is in force from round 9")]
    shares = [control_pb2.PlanShare(worker="cpu-0", samples=3, micro_batch=1)]
    assert stage.coordinator.plans == [control_pb2.Plan(shares=shares, reason="because")]
    assert stage.wakes == 2


async def test_a_refused_plan_says_by_whom_and_why(stage: Stage) -> None:
    refusals = [control_pb2.Refusal(reason="the sum is 9"), control_pb2.Refusal(worker="cpu-0", reason="too much")]
    stage.coordinator.verdict = control_pb2.PlanVerdict(refusals=refusals)
    stage.keep()
    await stage.connected()
    stage.send(PLAN)
    await stage.until(lambda: len(stage.answers) > 0)
    assert stage.answers == [Answer("r-1", False, "the coordinator: the sum is 9; cpu-0: too much")]


@pytest.mark.parametrize(
    ("request_", "want"),
    [
        (SendCommand("r", "stop", reason="enough"), control_pb2.CommandRequest(stop=control_pb2.Stop(reason="enough"))),
        (SendCommand("r", "checkpoint"), control_pb2.CommandRequest(checkpoint=control_pb2.Checkpoint())),
        (SendCommand("r", "drain", "cpu-0"), control_pb2.CommandRequest(drain=control_pb2.Drain(worker="cpu-0"))),
    ],
    ids=["stop", "checkpoint", "drain"],
)
async def test_commands(stage: Stage, request_: SendCommand, want: control_pb2.CommandRequest) -> None:
    stage.coordinator.reply = control_pb2.CommandReply(accepted=True, path="/output/model.safetensors")
    stage.keep()
    await stage.connected()
    stage.send(request_)
    await stage.until(lambda: len(stage.answers) > 0)
    assert stage.coordinator.commands == [want]
    answer = f"{request_.command} was accepted: /output/model.safetensors"
    assert stage.answers == [Answer("r", True, answer)]


@pytest.mark.parametrize(
    ("code", "answers"),
    [
        (grpc.StatusCode.UNAVAILABLE, []),
        (grpc.StatusCode.INVALID_ARGUMENT, [Answer("r-1", False, "as the test wants it")]),
    ],
    ids=["no answer: the next pass asks again", "an answer"],
)
async def test_requests_that_fail(stage: Stage, code: grpc.StatusCode, answers: list[Answer]) -> None:
    stage.coordinator.refuse = code
    stage.keep()
    await stage.connected()
    for asked in (1, 2):
        stage.send(PLAN)
        await stage.until(lambda asked=asked: len(stage.coordinator.plans) == asked)  # type: ignore[misc]
        await asyncio.sleep(0.1)
    assert stage.answers == answers * 2


async def test_nothing_is_sent_without_a_connection(stage: Stage) -> None:
    stage.send(PLAN)
    assert stage.coordinator.plans == []


async def test_a_secret_that_cannot_be_read_yet_is_no_end(stage: Stage) -> None:
    failures = [ValueError("operator.crt is missing in the Secret")] * 2

    async def read() -> Credentials:
        if failures:
            raise failures.pop()
        return credentials(Role.OPERATOR, "operator")

    stage.links.keep(JOB_UID, Target("pod-1", f"127.0.0.1:{stage.port}"), read, lambda: None)
    await stage.connected()
    assert failures == []


@pytest.mark.parametrize(
    ("longest", "want"),
    [
        pytest.param(1.0, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], id="while it is being started"),
        pytest.param(15.0, [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0], id="later"),
    ],
)
def test_how_long_a_coordinator_is_left_alone(longest: float, want: list[float]) -> None:
    assert [backoff_seconds(failures, longest) for failures in range(1, 8)] == want


async def test_a_coordinator_that_is_being_started_is_called_often_with_one_look_at_the_secret() -> None:
    """Called at growing distances, it would be heard of up to a distance later than it began to train."""
    reads: list[str] = []
    calls: list[str] = []
    thrice = asyncio.Event()

    async def read() -> Credentials:
        reads.append("the Secret")
        return credentials(Role.OPERATOR, "operator")

    def channel(address: str, name: str, known: Credentials) -> grpc.aio.Channel:
        calls.append(address)
        if len(calls) == 3:
            thrice.set()
        return make_channel(address, name, known)

    links = Links(OperatorSettings(link_backoff_seconds=0.01), lambda: NOW, lambda: 0.5, channel)
    links.keep(JOB_UID, Target("pod-1", f"127.0.0.1:{free_port()}"), read, lambda: None)
    async with asyncio.timeout(10):
        await thrice.wait()
    await links.close_all()
    assert reads == ["the Secret"]


def pod(index: int = 0, attempt: int = 1, phase: str = "Running", ip: str = "10.0.0.1") -> PodSeen:
    return PodSeen(
        name="p",
        uid=f"uid-{attempt}",
        role=Role.PS,
        group="ps",
        index=index,
        attempt=attempt,
        phase=phase,
        node="",
        ip=ip,
        ready=False,
        deleting=False,
        created_at=NOW,
    )


@pytest.mark.parametrize(
    ("pods", "want"),
    [
        pytest.param((), None, id="no pod"),
        pytest.param((pod(index=1),), None, id="only another shard"),
        pytest.param((pod(phase="Pending", ip=""),), None, id="not started"),
        pytest.param((pod(phase="Succeeded"),), None, id="over"),
        pytest.param((pod(ip=""),), None, id="no address yet"),
        pytest.param((pod(),), Target("uid-1", "10.0.0.1:7070"), id="runs, ready or not"),
        pytest.param((pod(), pod(attempt=2)), Target("uid-2", "10.0.0.1:7070"), id="the newest attempt"),
        pytest.param((pod(ip="fd00::7"),), Target("uid-1", "[fd00::7]:7070"), id="IPv6"),
    ],
)
def test_which_pod_to_talk_to(pods: tuple[PodSeen, ...], want: Target | None) -> None:
    assert coordinator_target(pods) == want


def state(**fields: Any) -> control_pb2.JobState:
    return control_pb2.JobState(**{"version": 9, "plan": control_pb2.PlanState(generation=1), **fields})


@pytest.mark.parametrize(
    ("after", "want"),
    [
        pytest.param(state(version=10, samples=640, training_seconds=3.0), False, id="progress"),
        pytest.param(state(phase=control_pb2.PHASE_FAILED), True, id="another phase"),
        pytest.param(state(plan=control_pb2.PlanState(generation=2, effective_round=12)), True, id="a new plan"),
        pytest.param(state(events=[control_pb2.Event(sequence=1)]), True, id="an event"),
        pytest.param(state(workers=[control_pb2.WorkerState(name="cpu-0")]), True, id="a worker"),
        pytest.param(state(model_path="/output/model"), True, id="the model is saved"),
    ],
)
def test_what_is_news(after: control_pb2.JobState, want: bool) -> None:
    assert is_news(state(), after) is want


def test_that_a_plan_comes_into_force_is_news_once() -> None:
    def at(version: int) -> control_pb2.JobState:
        return state(version=version, plan=control_pb2.PlanState(generation=2, effective_round=10))

    assert [is_news(at(n), at(n + 1)) for n in range(7, 12)] == [False, False, True, False, False]


async def test_a_plan_of_our_own_is_proposed_with_its_generation_and_answered_once(stage: Stage) -> None:
    plan = control_pb2.Plan(generation=7, shares=[control_pb2.PlanShare(worker="cpu-0", samples=3)], reason="faster")
    stage.coordinator.verdict = control_pb2.PlanVerdict(accepted=True, generation=7, effective_round=9)
    verdicts: list[control_pb2.PlanVerdict | str] = []
    stage.links.propose(JOB_UID, plan, verdicts.append)
    assert verdicts == ["the coordinator is not connected"]

    stage.keep()
    await stage.connected()
    stage.links.propose(JOB_UID, plan, verdicts.append)
    await stage.until(lambda: len(verdicts) == 2)

    assert stage.coordinator.plans == [plan]
    assert verdicts[1] == stage.coordinator.verdict


async def test_a_proposal_without_an_answer_says_why(stage: Stage) -> None:
    verdicts: list[control_pb2.PlanVerdict | str] = []
    stage.keep()
    await stage.connected()
    stage.coordinator.refuse = grpc.StatusCode.UNAVAILABLE
    stage.links.propose(JOB_UID, control_pb2.Plan(generation=2), verdicts.append)
    await stage.until(lambda: len(verdicts) == 1)
    stage.coordinator.refuse, stage.coordinator.hold = None, asyncio.Event()

    stage.links.propose(JOB_UID, control_pb2.Plan(generation=3), verdicts.append)
    await stage.until(lambda: len(stage.coordinator.plans) == 2)
    await stage.links.close_all()

    assert verdicts == ["UNAVAILABLE: as the test wants it", "the link was closed"]
