"""``/metrics`` of a job's processes: where it is served, and that its page in the docs names each metric there is."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from heterotrain.coordinator.metrics import job_families
from heterotrain.metrics import PREFIX, can_serve, metrics_address
from heterotrain.ps.metrics import MeasuredStore
from heterotrain.worker_metrics import WorkerMetrics
from heterotrain_api.contract import Env
from heterotrain_rpc.control_pb2 import JobState, SynchronizationState, WorkerState

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
STATE = JobState(
    samples_per_second=1, ideal_samples_per_second=1, round_seconds=1, reported={"accuracy": 1},
    synchronization=SynchronizationState(bound_in_force=1, staleness={0: 1}),
    workers=[WorkerState(name="a-0", samples_per_second=1, step_seconds=1)],
)  # fmt: skip


def names(families: Iterable[object]) -> set[str]:
    return {
        family.name.removeprefix(PREFIX) + ("_total" if family.type == "counter" else "")  # type: ignore[attr-defined]
        for family in families
    }


def test_the_page_names_every_metric_and_no_other() -> None:
    described = set()
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `") and line.count("|") == 3:
            described |= set(re.findall(r"`([a-z_]+)`", line.split("|")[1]))
    stores = names([*MeasuredStore().registry.collect(), *WorkerMetrics().registry.collect()])
    assert described == names(job_families(STATE)) | stores


@pytest.mark.parametrize(
    ("value", "address"), [("", None), ("0.0.0.0:7073", ("0.0.0.0", 7073)), ("[::1]:0", ("::1", 0))]
)
def test_the_environment_says_where(value: str, address: tuple[str, int] | None) -> None:
    assert metrics_address({Env.METRICS: value}) == address


def test_without_the_package_the_log_says_so_and_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with caplog.at_level(logging.WARNING):
        assert not can_serve(("127.0.0.1", 9100))
        assert not can_serve(None)
    assert caplog.messages == [
        "no metrics at 127.0.0.1:9100: the package prometheus-client is missing: pip install 'heterotrain[trainer]'"
    ]
