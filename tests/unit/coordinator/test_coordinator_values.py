"""The coordinator's pure parts: outcome, settings, clipping, messages."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from heterotrain.coordinator.messages import event_of, manifest_message, manifest_of, message_of, shares_of
from heterotrain.coordinator.outcome import TERMINATION_LIMIT_BYTES, exit_code, outcome_json, write_outcome
from heterotrain.coordinator.settings import SettingsError, read_settings
from heterotrain.coordinator.shards import clip_coefficient
from heterotrain_api.contract import Env, ExitCode, Port, Role
from heterotrain_api.trainer_config import ShardConfig, StopConfig, TrainerConfig, WorkerConfig
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.layout import TensorKind, TensorSpec
from heterotrain_core.run_values import Clip, Manifest, Outcome, Phase, RunReason, StopLimits, Timings
from heterotrain_core.types import Grant, SampleRange, Share
from heterotrain_rpc import control_pb2, session_pb2
from support.credentials import JOB_UID, OTHER_JOB_UID, credentials

OUTCOME = Outcome(Phase.SUCCEEDED, RunReason.EPOCHS_COMPLETED, "all trained", 9, 60, {"acc": 0.5}, "/out/m")


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (Phase.SUCCEEDED, ExitCode.SUCCEEDED),
        (Phase.STOPPED, ExitCode.STOPPED),
        (Phase.FAILED, ExitCode.FAILED),
    ],
)
def test_the_exit_code_tells_the_phase(phase: Phase, code: ExitCode) -> None:
    assert exit_code(Outcome(phase, RunReason.STOPPED, "", 0, 0)) is code


@pytest.mark.parametrize("letter", ["x", "é", "\x01", "𝄞"])
def test_an_outcome_is_one_object_that_fits_into_a_termination_message(letter: str) -> None:
    reported = {f"a value of number {i:03}": 0.1 * i for i in range(200)}
    text = outcome_json(Outcome(Phase.FAILED, RunReason.WORKER_FAILED, letter * 5000, 1, 2, reported))
    assert len(text.encode()) <= TERMINATION_LIMIT_BYTES
    read = json.loads(text)
    assert read["state"] == "Failed"
    assert read["message"].startswith(letter * 400)


@pytest.mark.parametrize("exists", [False, True], ids=["a new file", "a file that is mounted there"])
def test_an_outcome_replaces_what_was_there(tmp_path: Path, exists: bool) -> None:
    path = tmp_path / "log"
    if exists:
        path.write_text("x" * 10_000)
    write_outcome(OUTCOME, path)
    assert json.loads(path.read_text())["model"] == "/out/m"
    assert [p.name for p in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    ("parts", "clip", "coefficient"),
    [
        pytest.param([9.0, 16.0], Clip(1.0, 2.0), 1 / (5 + 1e-6), id="two shards, Euclidean"),
        pytest.param([3.0, 4.0], Clip(1.0, math.inf), 1 / (4 + 1e-6), id="the largest"),
        pytest.param([1.0, 2.0], Clip(1.5, 1.0), 1.5 / (3 + 1e-6), id="the sum"),
        pytest.param([9.0, 16.0], Clip(10.0, 2.0), 1.0, id="never enlarged"),
        pytest.param([0.0, 0.0], Clip(1.0, 2.0), 1.0, id="nothing to clip"),
    ],
)
def test_clipping_is_that_of_torch_over_all_shards(parts: list[float], clip: Clip, coefficient: float) -> None:
    assert clip_coefficient(parts, clip) == pytest.approx(coefficient, rel=1e-12)


def config(**changes: object) -> TrainerConfig:
    base = TrainerConfig(
        job_name="j",
        job_uid=JOB_UID,
        seed=1,
        global_batch_size=4,
        workers=(WorkerConfig(name="a-0", group="a", share=4, minimum=1, maximum=8),),
        shards=(ShardConfig(control_address="h:1", tensor_address="h:2"),),
        stop=StopConfig(rounds=5, target_name="acc", target_at_least=0.9),
        lease_seconds=12.0,
    )
    return base.model_copy(update=changes)


def environment(folder: Path, values: TrainerConfig) -> dict[str, str]:
    (folder / "config.json").write_text(values.model_dump_json())
    credentials(Role.PS, "ps-0").write(folder / "certificates")
    return {Env.CONFIG: str(folder / "config.json"), Env.CERTIFICATES: str(folder / "certificates")}


def test_settings_come_from_environment_and_command_line(tmp_path: Path) -> None:
    variables = {**environment(tmp_path, config()), Env.TERMINATION_LOG: "/x/log"}
    settings = read_settings(variables, ["--host", "127.0.0.1", "--port", "0"])
    assert (settings.host, settings.port, settings.termination_log) == ("127.0.0.1", 0, Path("/x/log"))
    assert settings.run_config(1).stop == StopLimits(rounds=5, target_name="acc", target_at_least=0.9)
    assert settings.heartbeat_seconds == 4.0
    assert read_settings(environment(tmp_path, config()), []).port == Port.COORDINATOR


@pytest.mark.parametrize(
    ("values", "without", "words"),
    [
        pytest.param(config(), Env.CONFIG, f"{Env.CONFIG} is not set", id="no configuration"),
        pytest.param(config(), Env.CERTIFICATES, f"{Env.CERTIFICATES} is not set", id="no certificates"),
        pytest.param(config(shards=()), "", "needs at least one worker and one shard", id="no shard"),
        pytest.param(config(job_uid=OTHER_JOB_UID), "", "the certificate is for", id="another job's certificate"),
    ],
)
def test_settings_that_cannot_be_used(tmp_path: Path, values: TrainerConfig, without: str, words: str) -> None:
    variables = {k: v for k, v in environment(tmp_path, values).items() if k != without}
    with pytest.raises(SettingsError, match=words):
        read_settings(variables, [])


def test_a_manifest_survives_the_way() -> None:
    tensors = (
        TensorSpec("w", (2, 3), "F32", TensorKind.PARAMETER, 0, aliases=("v", "u")),
        TensorSpec("scalar", (), "I64", TensorKind.INTEGER_BUFFER, -1),
    )
    manifest = Manifest(tensors, "AdamW", ('{"lr": 1}',), 7, smallest_batch=2)
    assert manifest_of(manifest_message(manifest)) == manifest


def test_a_done_is_understood_whole() -> None:
    message = session_pb2.Done(
        term=1,
        iteration=2,
        base_version=2,
        samples=3,
        refused=True,
        refusal="ps-1: w",
        groups=["{}"],
        max_norm=0.5,
        absent=[3],
        timings=session_pb2.Timings(
            data_seconds=1, compute_seconds=2, push_seconds=3, pull_seconds=4, step_seconds=5, receive_seconds=6,
            other_seconds=7,
        ),
    )  # fmt: skip
    times = Timings(data=1, compute=2, push=3, pull=4, step=5, receive=6, other=7)
    assert event_of("a-0", session_pb2.WorkerMessage(done=message)) == ev.Done(
        "a-0", 1, 2, 2, 3, "ps-1: w", ("{}",), Clip(0.5, 2.0), frozenset({3}), times
    )


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ({"heartbeat": session_pb2.Heartbeat()}, ev.Heartbeat("a-0")),
        ({"heartbeat": session_pb2.Heartbeat(version=0)}, ev.Heartbeat("a-0", version=0)),
        (
            {"failure": session_pb2.Failure(error="Traceback\n  \x1b[2Jx\nKeyError", lost_shard="ps-1\nps-2")},
            ev.WorkerFailed("a-0", "Traceback\n   [2Jx\nKeyError", "ps-1 ps-2"),
        ),
    ],
    ids=["a sign of life", "what the model holds, version 0 too", "an error, without control characters"],
)
def test_what_a_worker_says_is_understood(body: dict[str, Any], want: ev.WorkerEvent) -> None:
    assert event_of("a-0", session_pb2.WorkerMessage(**body)) == want


def test_a_grant_is_told_whole() -> None:
    grant = Grant(0, 4, 4, (SampleRange(1, 5, 8), SampleRange(1, 9, 10)), 2, 3)
    assert message_of(out.Work(grant, 6), term=1).grant == session_pb2.GrantMessage(
        term=1,
        iteration=4,
        version=4,
        epoch=1,
        ranges=[session_pb2.Range(epoch=1, start=5, stop=8), session_pb2.Range(epoch=1, start=9, stop=10)],
        micro_batch=2,
        plan_generation=3,
        schedule_step=6,
    )


def test_a_plan_that_names_a_worker_twice_is_not_understood() -> None:
    once = control_pb2.PlanShare(worker="a-0", samples=1, micro_batch=1)
    assert shares_of(control_pb2.Plan(shares=[once])) == {"a-0": Share(1, 1)}
    with pytest.raises(ValueError, match="named twice"):
        shares_of(control_pb2.Plan(shares=[once, once]))


@pytest.mark.parametrize("message", [session_pb2.WorkerMessage(), session_pb2.WorkerMessage(join=session_pb2.Join())])
def test_a_message_that_makes_no_sense_is_an_error(message: session_pb2.WorkerMessage) -> None:
    with pytest.raises(ValueError, match="unexpected message"):
        event_of("a-0", message)
