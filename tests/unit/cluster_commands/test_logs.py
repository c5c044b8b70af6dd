from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from heterotrain_operator.cluster.asking import AskingError
from heterotrain_operator.cluster.door import UserKube
from heterotrain_operator.cluster.logs import Mark, Source, fresh_lines, print_logs, seen_pods, sources
from heterotrain_operator.errors import ApiError

FIRST, SECOND = "2026-01-01T12:00:00.1Z", "2026-01-01T12:00:00.25Z"
UID = "u-1"
RUNNING: dict[str, Any] = {"running": {}}
PULLING = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}


def make_pod(name: str, group: str, index: int, attempt: int = 1, **state: Mapping[str, Any]) -> dict[str, Any]:
    """A pod on a node; `state`: of its containers."""
    place = {"role": "ps" if group == "ps" else "worker", "group": group, "index": str(index), "attempt": str(attempt)}
    meta = {
        "name": name,
        "uid": f"uid-of-{name}",
        "creationTimestamp": "2026-01-01T12:00:00Z",
        "labels": {f"heterotrain.io/{key}": value for key, value in place.items()},
        "ownerReferences": [{"uid": UID, "controller": True}],
    }
    statuses = [{"name": container, "state": how} for container, how in state.items()]
    return {
        "metadata": meta,
        "spec": {"nodeName": "n-1"},
        "status": {"phase": "Pending", "containerStatuses": statuses},
    }


def without_label(pod: dict[str, Any]) -> dict[str, Any]:
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if not key.endswith("index")}
    return pod | {"metadata": pod["metadata"] | {"labels": labels}}


def of_stranger(pod: dict[str, Any]) -> dict[str, Any]:
    return pod | {"metadata": pod["metadata"] | {"ownerReferences": [{"uid": "u-2", "controller": True}]}}


def test_processes_are_found_in_the_newest_pod_of_each() -> None:
    pods = [
        make_pod("j-cpu-0-10", "cpu", 0, 10, trainer=RUNNING),
        make_pod("j-cpu-0-9", "cpu", 0, 9, trainer=RUNNING),
        make_pod("j-ps-0-0", "ps", 0, 0, trainer=RUNNING, coordinator=RUNNING),
        of_stranger(make_pod("j-cpu-1-1", "cpu", 1)),
        without_label(make_pod("j-cpu-2-1", "cpu", 2)),
    ]
    assert sources(seen_pods(pods, UID)) == {
        "coordinator": Source("coordinator", "j-ps-0-0", "coordinator"),
        "cpu-0": Source("cpu-0", "j-cpu-0-10", "trainer"),
        "ps-0": Source("ps-0", "j-ps-0-0", "trainer"),
    }


@pytest.mark.parametrize(
    ("text", "mark", "want"),
    [
        pytest.param("", Mark(), ([], Mark()), id="nothing yet"),
        pytest.param(f"{FIRST} a b\n{FIRST} \n", Mark(), (["a b", ""], Mark(FIRST, 2)), id="all is new"),
        pytest.param(f"{FIRST} a\n{SECOND} b\n", Mark(FIRST, 1), (["b"], Mark(SECOND, 1)), id="the same second again"),
        pytest.param(f"{FIRST} a\n{FIRST} b\n", Mark(FIRST, 1), (["b"], Mark(FIRST, 2)), id="the same time again"),
        pytest.param(f"{FIRST} a\n{SECOND} b\n", Mark(SECOND, 1), ([], Mark(SECOND, 1)), id="nothing since"),
    ],
)
def test_no_line_is_shown_twice_or_lost(text: str, mark: Mark, want: tuple[list[str], Mark]) -> None:
    assert fresh_lines(text, mark) == want


def make_job(*, over: bool = False, conditions: tuple[dict[str, str], ...] = ()) -> dict[str, Any]:
    """Of one parameter server and the workers cpu-0 and cpu-1."""
    ended = ({"type": "Succeeded", "status": "True", "reason": "EpochsCompleted"},) if over else ()
    return {
        "metadata": {"name": "j", "namespace": "one", "uid": UID},
        "spec": {"parameterServers": {"replicas": 1}, "workers": [{"name": "cpu", "replicas": 2}]},
        "status": {"conditions": [*conditions, *ended]},
    }


class Scene(UserKube):
    """The cluster changes with each look at the job, up to the last of `jobs` and `pods`."""

    def __init__(
        self, jobs: list[dict[str, Any] | None], pods: list[list[dict[str, Any]]], logs: dict[str, str]
    ) -> None:
        self.jobs, self.pods, self.logs, self.looks = jobs, pods, logs, 0
        self.out: list[str] = []
        self.warnings: list[str] = []

    async def get_job(self, namespace: str, name: str) -> dict[str, Any] | None:
        self.looks += 1
        return self.jobs[min(self.looks, len(self.jobs) - 1)]

    async def list_pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        return self.pods[min(self.looks, len(self.pods) - 1)]

    async def read_log(self, namespace: str, pod: str, container: str, since: str = "") -> str:
        if pod not in self.logs:
            raise ApiError(500, "InternalError", "dial tcp: connection refused")
        return self.logs[pod]

    def play(self, process: str | None = None, *, follow: bool = False) -> str | None:
        """Returns what the command ends with; `None`: all is well."""
        assert self.jobs[0] is not None
        work = print_logs(self, self.jobs[0], process, self.out.append, self.warnings.append, follow=follow)
        try:
            asyncio.run(work)
        except AskingError as error:
            return str(error)
        return None


def test_a_pod_that_waits_is_told_of_beside_the_logs_of_the_others() -> None:
    pods = [
        make_pod("j-ps-0-1", "ps", 0, trainer=RUNNING, coordinator=RUNNING),
        make_pod("j-cpu-0-1", "cpu", 0, trainer=PULLING),
        make_pod("j-cpu-1-1", "cpu", 1, trainer=RUNNING),
    ]
    scene = Scene([make_job()], [pods], {"j-ps-0-1": f"{FIRST} up\n"})

    assert scene.play() is None
    assert scene.out == ["coordinator | up", "ps-0 | up"]
    assert scene.warnings == [
        "cpu-0 has no log yet: pod j-cpu-0-1 waits to start container trainer: ErrImagePull: no such image",
        "the log of cpu-1 cannot be read: pod j-cpu-1-1: dial tcp: connection refused (500 InternalError)",
    ]


def test_without_any_log_the_command_fails_and_says_how_to_wait() -> None:
    scene = Scene([make_job()], [[make_pod("j-cpu-0-1", "cpu", 0, trainer=PULLING)]], {})
    assert scene.play("cpu-0") == "there is no log of cpu-0; --follow waits for it"
    assert [line.split(":")[0] for line in scene.warnings] == ["cpu-0 has no log yet"]


def test_processes_without_a_pod_are_told_of_with_what_the_status_says() -> None:
    quota = {"type": "Accepted", "status": "False", "reason": "QuotaExceeded", "message": "exceeded quota: pods"}
    scene = Scene([make_job(conditions=(quota,))], [[]], {})
    assert scene.play() == "there is no log of any process of job j; --follow waits for it"
    assert scene.warnings == ["coordinator, ps-0, cpu-0, cpu-1 have no pod yet: QuotaExceeded: exceeded quota: pods"]


@pytest.mark.parametrize("over", [False, True], ids=["running", "over"])
def test_a_process_that_the_job_does_not_have_is_refused_with_those_there_are(over: bool) -> None:
    scene = Scene([make_job(over=over)], [[make_pod("j-cpu-0-1", "cpu", 0, trainer=RUNNING)]], {})
    assert scene.play("gpu-0") == "job j has no pod of gpu-0; there are: cpu-0"


def test_following_waits_for_the_pod_then_for_its_container_and_says_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain_operator.cluster.logs.POLL_SECONDS", 0.0)
    waiting, running = (make_pod("j-cpu-0-1", "cpu", 0, trainer=state) for state in (PULLING, RUNNING))
    pods = [[], [], [waiting], [waiting], [running], [running]]
    scene = Scene([*[make_job()] * 5, make_job(over=True)], pods, {"j-cpu-0-1": f"{FIRST} up\n"})

    assert scene.play("cpu-0", follow=True) is None
    assert scene.out == ["up"]
    assert [line.split(":")[0] for line in scene.warnings] == ["cpu-0 has no pod yet", "cpu-0 has no log yet"]


def test_following_ends_well_when_the_job_is_deleted_with_its_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain_operator.cluster.logs.POLL_SECONDS", 0.0)
    running = make_pod("j-cpu-0-1", "cpu", 0, trainer=RUNNING)
    scene = Scene([make_job(), None], [[running], []], {"j-cpu-0-1": f"{FIRST} up\n"})
    assert scene.play("cpu-0", follow=True) is None
    assert (scene.out, scene.warnings) == (["up"], [])


def test_following_ends_with_the_job_though_nothing_ever_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterotrain_operator.cluster.logs.POLL_SECONDS", 0.0)
    waiting = make_pod("j-cpu-0-1", "cpu", 0, trainer=PULLING)
    scene = Scene([make_job(), make_job(), make_job(over=True)], [[waiting]], {})
    assert scene.play("cpu-0", follow=True) == "there is no log of cpu-0"
