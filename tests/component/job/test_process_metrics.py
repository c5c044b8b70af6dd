"""``/metrics`` of a job's real processes, as a Prometheus would read them: coordinator, shard and worker."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from heterotrain_api.contract import Env
from support.ports import free_port
from support.real_job import SECONDS, RealJob
from support.watching import control, state_when
from support.zygote import Zygote, until

pytestmark = pytest.mark.timeout(240)

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "train_gated.py"
SHARES = {"a-0": 12, "b-0": 8}
BYTES_OF_THE_MODEL = 3 * 4
"""Two weights and a bias."""
MEASURED = ("coordinator", "ps-0", "a-0")
GATED_ROUND = 2


def scrape(port: int) -> dict[str, float]:
    """Samples as ``name{label=value}``, without the prefix."""
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False, timeout=20)
    assert answer.status_code == 200
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[sample.name.removeprefix("heterotrain_trainer_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def held(worker: dict[str, float]) -> dict[str, float] | None:
    return worker if worker["worker_version"] == GATED_ROUND else None


def refused(ports: Sequence[int]) -> list[bool]:
    def nobody(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    return [nobody(port) for port in ports]


def test_a_prometheus_reads_what_each_process_does(zygote: Zygote, tmp_path: Path) -> None:
    ports = {name: free_port() for name in MEASURED}
    extra = {name: {Env.METRICS: f"127.0.0.1:{port}"} for name, port in ports.items()}
    with RealJob(zygote, tmp_path / "job", SHARES, num_shards=1, extra=extra) as job, control(job.address) as stub:
        for name in SHARES:
            job.start_worker(name, SCRIPT, {"GATES": str(tmp_path), "EPOCHS": "1"})
        # Both workers compute on version 2 until the test lets them go on.
        state_when(stub, lambda s: s.version == GATED_ROUND)
        worker = until(lambda: held(scrape(ports["a-0"])), SECONDS, lambda: "the worker does not get the version")
        whole, shard = scrape(ports["coordinator"]), scrape(ports["ps-0"])
        (tmp_path / "0").touch()
        result = job.finish()
    assert result.codes == dict.fromkeys(SHARES, 0), result.errors

    assert {
        name: whole[name]
        for name in (
            "rounds", "samples", "epoch", "plan_generation", "restores_total", "gradients_total{staleness=0}",
            "member_share_samples{group=a,worker=a-0}", "member_samples_total{group=b,worker=b-0}",
            "member_phase{group=a,phase=Training,worker=a-0}", "largest_staleness", "shards",
        )
    } == {
        "rounds": 2, "samples": 40, "epoch": 0, "plan_generation": 1, "restores_total": 0,
        "gradients_total{staleness=0}": 4, "member_share_samples{group=a,worker=a-0}": 12,
        "member_samples_total{group=b,worker=b-0}": 16, "member_phase{group=a,phase=Training,worker=a-0}": 1,
        "largest_staleness": 0, "shards": 1,
    }  # fmt: skip
    assert whole["member_seconds{group=a,part=step,worker=a-0}"] > 0
    assert {
        name: shard[name]
        for name in ("shard_version", "shard_commit_seconds_count", "shard_pushes_total{status=complete}")
    } == {"shard_version": 2, "shard_commit_seconds_count": 2, "shard_pushes_total{status=complete}": 5}, (
        "two gradients of each worker, and the initial values"
    )
    assert shard["shard_received_bytes_total"] == 5 * BYTES_OF_THE_MODEL
    assert shard["shard_held_bytes"] >= BYTES_OF_THE_MODEL
    assert {
        name: worker[name]
        for name in (
            "worker_step_seconds_count", "worker_samples_total", "worker_version", "worker_share_samples",
            "worker_pushed_bytes_total", "worker_pulled_bytes_total", "worker_refused_total", "worker_plan_generation",
        )
    } == {
        "worker_step_seconds_count": 2, "worker_samples_total": 24, "worker_version": 2, "worker_share_samples": 12,
        "worker_pushed_bytes_total": 2 * BYTES_OF_THE_MODEL, "worker_pulled_bytes_total": 2 * BYTES_OF_THE_MODEL,
        "worker_refused_total": 0, "worker_plan_generation": 1,
    }  # fmt: skip
    assert worker["worker_seconds_total{part=compute}"] > 0
    assert refused(list(ports.values())) == [True] * len(ports), "each ends with its process"


def test_a_port_that_is_taken_costs_the_metrics_not_the_training(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "0").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        extra = {name: {Env.METRICS: address} for name in MEASURED}
        with RealJob(zygote, tmp_path / "job", {"a-0": 20}, num_shards=1, extra=extra) as job:
            worker = job.start_worker("a-0", SCRIPT, {"GATES": str(tmp_path), "EPOCHS": "1"})
            assert worker.wait(SECONDS) == 0, worker.stderr.read_text()
            result = job.finish()
            logs = [job.coordinator.stderr.read_text(), job.shards[0].stderr.read_text(), worker.stderr.read_text()]
    assert result.outcome["state"] == "Succeeded"
    assert [f"no metrics at {address}" in log for log in logs] == [True] * 3
