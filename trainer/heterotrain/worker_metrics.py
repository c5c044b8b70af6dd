"""What a worker tells Prometheus: its steps, where their time goes, and the bytes that it sends and gets."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from heterotrain.metrics import PREFIX
from heterotrain_core.types import Grant
from heterotrain_rpc import session_pb2 as pb

SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
PARTS: Final = ("data", "compute", "push", "pull")


class WorkerMetrics:
    """Written by the training thread, read by the server's. Figures are of this process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._steps = Histogram(
            f"{PREFIX}worker_step_seconds", "From one done to the next: the whole of a round.", buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self._spent = Counter(
            f"{PREFIX}worker_seconds", "Time spent in parts of rounds; pull includes waiting for others.", ["part"],
            registry=registry,
        )  # fmt: skip
        self._samples = Counter(f"{PREFIX}worker_samples", "Samples of pushed gradients.", registry=registry)
        self._refused = Counter(f"{PREFIX}worker_refused", "Gradients that were not finite.", registry=registry)
        self._pushed = Counter(f"{PREFIX}worker_pushed_bytes", "Of gradients.", registry=registry)
        self._pulled = Counter(f"{PREFIX}worker_pulled_bytes", "Of versions.", registry=registry)
        self._version = Gauge(f"{PREFIX}worker_version", "That the model holds.", registry=registry)
        self._plan = Gauge(f"{PREFIX}worker_plan_generation", "Plan of the last share.", registry=registry)
        self._share = Gauge(f"{PREFIX}worker_share_samples", "Samples of the last share.", registry=registry)

    def pulled(self, version: int, num_bytes: int) -> None:
        """The model holds a new version."""
        self._version.set(version)
        self._pulled.inc(num_bytes)

    def stepped(self, grant: Grant, timings: pb.Timings, num_bytes: int, *, refused: bool) -> None:
        """A gradient has been pushed and told."""
        self._steps.observe(timings.step_seconds)
        for part in PARTS:
            self._spent.labels(part).inc(getattr(timings, f"{part}_seconds"))
        self._samples.inc(grant.samples)
        self._refused.inc(refused)
        self._pushed.inc(num_bytes)
        self._share.set(grant.samples)
        self._plan.set(grant.plan_generation)
