"""A worker's session stream against a scripted coordinator: joining, waking up, heartbeats, plans, and every end."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest

from heterotrain import PeerLostError
from heterotrain.stream import SessionStream
from heterotrain_api.contract import ExitCode
from heterotrain_rpc import control_pb2
from heterotrain_rpc import session_pb2 as pb
from heterotrain_rpc.session_pb2_grpc import SessionServicer, add_SessionServicer_to_server

SECONDS = 20.0
JOIN = pb.Join(worker="a-0", protocol_version=1)
GRANT = pb.GrantMessage(term=1, iteration=3, version=3)


def told(**body: Any) -> pb.CoordinatorMessage:
    return pb.CoordinatorMessage(**body)


@dataclass
class Coordinator(SessionServicer):
    """Says what it is given, notes what it hears. `None` ends a session, a status code breaks it."""

    welcome: pb.Welcome = field(default_factory=lambda: pb.Welcome(worker=2, heartbeat_seconds=60.0))
    heard: queue.Queue[pb.WorkerMessage] = field(default_factory=queue.Queue)
    says: queue.Queue[pb.CoordinatorMessage | grpc.StatusCode | None] = field(default_factory=queue.Queue)
    ends_at_last_word: bool = True
    sessions: int = 0

    def Open(self, request_iterator: Any, context: Any) -> Iterator[pb.CoordinatorMessage]:  # noqa: N802
        self.sessions += 1
        self.heard.put(next(request_iterator))
        yield told(welcome=self.welcome)
        reader = threading.Thread(target=self._read, args=(request_iterator,), daemon=True)
        reader.start()
        while (message := self.says.get()) is not None:
            if isinstance(message, grpc.StatusCode):
                context.abort(message, "by the test")
            yield message

    def _read(self, messages: Any) -> None:
        try:
            for message in messages:
                self.heard.put(message)
                if message.WhichOneof("body") in {"goodbye", "failure"} and self.ends_at_last_word:
                    self.says.put(None)
        except grpc.RpcError:
            return  # the session is over

    def hears(self) -> pb.WorkerMessage:
        return self.heard.get(timeout=SECONDS)


@contextmanager
def serving(coordinator: SessionServicer, address: str = "127.0.0.1:0") -> Iterator[str]:
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        add_SessionServicer_to_server(coordinator, server)
        port = server.add_insecure_port(address)
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            if isinstance(coordinator, Coordinator):
                coordinator.says.put(None)
            server.stop(0).wait()


def make_stream(address: str, **options: Any) -> SessionStream:
    def answer(welcome: pb.Welcome, proposal: pb.PlanProposal) -> pb.PlanAnswer:
        return pb.PlanAnswer(generation=proposal.plan.generation, accepted=False, reason=f"worker {welcome.worker}")

    return SessionStream(
        lambda: grpc.aio.insecure_channel(address), JOIN, answer, options.pop("on_item", lambda _item: None), **options
    )


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
def stream(coordinator: Coordinator) -> Iterator[SessionStream]:
    """An open one."""
    with serving(coordinator) as address:
        opened = make_stream(address)
        assert opened.open() == coordinator.welcome
        assert coordinator.hears() == pb.WorkerMessage(join=JOIN)
        yield opened
        coordinator.says.put(None)
        opened.close(pb.WorkerMessage(goodbye=pb.Goodbye()))


def reason_of(call: Callable[[], object]) -> tuple[str, int]:
    """Why a call says that the session is over, and the exit code that it ends the process with."""
    with pytest.raises(PeerLostError) as raised:
        call()
    assert isinstance(raised.value.code, int)
    return raised.value.reason, raised.value.code


def test_messages_are_kept_by_kind_and_in_order(coordinator: Coordinator, stream: SessionStream) -> None:
    ends = [told(epoch_end=pb.EpochEndMessage(epoch=0, version=4)), told(grant=GRANT)]
    for message in (told(grant=GRANT), told(evaluation_work=pb.EvaluationWork(call=1, stop=5)), *ends):
        coordinator.says.put(message)
    assert stream.wait("evaluation").evaluation_work.stop == 5
    assert [stream.wait("item") for _ in range(3)] == [told(grant=GRANT), *ends]


def test_items_are_announced_as_they_arrive(coordinator: Coordinator) -> None:
    arrived: queue.Queue[pb.CoordinatorMessage] = queue.Queue()
    with serving(coordinator) as address:
        stream = make_stream(address, on_item=arrived.put)
        stream.open()
        coordinator.says.put(told(grant=GRANT))
        assert arrived.get(timeout=SECONDS) == told(grant=GRANT)
        stream.close(pb.WorkerMessage(goodbye=pb.Goodbye()))


def test_plans_are_answered_while_nobody_waits(coordinator: Coordinator, stream: SessionStream) -> None:
    coordinator.says.put(told(plan_proposal=pb.PlanProposal(plan=control_pb2.Plan(generation=9))))
    assert coordinator.hears().plan_answer == pb.PlanAnswer(generation=9, accepted=False, reason="worker 2")
    stream.check()


def test_it_beats_while_nobody_sends() -> None:
    coordinator = Coordinator(pb.Welcome(heartbeat_seconds=0.02))
    with serving(coordinator) as address:
        stream = make_stream(address)
        stream.open()
        assert [coordinator.hears().WhichOneof("body") for _ in range(4)] == ["join", *["heartbeat"] * 3]
        stream.close(pb.WorkerMessage(goodbye=pb.Goodbye()))


def test_it_waits_for_a_coordinator_that_comes_later(coordinator: Coordinator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    stream = make_stream(address)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(stream.open)
        assert not opened.done()
        with serving(coordinator, address):
            assert opened.result(SECONDS) == coordinator.welcome
            stream.close(pb.WorkerMessage(goodbye=pb.Goodbye()))


def test_it_does_not_wait_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    reason, code = reason_of(make_stream(address, join_seconds=0.0).open)
    assert reason.startswith("the connection to the coordinator broke: UNAVAILABLE: ")
    assert code == ExitCode.PEER_LOST


class Refusing(SessionServicer):
    """Refuses every session in one way."""

    def __init__(self, answer: pb.CoordinatorMessage | grpc.StatusCode) -> None:
        self.answer = answer
        self.sessions = 0

    def Open(self, request_iterator: Any, context: Any) -> Iterator[pb.CoordinatorMessage]:  # noqa: N802
        self.sessions += 1
        next(request_iterator)  # a call that ends while its client still writes is tried again, whatever it said
        if isinstance(self.answer, grpc.StatusCode):
            context.abort(self.answer, "by the test")
        else:
            yield self.answer


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(
            grpc.StatusCode.PERMISSION_DENIED,
            "the connection to the coordinator broke: PERMISSION_DENIED: by the test",
            id="its certificate is another's",
        ),
        pytest.param(
            told(dismissal=pb.Dismissal(reason="it is in the job already", fault=True)),
            "the coordinator ended the session: it is in the job already",
            id="it is there already",
        ),
        pytest.param(
            told(manifest_accepted=pb.ManifestAccepted()),
            "the coordinator did not welcome this worker",
            id="something else than a welcome",
        ),
    ],
)
def test_a_refusal_is_final(answer: pb.CoordinatorMessage | grpc.StatusCode, want: str) -> None:
    refusing = Refusing(answer)
    with serving(refusing) as address:
        assert reason_of(make_stream(address).open) == (want, ExitCode.PEER_LOST)
    assert refusing.sessions == 1


@pytest.mark.parametrize(
    ("end", "reason", "code"),
    [
        pytest.param(
            told(dismissal=pb.Dismissal(reason="worker b-0 failed", fault=True)),
            "the coordinator ended the session: worker b-0 failed",
            ExitCode.PEER_LOST,
            id="dismissed since the job failed",
        ),
        pytest.param(
            told(dismissal=pb.Dismissal(reason="stopped on request")),
            "the coordinator ended the session: stopped on request",
            ExitCode.STOPPED,
            id="dismissed by the user's wish",
        ),
        pytest.param(None, "the coordinator ended the session", ExitCode.PEER_LOST, id="ended without a word"),
        pytest.param(
            grpc.StatusCode.UNAVAILABLE,
            "the connection to the coordinator broke: UNAVAILABLE: by the test",
            ExitCode.PEER_LOST,
            id="broken",
        ),
    ],
)
def test_whoever_waits_learns_the_end_and_so_does_everybody_later(
    coordinator: Coordinator, stream: SessionStream, end: Any, reason: str, code: ExitCode
) -> None:
    coordinator.says.put(told(grant=GRANT))
    coordinator.says.put(end)
    assert reason_of(lambda: stream.wait("evaluation")) == (reason, code)
    assert reason_of(stream.check) == (reason, code)
    assert reason_of(lambda: stream.send(pb.WorkerMessage(start=pb.Start(epochs=1)))) == (reason, code)
    # A grant is worth nothing once the job is gone.
    assert reason_of(lambda: stream.wait("item")) == (reason, code)


def test_the_end_of_training_counts_even_if_the_session_broke_after_it(
    coordinator: Coordinator, stream: SessionStream
) -> None:
    end = told(training_end=pb.TrainingEndMessage(version=7, reason="over"))
    coordinator.says.put(end)
    coordinator.says.put(None)
    reason_of(lambda: stream.wait("evaluation"))
    assert stream.wait("item") == end


def test_what_others_wait_for_has_left_when_the_thread_goes_on(
    coordinator: Coordinator, stream: SessionStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterotrain.stream.FIRST_SECONDS", SECONDS)
    done = pb.WorkerMessage(done=pb.Done(iteration=3))
    assert stream.send_first(done)
    assert coordinator.hears() == done


def test_a_message_that_cannot_leave_is_not_waited_for_long(
    stream: SessionStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(*_: object) -> None:
        """The stream's thread does not come to it."""

    with monkeypatch.context() as patch:
        patch.setattr(stream._loop, "call_soon_threadsafe", stuck)
        assert not stream.send_first(pb.WorkerMessage(done=pb.Done(iteration=3)))


@pytest.mark.parametrize("last", [pb.WorkerMessage(goodbye=pb.Goodbye()), pb.WorkerMessage(failure=pb.Failure())])
def test_the_last_word_comes_after_everything_else_and_ends_the_thread(
    coordinator: Coordinator, stream: SessionStream, last: pb.WorkerMessage
) -> None:
    reports = [pb.WorkerMessage(report=pb.Report(values={"n": float(n)})) for n in range(20)]
    for message in reports:
        stream.send(message)
    stream.close(last)
    assert [coordinator.hears() for _ in range(21)] == [*reports, last]
    assert "heterotrain-session" not in {thread.name for thread in threading.enumerate()}
    stream.close(last)
    assert coordinator.heard.empty()


def test_a_coordinator_that_does_not_end_the_session_is_not_waited_for(
    coordinator: Coordinator, stream: SessionStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.ends_at_last_word = False
    monkeypatch.setattr("heterotrain.stream.CLOSE_SECONDS", 0.05)
    goodbye = pb.WorkerMessage(goodbye=pb.Goodbye())
    stream.close(goodbye)
    assert coordinator.hears() == goodbye
    assert "heterotrain-session" in {thread.name for thread in threading.enumerate()}
