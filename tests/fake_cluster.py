"""A cluster in memory for the operator's decisions: what is made stays, pods run if told to, every write is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from builders_operator import NOW, SETTINGS, UID, make_job, make_pod, make_service
from heterotrain_api.contract import Container, Label
from heterotrain_operator.job.decide import decide
from heterotrain_operator.job.decision import Decision
from heterotrain_operator.job.event_log import EventLog
from heterotrain_operator.job.memory import Memory
from heterotrain_operator.job.observed import ContainerEnd, ContainerSeen, Observed, PodSeen, TrainingSeen


@dataclass(slots=True)
class FakeCluster:
    """Holds one job and its children; `run_pass` decides and carries out."""

    job: dict[str, Any] = field(default_factory=make_job)
    pods: dict[str, PodSeen] = field(default_factory=dict)
    has_secret: bool = False
    has_service: bool = False
    training: TrainingSeen | None = None
    now: datetime = NOW
    writes: int = 0
    uids: int = 0
    made: list[str] = field(default_factory=list)
    """Names of all pods that were ever made."""
    memory: Memory = field(default_factory=lambda: Memory(UID, EventLog(timedelta(minutes=10))))
    decisions: list[Decision] = field(default_factory=list)

    def run_pass(self, *, creates: int = 10_000, writes_status: bool = True) -> Decision:
        """One pass; the operator dies after `creates` pods, or before the status is written."""
        decision = decide(self._observed(), SETTINGS, self.now)
        self.decisions.append(decision)
        for made in (decision.secret, decision.service):
            self.writes += made is not None
        self.has_secret |= decision.secret is not None
        self.has_service |= decision.service is not None
        for make in decision.make[:creates]:
            self._create(make.manifest)
        if len(decision.make) > creates:
            return decision
        self.memory.remember_made([make.name_in_job for make in decision.make], self.now)
        for delete in decision.delete:
            self.writes += 1
            self.delete(delete.name)
        if decision.status is not None and writes_status:
            self.writes += 1 + len(decision.events)
            self.job = self.job | {"status": dict(decision.status)}
        return decision

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def delete(self, name: str, *, at_once: bool = False) -> None:
        """Delete a pod: it ends in its grace, or is gone at once."""
        if at_once:
            del self.pods[name]
        else:
            self.pods[name] = replace(self.pods[name], deleting=True)

    def start(self, name: str) -> None:
        """The pod's containers run and answer."""
        pod = self.pods[name]
        if pod.phase == "Pending":
            running = tuple(ContainerSeen(seen.name, "running") for seen in pod.containers)
            self.pods[name] = replace(pod, phase="Running", node="node-1", ready=True, containers=running)

    def end(self, name: str, code: int, message: str = "", container: str = Container.TRAINER) -> None:
        """A container of the pod ends."""
        pod = self.pods[name]
        end = ContainerEnd(code, "Completed" if code == 0 else "Error", message, self.now)
        containers = tuple(
            ContainerSeen(seen.name, "terminated", end=end) if seen.name == container else seen
            for seen in pod.containers
        )
        over = all(seen.end is not None for seen in containers)
        good = over and all(seen.end is not None and seen.end.exit_code == 0 for seen in containers)
        phase = ("Succeeded" if good else "Failed") if over else pod.phase
        self.pods[name] = replace(pod, containers=containers, phase=phase, ready=False)

    def evict(self, name: str) -> None:
        self.pods[name] = replace(self.pods[name], phase="Failed", ready=False, disrupted="Evicted")

    @property
    def living(self) -> list[PodSeen]:
        """Pods that work, or may come to."""
        return [
            pod
            for pod in self.pods.values()
            if not pod.deleting and not pod.disrupted and pod.phase in ("Pending", "Running")
        ]

    def _create(self, manifest: Mapping[str, Any]) -> None:
        name, labels = manifest["metadata"]["name"], manifest["metadata"]["labels"]
        self.writes += 1
        if name in self.pods:
            return  # 409, and ours
        self.uids += 1
        self.made.append(name)
        pod = make_pod(
            f"{labels[Label.GROUP]}-{labels[Label.INDEX]}",
            attempt=int(labels[Label.ATTEMPT]),
            phase="Pending",
            node="",
        )
        self.pods[name] = replace(pod, uid=f"uid-{self.uids}", created_at=self.now)

    def _observed(self) -> Observed:
        return Observed(
            job=self.job,
            pods=tuple(sorted(self.pods.values(), key=lambda pod: pod.name)),
            service=make_service() if self.has_service else None,
            secret_present=self.has_secret,
            training=self.training,
            made=self.memory.made,
        )
