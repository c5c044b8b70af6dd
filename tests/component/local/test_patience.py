"""Commands for a local job whose coordinator does not answer in time: a real channel, a real deadline."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from heterotrain_api.contract import Role
from heterotrain_operator.cli import main
from heterotrain_operator.local.registry import Entry, LocalJob, Registry
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import make_authority
from heterotrain_rpc.channels import server_credentials
from heterotrain_rpc.control_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server
from heterotrain_rpc.identity import Identity

UID = "patience"


class Silent(CoordinatorServicer):
    """Notes what it is asked and answers nothing before the test is over. The names are gRPC's."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.over = threading.Event()

    def Watch(self, request: control_pb2.WatchRequest, context: Any) -> Iterator[control_pb2.JobState]:  # noqa: N802
        self.asked.append(request)
        self.over.wait(30)
        yield control_pb2.JobState()

    def Apply(self, request: control_pb2.Plan, context: Any) -> control_pb2.PlanVerdict:  # noqa: N802
        self.asked.append(request)
        self.over.wait(30)
        return control_pb2.PlanVerdict()

    def Command(self, request: control_pb2.CommandRequest, context: Any) -> control_pb2.CommandReply:  # noqa: N802
        self.asked.append(request)
        self.over.wait(30)
        return control_pb2.CommandReply()


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Silent]:
    """The coordinator of the running job `quiet`."""
    now, valid = datetime.now(UTC), timedelta(hours=1)
    authority = make_authority(UID, now, valid)
    server = grpc.server(ThreadPoolExecutor(2))
    coordinator = Silent()
    add_CoordinatorServicer_to_server(coordinator, server)
    own = authority.issue(Identity(UID, Role.PS, "ps-0"), now, valid)
    port = server.add_secure_port("127.0.0.1:0", server_credentials(own))
    server.start()
    monkeypatch.setenv("HETEROTRAIN_HOME", str(tmp_path))
    registry, me = Registry(tmp_path), psutil.Process()
    entry = Entry(
        job="quiet", uid=UID, manifest="", pid=os.getpid(), started=me.create_time(), report=str(tmp_path / "report"),
        coordinator=f"127.0.0.1:{port}",
    )  # fmt: skip
    with registry.claim("quiet"):
        registry.write(entry)
        job: LocalJob = registry.find("quiet")
        authority.issue(Identity(UID, Role.OPERATOR, "operator"), now, valid).write(job.credentials)
        yield coordinator
    coordinator.over.set()
    server.stop(0).wait()


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("drain", "quiet", "cpu-0"), "the command"),
        (("checkpoint", "quiet"), "the command"),
        (("plan", "set", "quiet", "cpu-0=3"), "the plan"),
    ],
    ids=["drain", "checkpoint", "plan set"],
)
def test_a_silent_coordinator_is_named_and_that_the_request_stays(
    silent: Silent, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], what: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--timeout", "1"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "the coordinator of job quiet has not answered within 1 s; the request stays with it, and "
        f"{what} may still be carried out: see `heterotrain plan show quiet`, or wait longer with --timeout\n"
    )
    assert len(silent.asked) == 1
