"""The adaptation loop of a job in the operator: settings from its manifest, states in, plans out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heterotrain_core.adaptation.values import Action, Finding, NodeFact
from heterotrain_core.info.values import Entity, Sample
from heterotrain_operator.adapting import JobLoop, PlaceSeen
from heterotrain_operator.info.node_facts import node_fact
from heterotrain_operator.info.store import Store
from heterotrain_operator.metrics import Metrics
from heterotrain_rpc import control_pb2
from manifests import make_group, make_manifest

Answered = Callable[[control_pb2.PlanVerdict | str], None]


def job(generation: int = 1, **spec: Any) -> dict[str, Any]:
    document = make_manifest(globalBatchSize=40, **spec)
    document["metadata"] |= {"generation": generation, "namespace": "ml", "uid": "u"}
    return document


def state(version: int, fast: int = 20, slow: int = 20, generation: int = 1) -> control_pb2.JobState:
    workers = []
    for name, share, seconds in (("cpu-0", fast, 0.01), ("cpu-1", slow, 0.03)):
        records = [
            control_pb2.StepRecord(sequence=n, samples=share, compute_seconds=seconds * share, step_seconds=0.6)
            for n in range(1, version + 1)
        ]
        workers.append(
            control_pb2.WorkerState(
                name=name, phase=control_pb2.WORKER_PHASE_TRAINING, share_minimum=1, share_maximum=40, recent=records
            )
        )
    shares = [
        control_pb2.PlanShare(worker="cpu-0", samples=fast),
        control_pb2.PlanShare(worker="cpu-1", samples=slow),
    ]
    plan = control_pb2.PlanState(generation=generation, shares=shares)
    return control_pb2.JobState(phase=control_pb2.PHASE_TRAINING, version=version, plan=plan, workers=workers)


class Asked:
    """What was proposed, answered by the test."""

    def __init__(self) -> None:
        self.plans: list[tuple[int, dict[str, int]]] = []
        self.answers: list[Answered] = []

    def __call__(self, plan: control_pb2.Plan, answered: Answered) -> None:
        self.plans.append((plan.generation, {s.worker: s.samples for s in plan.shares}))
        self.answers.append(answered)


def test_a_plan_is_proposed_once_and_its_refusal_bounds_the_next() -> None:
    times = iter(range(0, 100, 6))
    loop, asked = JobLoop(lambda: float(next(times))), Asked()
    loop.follow(job())

    news = [loop.take("ml/fashion", state(version), asked) for version in (3, 8, 10)]
    asked.answers[0](control_pb2.PlanVerdict(refusals=[control_pb2.Refusal(worker="cpu-0", reason="no memory")]))
    for version in (12, 14):
        loop.take("ml/fashion", state(version), asked)

    assert news == [True, True, False]
    assert asked.plans == [(2, {"cpu-0": 30, "cpu-1": 10}), (2, {"cpu-0": 25, "cpu-1": 15})]


def test_without_an_answer_the_plan_is_proposed_again() -> None:
    times = iter(range(0, 100, 6))
    loop, asked = JobLoop(lambda: float(next(times))), Asked()
    loop.follow(job())
    loop.take("ml/fashion", state(8), asked)

    asked.answers[0]("the link was closed")
    for version in (10, 12, 14):
        loop.take("ml/fashion", state(version), asked)

    assert asked.plans == [(2, {"cpu-0": 30, "cpu-1": 10})] * 2


def test_an_edited_mode_counts_at_once_and_what_was_learned_stays() -> None:
    times = iter(range(0, 100, 6))
    loop, asked = JobLoop(lambda: float(next(times))), Asked()
    loop.follow(job(adaptation={"mode": "Recommend"}))
    loop.take("ml/fashion", state(8), asked)
    assert loop.decision is not None
    assert (loop.decision.action, asked.plans) == (Action.RECOMMEND, [])

    loop.follow(job(generation=2))
    for version in (10, 12, 14):
        loop.take("ml/fashion", state(version), asked)

    assert asked.plans == [(2, {"cpu-0": 30, "cpu-1": 10})]


def test_switched_off_it_says_nothing() -> None:
    loop, asked = JobLoop(lambda: 0.0), Asked()
    loop.follow(job(adaptation={"mode": "Off"}))

    assert loop.take("ml/fashion", state(8), asked) is False
    assert (loop.decision, asked.plans) == (None, [])


def test_a_manifest_that_cannot_be_read_leaves_things_as_they_are() -> None:
    loop, asked = JobLoop(lambda: 0.0), Asked()
    loop.follow({"metadata": {"name": "a", "generation": 1}, "spec": {"workers": 3}})

    assert loop.take("ml/fashion", state(8), asked) is False
    assert asked.plans == []


def test_a_slow_worker_is_told_with_what_its_node_does() -> None:
    times = iter(range(0, 1000, 6))
    busy = {"fashion-cpu-1-1": NodeFact("x", others_busy=0.93)}
    loop = JobLoop(lambda: float(next(times)), facts=lambda place: busy.get(place.pod))
    places = {"cpu-0": PlaceSeen("fashion-cpu-0-1", "y"), "cpu-1": PlaceSeen("fashion-cpu-1-1", "x")}
    loop.follow(job(workers=[make_group(replicas=2, batch={"min": 10})]))
    loop.place(places, {})

    for version in range(3, 15):
        said = state(version, 30, 10)
        said.workers[1].share_minimum = 10
        for record in said.workers[1].recent:
            record.compute_seconds = 2.0
            record.step_seconds = 2.0
        for record in said.workers[0].recent:
            record.step_seconds = 2.0
        loop.take("ml/fashion", said, Asked())

    assert loop.decision is not None
    (words,) = [found.words for found in loop.decision.found if found.kind is Finding.STRAGGLER]
    assert words.endswith("node x is 93% busy with other pods")


def test_what_a_rule_says_of_the_nodes_is_the_first_plan_before_any_step_and_never_beside_declared_shares() -> None:
    def proposed(**group: Any) -> list[tuple[int, dict[str, int]]]:
        store, asked = Store(), Asked()
        for node, speed in (("x", 900.0), ("y", 300.0)):
            store.put(Sample(Entity(f"node/{node}"), "node_training_speed", 100.0, speed), 100.0)
        loop = JobLoop(lambda: 0.0, facts=lambda place: node_fact(store, "ml", place.pod, place.node, 101.0))
        loop.follow(job(workers=[make_group(**group), make_group(name="b")]))
        loop.place({"cpu-0": PlaceSeen("p", "x"), "b-0": PlaceSeen("q", "y")}, {})
        said = state(0, *((25, 15) if group else (20, 20)))
        said.workers[1].name = said.plan.shares[1].worker = "b-0"
        loop.take("ml/fashion", said, asked)
        return asked.plans

    assert proposed() == [(2, {"cpu-0": 30, "b-0": 10})]
    assert proposed(batch={"initial": 25}) == []


def test_looks_decisions_and_answers_are_counted() -> None:
    times, cpu, metrics = iter(range(0, 100, 6)), iter(range(100)), Metrics()
    loop, asked = JobLoop(lambda: float(next(times)), metrics=metrics, cpu=lambda: float(next(cpu))), Asked()
    loop.follow(job())
    loop.take("ml/fashion", state(3), asked)
    loop.take("ml/fashion", state(8), asked)
    asked.answers[0](control_pb2.PlanVerdict(accepted=True, generation=2, effective_round=9))
    loop.take("ml/fashion", state(9), asked)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"heterotrain_operator_adaptation_{name}", labels)

    assert (value("looks_total"), value("cpu_seconds_total")) == (3, 3)
    assert value("decisions_total", action="Propose") == 1
    assert value("answers_total", verdict="agreed") == 1


def test_a_worker_that_is_replaced_is_remembered_until_it_runs_elsewhere() -> None:
    times = iter(range(0, 3000, 6))
    loop = JobLoop(lambda: float(next(times)))
    old, new = PlaceSeen("fashion-cpu-1-1", "x"), PlaceSeen("fashion-cpu-1-2", "y")
    others = {"cpu-0": PlaceSeen("fashion-cpu-0-1", "y")}
    loop.follow(
        job(workers=[make_group(replicas=2, batch={"min": 10})], adaptation={"escalation": ["Rebalance", "Replace"]})
    )
    assert loop.may_replace
    loop.place({**others, "cpu-1": old}, {})
    for version in range(3, 20):
        said = state(version, 30, 10)
        said.workers[1].share_minimum = 10
        for worker in said.workers:
            for record in worker.recent:
                record.step_seconds = 2.0
        for record in said.workers[1].recent:
            record.compute_seconds = 2.0
        loop.take("ml/fashion", said, Asked())
        if loop.replacing:
            break

    asked = dict(loop.replacing)
    loop.place(others, {})
    gone = dict(loop.replacing)
    loop.place({**others, "cpu-1": new}, {})

    assert asked == gone == {"cpu-1": old}
    assert loop.replacing == {}
