from __future__ import annotations

import grpc
import pytest

from heterotrain_api.contract import Role
from heterotrain_rpc import control_pb2, session_pb2, shard_pb2
from heterotrain_rpc.authorization import CALLERS, CallRefusal, RefusalCause, judge
from heterotrain_rpc.identity import Identity, IdentityError

COORDINATOR, SESSION, SHARD = "heterotrain.v1.Coordinator", "heterotrain.v1.Session", "heterotrain.v1.Shard"
HEALTH = "grpc.health.v1.Health"


@pytest.mark.parametrize(
    ("role", "want_services"),
    [
        pytest.param(Role.OPERATOR, {COORDINATOR, HEALTH}, id="the operator steers the coordinator"),
        pytest.param(Role.WORKER, {SESSION, HEALTH}, id="a worker has its session"),
        pytest.param(Role.PS, {SHARD, HEALTH}, id="a shard (and the coordinator beside it) calls shards"),
    ],
)
def test_each_role_may_call_its_own_services(role: Role, want_services: set[str]) -> None:
    allowed = {s for s in (*CALLERS, "heterotrain.v1.Other") if judge(Identity("u", role, "a-0"), s, "u") is None}
    assert allowed == want_services


def test_every_service_of_the_protocol_has_a_rule() -> None:
    modules = (control_pb2, session_pb2, shard_pb2)
    services = {s.full_name for m in modules for s in m.DESCRIPTOR.services_by_name.values()}
    assert services == set(CALLERS) - {HEALTH}


def test_refusals_say_why() -> None:
    worker = Identity("u", Role.WORKER, "cpu-0")
    assert [
        judge(IdentityError("the peer showed no certificate"), SESSION, "u"),
        judge(worker, SESSION, "v"),
        judge(worker, COORDINATOR, "u"),
        judge(worker, "x.Y", "u"),
    ] == [
        CallRefusal(RefusalCause.NO_IDENTITY, grpc.StatusCode.UNAUTHENTICATED, "the peer showed no certificate"),
        CallRefusal(
            RefusalCause.OTHER_JOB,
            grpc.StatusCode.UNAUTHENTICATED,
            "heterotrain://u/worker/cpu-0 is of another job than v",
        ),
        CallRefusal(
            RefusalCause.ROLE,
            grpc.StatusCode.PERMISSION_DENIED,
            "worker cpu-0 may not call heterotrain.v1.Coordinator; allowed: operator",
        ),
        CallRefusal(
            RefusalCause.ROLE,
            grpc.StatusCode.PERMISSION_DENIED,
            "worker cpu-0 may not call x.Y; allowed: nobody",
        ),
    ]
