"""Every service against every kind of caller, over real TLS."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass, replace

import grpc
import grpc.aio
import pytest

from heterotrain_api.contract import Role
from heterotrain_rpc import control_pb2, control_pb2_grpc, session_pb2, session_pb2_grpc, shard_pb2, shard_pb2_grpc
from heterotrain_rpc.authorization import Authorization, RefusalCause
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import (
    make_channel,
    make_server,
    make_sync_channel,
    server_credentials,
)
from heterotrain_rpc.identity import peer_identity
from support.credentials import (
    JOB_UID,
    OTHER_JOB_UID,
    credentials,
    expired_credentials,
    forged_credentials,
    strayed_credentials,
)


# The generated base classes answer UNIMPLEMENTED for the methods that a test leaves out.
class Coordinator(control_pb2_grpc.CoordinatorServicer):
    async def Apply(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        return control_pb2.PlanVerdict(accepted=True)

    async def Watch(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        yield control_pb2.JobState(job_name=peer_identity(context).name)


class Session(session_pb2_grpc.SessionServicer):
    async def Open(self, request_iterator, context):  # type: ignore[no-untyped-def]  # noqa: N802
        yield session_pb2.CoordinatorMessage()


class Shard(shard_pb2_grpc.ShardServicer):
    async def Publish(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        return shard_pb2.PublishReply()


@dataclass(frozen=True)
class Served:
    address: str
    authorization: Authorization


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    authorization = Authorization(JOB_UID)
    server = make_server(authorization)
    control_pb2_grpc.add_CoordinatorServicer_to_server(Coordinator(), server)  # type: ignore[abstract]
    session_pb2_grpc.add_SessionServicer_to_server(Session(), server)
    shard_pb2_grpc.add_ShardServicer_to_server(Shard(), server)  # type: ignore[abstract]
    port = server.add_secure_port("127.0.0.1:0", server_credentials(credentials(Role.PS, "ps-0")))
    await server.start()
    yield Served(f"127.0.0.1:{port}", authorization)
    await server.stop(None)


async def call_all(channel: grpc.aio.Channel) -> tuple[str, str, str, str]:
    """Status of Apply, Watch, Open and Publish.

    To Open nothing is said: of a call that is refused while a message is on its way gRPC may tell INTERNAL.
    """
    coordinator = control_pb2_grpc.CoordinatorStub(channel)
    session = session_pb2_grpc.SessionStub(channel)
    return (
        (await coordinator.Apply(control_pb2.Plan(), timeout=5).code()).name,
        await code_of(coordinator.Watch(control_pb2.WatchRequest(), timeout=5)),
        await code_of(session.Open(timeout=5)),
        (await shard_pb2_grpc.ShardStub(channel).Publish(shard_pb2.PublishRequest(), timeout=5).code()).name,
    )


async def code_of(stream: AsyncIterable[object]) -> str:
    """Status of a stream that is read to its end."""
    try:
        async for _ in stream:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


DENIED, UNKNOWN, REFUSED = "PERMISSION_DENIED", "UNAUTHENTICATED", "UNAVAILABLE"


@pytest.mark.parametrize(
    ("caller", "want_codes", "want_refusals"),
    [
        pytest.param(
            credentials(Role.OPERATOR, "operator"), ("OK", "OK", DENIED, DENIED), {RefusalCause.ROLE: 2}, id="operator"
        ),
        pytest.param(
            credentials(Role.WORKER, "cpu-0"), (DENIED, DENIED, "OK", DENIED), {RefusalCause.ROLE: 3}, id="worker"
        ),
        pytest.param(
            credentials(Role.PS, "ps-0"), (DENIED, DENIED, DENIED, "OK"), {RefusalCause.ROLE: 3}, id="parameter server"
        ),
        pytest.param(
            strayed_credentials(Role.OPERATOR, "operator"),
            (UNKNOWN,) * 4,
            {RefusalCause.OTHER_JOB: 4},
            id="operator of another job, same authority",
        ),
        pytest.param(
            replace(credentials(Role.OPERATOR, "operator", OTHER_JOB_UID), ca_pem=credentials(Role.PS, "ps-0").ca_pem),
            (REFUSED,) * 4,
            {},
            id="operator of another job, own authority",
        ),
        pytest.param(forged_credentials(Role.OPERATOR, "operator"), (REFUSED,) * 4, {}, id="forged operator"),
        pytest.param(expired_credentials(Role.OPERATOR, "operator"), (REFUSED,) * 4, {}, id="expired operator"),
    ],
)
async def test_who_may_call_what(
    served: Served, caller: Credentials, want_codes: tuple[str, ...], want_refusals: dict[RefusalCause, int]
) -> None:
    async with make_channel(served.address, "ps-0", caller) as channel:
        assert await call_all(channel) == want_codes
    assert served.authorization.refusals == Counter(want_refusals)


async def test_a_caller_without_certificate_is_refused(served: Served) -> None:
    plain = grpc.ssl_channel_credentials(credentials(Role.PS, "ps-0").ca_pem)
    options = [("grpc.ssl_target_name_override", "ps-0.heterotrain")]
    async with grpc.aio.secure_channel(served.address, plain, options) as channel:
        assert await call_all(channel) == (REFUSED,) * 4
    async with grpc.aio.insecure_channel(served.address) as channel:
        assert await call_all(channel) == (REFUSED,) * 4


async def test_a_client_refuses_a_server_that_is_not_the_one_it_means(served: Served) -> None:
    async with make_channel(served.address, "ps-1", credentials(Role.OPERATOR, "operator")) as channel:
        assert await call_all(channel) == (REFUSED,) * 4


async def test_a_handler_knows_who_calls(served: Served) -> None:
    async with make_channel(served.address, "ps-0", credentials(Role.OPERATOR, "operator")) as channel:
        stub = control_pb2_grpc.CoordinatorStub(channel)
        states = [s.job_name async for s in stub.Watch(control_pb2.WatchRequest(), timeout=5)]
    assert states == ["operator"]


async def test_a_unary_call_without_deadline_is_refused_before_it_is_sent(served: Served) -> None:
    operator = credentials(Role.OPERATOR, "operator")
    async with make_channel(served.address, "ps-0", operator) as channel:
        with pytest.raises(ValueError, match=r"heterotrain\.v1\.Coordinator/Apply has no deadline"):
            await control_pb2_grpc.CoordinatorStub(channel).Apply(control_pb2.Plan())
    with (
        make_sync_channel(served.address, "ps-0", operator) as sync_channel,
        pytest.raises(ValueError, match="has no deadline"),
    ):
        control_pb2_grpc.CoordinatorStub(sync_channel).Apply(control_pb2.Plan())
