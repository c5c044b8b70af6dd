"""A worker's engine in a job, between a scripted session and shards that only keep what they get."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from heterotrain import PeerLostError
from heterotrain.engine import Setup, Update
from heterotrain.errors import LeftJobError
from heterotrain.evaluation import Evaluation
from heterotrain.gradients import Gradients
from heterotrain.job import GrantsAtHand, JobEngine
from heterotrain.manifest import describe_model
from heterotrain.pace import Clocks, Pace
from heterotrain.stream import SessionStream
from heterotrain.transport.base import Part, PullStatus, PushKey, PushStatus, RefusedError, TensorClient
from heterotrain_core.sync.policy import DRAINED
from heterotrain_core.types import Grant, SampleRange
from heterotrain_rpc import session_pb2 as pb

WELCOME = pb.Welcome(term=1, incarnation=1, worker=2, num_workers=3, shards=["h:1", "h:2"])
GRANT = Grant(-1, 0, 0, (SampleRange(0, 0, 4),), None, 1)


@dataclass
class FakeStream:
    """Gives the messages of `script`, whatever kind is waited for; keeps what is sent."""

    script: deque[dict[str, Any]]
    sent: list[pb.WorkerMessage] = field(default_factory=list)
    last: pb.WorkerMessage | None = None

    def open(self) -> pb.Welcome:
        return WELCOME

    def wait(self, kind: str) -> pb.CoordinatorMessage:
        return pb.CoordinatorMessage(**self.script.popleft())

    def send(self, message: pb.WorkerMessage) -> None:
        self.sent.append(message)

    send_first = send

    def check(self) -> None:
        """The session lives."""

    def close(self, last: pb.WorkerMessage) -> None:
        self.last = last


@dataclass
class FakeShard:
    """Answers every push and pull alike."""

    push_status: PushStatus = PushStatus.COMPLETE
    refusal: str = ""
    pulled: list[int] = field(default_factory=list)
    receive_seconds: float = 0.125

    def push(self, key: PushKey, parts: Sequence[Part], *, timeout_seconds: float) -> PushStatus:
        return self.push_status

    def pull(
        self, term: int, version: int, parts: Sequence[Part], *, wait_seconds: float, timeout_seconds: float
    ) -> PullStatus:
        if self.refusal:
            raise RefusedError(self.refusal)
        self.pulled.append(version)
        return PullStatus.DONE

    def close(self) -> None:
        """Nothing is open."""


def configured(
    shards: Sequence[FakeShard], *script: dict[str, Any]
) -> tuple[JobEngine, FakeStream, nn.Linear, Gradients]:
    """An engine that has agreed on a small model, and where the model's gradients are summed."""
    stream = FakeStream(deque([{"manifest_accepted": pb.ManifestAccepted()}, *script]))
    engine = JobEngine(
        "a-0", cast("SessionStream", stream), GrantsAtHand(), lambda i, _: cast("TensorClient", shards[i]),
        clock=lambda: 0.0, sleep=lambda _: None,
    ).open()  # fmt: skip
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    setup = Setup(describe_model(model, optimizer.param_groups), optimizer, 8, torch.device("cpu"))
    gradients = engine.configure(setup)
    stream.sent.clear()
    return engine, stream, model, gradients


def test_after_the_end_of_an_epoch_it_says_which_version_it_holds() -> None:
    shards = [FakeShard(), FakeShard()]
    grant = pb.GrantMessage(term=1, iteration=0, version=0, ranges=[pb.Range(stop=4)])
    end = pb.EpochEndMessage(term=1, epoch=0, version=2, schedule_step=2)
    last = pb.TrainingEndMessage(term=1, version=3, reason="over")
    engine, stream, _, _ = configured(shards, {"grant": grant}, {"epoch_end": end}, {"training_end": last})
    engine.next_item()
    assert stream.sent == []
    engine.next_item()
    assert stream.sent == [pb.WorkerMessage(heartbeat=pb.Heartbeat(version=2))]
    engine.next_item()
    assert len(stream.sent) == 1
    assert [s.pulled for s in shards] == [[0, 2, 3], [0, 2, 3]]


def test_a_refused_gradient_names_shard_and_tensors() -> None:
    engine, stream, model, gradients = configured([FakeShard(), FakeShard(PushStatus.NOT_FINITE)])
    model(torch.ones(1, 2)).sum().backward()
    assert model.bias.grad is not None
    model.bias.grad[1] = float("nan")
    gradients.add(1.0)
    engine.submit(Update(GRANT, None, data_seconds=0.0, compute_seconds=0.0))
    (message,) = stream.sent
    assert (message.done.refused, message.done.refusal) == (True, "ps-1: bias")


@pytest.mark.parametrize(
    ("failure", "want"),
    [
        pytest.param(None, pb.WorkerMessage(goodbye=pb.Goodbye()), id="well"),
        pytest.param("ValueError: x", pb.WorkerMessage(failure=pb.Failure(error="ValueError: x")), id="by itself"),
    ],
)
def test_the_last_word_says_how_the_script_ended(failure: str | None, want: pb.WorkerMessage) -> None:
    engine, stream, _, _ = configured([FakeShard(), FakeShard()])
    engine.close(failure)
    assert stream.last == want


def test_who_loses_a_shard_names_it_to_the_coordinator_and_to_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    end = pb.EpochEndMessage(term=1, epoch=0, version=2)
    shards = [FakeShard(), FakeShard()]
    engine, stream, _, _ = configured(shards, {"epoch_end": end})
    shards[1].refusal = "the parameter server is shutting down"
    with pytest.raises(PeerLostError) as raised:
        engine.next_item()
    assert raised.value.shard == "ps-1"
    engine.close()
    reason = "parameter server ps-1 refused this worker: the parameter server is shutting down"
    assert stream.last == pb.WorkerMessage(failure=pb.Failure(error=reason, lost_shard="ps-1"))
    assert capsys.readouterr().err == f"heterotrain: worker a-0 ends: {reason}\n"


def test_what_it_hands_in_says_how_long_it_received_of_the_time_that_the_pull_took() -> None:
    ahead = {"grant": pb.GrantMessage(term=1, iteration=1, version=1, ranges=[pb.Range(start=4, stop=8)])}
    engine, stream, _, _ = configured([FakeShard(), FakeShard(receive_seconds=0.25)], ahead, ahead)
    engine.start(1)
    engine.next_item()
    engine.submit(Update(GRANT, None, data_seconds=0.0, compute_seconds=0.5))
    engine.next_item()  # stands on the version that is held already
    engine.submit(Update(GRANT, None, data_seconds=0.0, compute_seconds=0.5))
    first, second = (m.done.timings for m in stream.sent if m.HasField("done"))
    assert first == pb.Timings(compute_seconds=0.5, receive_seconds=0.25)
    assert second == pb.Timings(compute_seconds=0.5)


GRANTED = {"grant": pb.GrantMessage(term=1, iteration=0, version=0, ranges=[pb.Range(stop=4)])}
AHEAD = {"grant": pb.GrantMessage(term=1, iteration=1, version=1, ranges=[pb.Range(start=4, stop=8)])}
LEAVING = pb.WorkerMessage(leaving=pb.Leaving())


def test_told_to_end_it_hands_in_what_it_computes_and_takes_no_more() -> None:
    shards = [FakeShard(), FakeShard()]
    engine, stream, _, _ = configured(shards, GRANTED, AHEAD)
    engine.next_item()
    assert not engine.leave(), "a grant is under way"
    engine.submit(Update(GRANT, None, data_seconds=0.0, compute_seconds=0.0))
    with pytest.raises(LeftJobError) as left:
        engine.next_item()
    assert (left.value.code, left.value.handed_in) == (0, True)
    assert [s.pulled for s in shards] == [[0, 1], [0, 1]], "the version that has its gradient was waited for"
    assert [m.WhichOneof("body") for m in stream.sent] == ["leaving", "done"]


def test_told_to_end_with_nothing_under_way_it_may_end_at_once() -> None:
    engine, stream, _, _ = configured([FakeShard(), FakeShard()], GRANTED, {"epoch_end": pb.EpochEndMessage(version=1)})
    assert engine.leave()
    assert stream.sent == [LEAVING]
    other, _, _, _ = configured([FakeShard(), FakeShard()], GRANTED, {"epoch_end": pb.EpochEndMessage(version=1)})
    other.next_item()
    other.next_item()
    assert other.leave(), "between two epochs"


def test_a_drained_worker_ends_at_its_next_evaluation_instead_of_waiting_for_the_others() -> None:
    end = pb.TrainingEndMessage(term=1, version=1, reason=DRAINED)
    engine, _, _, _ = configured([FakeShard(), FakeShard()], {"training_end": end})
    engine.next_item()
    with pytest.raises(LeftJobError, match="drained"):
        engine.evaluation_range(10)


def test_what_a_lost_worker_had_to_measure_is_measured_too() -> None:
    more, outcome = pb.EvaluationWork(call=1, start=3, stop=5), pb.EvaluationOutcome(call=1, sums={"": 5.0}, samples=5)
    first = {"evaluation_work": pb.EvaluationWork(call=1, start=0, stop=3)}
    engine, _, _, _ = configured(
        [FakeShard(), FakeShard()], first, {"evaluation_work": more}, {"evaluation_outcome": outcome}
    )
    work = Evaluation(lambda _model, x: x.sum(), TensorDataset(torch.ones(5)), 2)
    assert work.run(engine, nn.Identity(), torch.device("cpu"), Pace(1.0, Clocks())) == 1.0
