"""All rules together in virtual time: schedules, changes while running, pushes, and the packs on a whole node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest

from heterotrain_api.info_rules import ProcessingRule
from heterotrain_api.rule_conditions import RuleReason
from heterotrain_core.info.dryrun import check_rules
from heterotrain_core.info.values import ABSENT, Entity, Sample
from heterotrain_operator.info.collect import Collector
from heterotrain_operator.info.packs import CLUSTER, LOCAL, PROMETHEUS, load_packs, pack_names, pack_text
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.info.rules import compile_processing, load_rules
from heterotrain_operator.info.sources.base import Reason
from heterotrain_operator.info.telemetry import job_samples
from heterotrain_rpc import control_pb2
from support.info_world import START, World, make_collection, virtual_seconds
from support.scripted_web import Scripted
from support.virtual_time import run_virtual


def play(story: Callable[[World], Awaitable[None]], *args: Any, **options: Any) -> None:
    """Run a story beside a running service."""

    async def main() -> None:
        world = World(*args, **options)
        running = asyncio.create_task(world.service.run())
        await asyncio.sleep(0)
        await story(world)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.connections.close()

    run_virtual(main())


GOOD = Scripted(b"load 1\n")
TWICE = """
apiVersion: heterotrain.io/v1alpha1
kind: ProcessingRule
metadata: {name: twice}
spec:
  inputs: {load: {metric: load}}
  chain: [{operator: expr, expression: 2 * load}]
  output: {metric: twice}
"""


def test_rules_run_at_their_intervals_and_stop_when_removed() -> None:
    async def story(world: World) -> None:
        world.service.set_rule(make_collection(interval=5))
        await asyncio.sleep(60)
        runs = len(world.web.requests)
        assert 11 <= runs <= 13
        world.service.remove_rule(RuleKind.COLLECT, "rule")
        await asyncio.sleep(60)
        assert len(world.web.requests) == runs
        assert world.service.states() == []
        assert len(world.store.span(Entity("node/n1"), "load", 0, START + 999)) == runs

    play(story, lambda _: GOOD)


def test_a_rule_whose_source_tells_what_was_ten_minutes_ago_is_not_well_and_says_so() -> None:
    """Nothing newer is held that such samples would be too late for: the source was away before."""

    def old(_: httpx.Request) -> Scripted:
        return Scripted(f"load 1 {1000 * (virtual_seconds() - 600):.0f}\n".encode())

    async def story(world: World) -> None:
        world.service.set_rule(make_collection(interval=5))
        await asyncio.sleep(7)
        assert world.value("node/n1", "load") is ABSENT
        (state,) = world.service.states()
        assert (state.ready, state.reason) == (False, RuleReason.NO_SAMPLES)
        assert state.error == "no sample is fresh: the newest is 600 s old"

    play(story, old)


def test_a_changed_rule_counts_from_its_next_run() -> None:
    async def story(world: World) -> None:
        world.service.set_rule(make_collection())
        (rule,) = load_rules(TWICE)
        world.service.set_rule(rule)
        await asyncio.sleep(7)
        assert (world.value("node/n1", "load"), world.value("node/n1", "twice")) == (1, 2)
        world.service.set_rule(make_collection(metrics=[{"name": "load", "scale": 10}]))
        await asyncio.sleep(2)
        assert (world.value("node/n1", "load"), world.value("node/n1", "twice")) == (10, 20)

    play(story, lambda _: GOOD)


def test_a_rule_that_hangs_or_breaks_holds_up_no_other() -> None:
    async def story(world: World) -> None:
        world.service.set_rule(make_collection("good"))
        world.service.set_rule(make_collection("hangs", source={"endpoint": {"url": "http://silent:1/"}}))
        (rule,) = load_rules(TWICE.replace("2 * load", "\"'word'\"").replace("twice", "broken"))
        world.service.set_rule(rule)
        await asyncio.sleep(300)
        states = {state.name: state for state in world.service.states()}
        assert (states["good"].samples >= 55, states["good"].ready) == (True, True)
        assert states["hangs"].outcomes[Reason.TIMEOUT] > 3
        assert (states["broken"].ready, "the chain gives 'word'" in states["broken"].error) == (False, True)

    play(story, lambda request: Scripted(silent=True) if request.url.host == "silent" else GOOD)


def test_the_service_tells_of_itself() -> None:
    async def story(world: World) -> None:
        world.service.set_rule(make_collection("good", ttl=30))
        world.service.set_rule(make_collection("bad", source={"endpoint": {"url": "http://bad:1/"}}))
        (rule,) = load_packs(["derived-service"])
        world.service.set_rule(rule)
        await asyncio.sleep(100)
        assert world.value("rule/collect/good", "rule_ready") == 1
        assert world.value("rule/collect/good", "rule_data_age_seconds") <= 6
        assert world.value("rule/collect/good", "rule_data_old") == "OK"
        assert (
            world.value("rule/collect/bad", "rule_ready"),
            world.value("rule/collect/bad", "rule_failures_total"),
        ) == (0, 20)
        good.clear()
        await asyncio.sleep(100)
        assert world.value("rule/collect/good", "rule_data_old") == "HOT"
        assert [n.event.entity for n in world.events.since(0)] == ["rule/collect/good"]

    good = [GOOD]
    play(story, lambda request: good[0] if good and request.url.host == "n1" else Scripted(status=500))


PUSH = {
    "source": {"push": {"entities": ["worker/*/*/*"]}},
    "metrics": [{"name": "speed", "min": 0, "max": 100}, {"name": "phase", "type": "state"}],
    "cardinality": 2,
}


def test_pushes_are_taken_as_the_rule_says_and_refused_by_place() -> None:
    async def story(world: World) -> None:
        state = world.service.set_rule(make_collection("trainers", **PUSH))
        now = virtual_seconds()
        a, b = Entity("worker/ns/j/a"), Entity("worker/ns/j/b")
        pushed = world.service.push([
            Sample(a, "speed", now, 5.0),
            Sample(a, "speed", now, 5.0),
            Sample(a, "speed", now + 1, 500.0),
            Sample(a, "phase", now, 3.0),
            Sample(a, "phase", now, "Training"),
            Sample(b, "speed", now, 5.0),
            Sample(Entity("node/x"), "speed", now, 5.0),
            Sample(a, "other", now, 5.0),
            Sample(a, "speed", now - 10, 5.0),
        ])  # fmt: skip
        assert pushed.stored == 2
        assert [place for place, _ in pushed.refused] == [2, 3, 5, 6, 7, 8]
        assert [reason.split(":")[0] for _, reason in pushed.refused] == [
            "speed must be between 0 and 100",
            "phase is a state",
            "rule trainers has 2 series, which is its cardinality",
            "rule trainers does not take speed of node/x",
            "no rule with source push has metric other",
            "is older than the newest of its series, or than what is kept",
        ]
        assert (world.value(a, "speed"), state.samples, state.series, state.ready) == (5.0, 2, 2, True)
        world.service.remove_rule(RuleKind.COLLECT, "trainers")
        assert world.service.push([Sample(a, "speed", now + 1, 5.0)]).stored == 0

    play(story)


def make_job_state(**seconds: float) -> control_pb2.JobState:
    training = control_pb2.WORKER_PHASE_TRAINING
    workers = [
        control_pb2.WorkerState(
            name=name,
            phase=training,
            samples=90,
            share_applied=9,
            samples_per_second=9 / s,
            compute_seconds=s,
            host="h",
        )
        for name, s in seconds.items()
    ]
    return control_pb2.JobState(
        job_name="fashion", phase=control_pb2.PHASE_TRAINING, samples=270, version=10, samples_per_second=20,
        ideal_samples_per_second=40, workers=workers,
    )  # fmt: skip


def test_a_straggler_is_found_by_the_packs_and_the_others_stay_quiet() -> None:
    async def story(world: World) -> None:
        for rule in load_packs(["trainer", "derived-trainer"]):
            world.service.set_rule(rule)
        for second in range(40):
            slow = 1.0 if second < 20 else 2.0
            state = make_job_state(a=1.0, b=1.02, c=slow, d=0.98)
            assert world.service.push(job_samples("ns", state, virtual_seconds())).refused == ()
            await asyncio.sleep(1)
        hot = [n.event for n in world.events.since(0)]
        assert [(e.entity, e.value) for e in hot] == [("worker/ns/fashion/c", "HOT")]
        assert 20 <= hot[0].time - START <= 23
        assert world.value("job/ns/fashion", "job_efficiency") == 0.5
        assert world.value("worker/ns/fashion/a", "worker_phase") == "Training"

    play(story)


def test_what_is_not_known_yet_is_no_sample() -> None:
    waiting = control_pb2.JobState(
        job_name="fashion",
        phase=control_pb2.PHASE_WAITING,
        workers=[control_pb2.WorkerState(name="a", phase=control_pb2.WORKER_PHASE_ABSENT, samples_per_second=7)],
    )
    assert {(s.entity, s.metric): s.value for s in job_samples("ns", waiting, 5.0)} == {
        ("job/ns/fashion", "job_samples_total"): 0.0,
        ("job/ns/fashion", "job_version"): 0.0,
        ("job/ns/fashion", "job_phase"): "Waiting",
        ("worker/ns/fashion/a", "worker_phase"): "Absent",
    }


class Node:
    """A Prometheus over nodes of 4 cores, scraped every `scrape` seconds; some have a hog from a time on."""

    def __init__(self, hogs: Mapping[str, float], scrape: float) -> None:
        self._hogs = hogs
        self._scrape = scrape

    def __call__(self, request: httpx.Request) -> Scripted:
        now = virtual_seconds()
        scraped = now - now % self._scrape
        query = request.url.params["query"]
        result = []
        for node in ("a", "b"):
            busy = 0.2 * (scraped - START) + 3.7 * max(0.0, scraped - START - self._hogs.get(node, 1e9))
            if "timestamp(" in query:
                value = scraped
            elif "idle|iowait" in query:
                value = busy
            elif query.startswith("count"):
                value = 4.0
            else:
                continue
            result.append({"metric": {"instance": f"{node}:9100"}, "value": [now, f"{value}"]})
        return Scripted(
            httpx.Response(200, json={"status": "success", "data": {"resultType": "vector", "result": result}}).content
        )


@pytest.mark.parametrize("scrape", [5.0, 15.0, 30.0])
def test_a_hog_on_one_node_is_told_within_three_scrapes_and_the_other_node_stays_quiet(scrape: float) -> None:
    async def story(world: World) -> None:
        (rule,) = load_packs(["node-exporter"])
        assert rule.kind == "CollectionRule"
        source = {"prometheus": {"url": "http://prom:9090"}}
        document = {**rule.spec.to_document(), "source": source}
        world.service.set_rule(make_collection("node-exporter", **document))
        for derived in load_packs(["derived-node"]):
            world.service.set_rule(derived)
        await asyncio.sleep(120)
        assert world.value("node/a", "node_contention") == pytest.approx(0.05, abs=0.01)
        assert world.value("node/a", "node_capability_cores") == pytest.approx(3.8, abs=0.1)
        await asyncio.sleep(120)
        events = [n.event for n in world.events.since(0)]
        assert [(e.entity, e.value) for e in events] == [("node/a", "HOT")]
        told = events[0].time - START - 122
        assert 0 < told <= 3 * scrape
        assert world.value("node/a", "node_capability_cores") < 0.5
        assert world.value("node/b", "node_contended") == "OK"

    play(story, Node({"a": 122.0}, scrape))


@pytest.mark.parametrize("packs", [LOCAL, CLUSTER, PROMETHEUS], ids=["local", "cluster", "prometheus"])
def test_the_packs_of_each_setting_go_together(packs: tuple[str, ...]) -> None:
    rules = load_packs(packs)
    names = [(rule.kind, rule.metadata.name) for rule in rules]
    assert len(set(names)) == len(names)
    check_rules([compile_processing(rule) for rule in rules if isinstance(rule, ProcessingRule)])


@pytest.mark.parametrize("name", pack_names())
def test_every_pack_is_a_file_of_valid_rules(name: str) -> None:
    assert load_packs([name])
    assert pack_text(name).startswith("# ")


def test_an_unknown_pack_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="there are cadvisor, "):
        pack_text("../secret")


def test_an_unforeseen_failure_of_ours_is_counted_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        async def read(self, spec: object, now: float) -> Any:
            raise ZeroDivisionError("ours")

    async def main() -> None:
        world = World()
        collector = Collector(world.engine, {"endpoint": Broken()}, virtual_seconds, lambda: 0.5, clock=lambda: 0.0)
        state = collector.set_rule(make_collection())
        await collector.run("rule")
        assert (state.ready, state.error) == (False, "unexpected: ZeroDivisionError: ours")

    run_virtual(main())
    assert "not foreseen" in caplog.text
