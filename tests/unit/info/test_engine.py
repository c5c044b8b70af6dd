"""Store and rules together: refused and changed rules, what fails, what goes absent."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count

import pytest

from builders_info import NODE, make_rule, make_samples, make_step
from heterotrain_core.info.rules import Emit, Input, Output
from heterotrain_core.info.values import Entity, Metric, Sample
from heterotrain_operator.info.engine import Engine
from heterotrain_operator.info.events import EventLog
from heterotrain_operator.info.store import Limits, Outcome, Store
from heterotrain_operator.info.turns import Turns
from support.virtual_time import run_virtual

EWMA_1 = make_step("ewma", alpha=1)


def make_engine() -> Engine:
    return Engine(Store(Limits(retention_seconds=1000.0)), EventLog(), Turns(), clock=lambda: 0.0)


def value(engine: Engine, metric: str, now: float) -> float | str | None:
    reading = engine.store.get(NODE, metric, now)
    return None if reading is None else reading.value


def test_samples_are_stored_and_rules_applied_to_those_that_are_new() -> None:
    engine = make_engine()
    state = engine.set_rule(make_rule(make_step("ewma", alpha=0.5)))
    samples = [*make_samples([10, 20]), *make_samples([99], [1]), *make_samples([5], [900])]
    assert Counter(engine.ingest(samples, 2)) == {Outcome.STORED: 2, Outcome.DUPLICATE: 1, Outcome.FUTURE: 1}
    assert engine.store.span(NODE, "y", 0, 9) == [(0, 10), (1, 15)]
    assert (state.ready, state.error, state.samples, state.series, state.last_sample) == (True, "", 2, 1, 1)
    assert engine.outcomes.total() == 4


def test_a_refused_rule_has_its_reason_and_is_obeyed_once_the_way_is_free() -> None:
    engine = make_engine()
    engine.set_rule(
        make_rule(EWMA_1, name="p1", outputs={"value": Output(metric="x2")}, reads={"i": Input(metric="y")})
    )
    ring = make_rule(EWMA_1, name="p2", reads={"i": Input(metric="x2")})
    assert "ring: p2 -> p1 -> p2" in (engine.refusal(ring) or "")
    state = engine.set_rule(ring)
    assert (state.ready, "in a ring" in state.error) == (False, True)
    engine.ingest(make_samples([1], metric="x2"), 0)
    assert value(engine, "y", 0) is None
    engine.remove_rule("p1")
    assert (engine.states()["p2"].ready, engine.states()["p2"].error) == (True, "")
    engine.ingest(make_samples([2], [1], metric="x2"), 1)
    assert value(engine, "y", 1) == 2


def test_a_changed_rule_that_is_wrong_stops_and_says_so() -> None:
    engine = make_engine()
    engine.set_rule(make_rule(EWMA_1))
    state = engine.set_rule(make_rule(make_step("ewma", alpha=2), generation=2))
    engine.ingest(make_samples([1]), 0)
    assert (state.ready, state.generation, value(engine, "y", 0)) == (False, 2, None)
    assert state.error == "chain[0].alpha: must be more than 0 and at most 1"
    assert engine.set_rule(make_rule(EWMA_1, generation=3)).ready
    engine.ingest(make_samples([1], [1]), 1)
    assert value(engine, "y", 1) == 1


def test_the_same_rule_again_keeps_its_memory() -> None:
    engine = make_engine()
    engine.set_rule(make_rule(make_step("ewma", alpha=0.5)))
    engine.ingest(make_samples([10]), 0)
    engine.set_rule(make_rule(make_step("ewma", alpha=0.5)))
    engine.ingest(make_samples([20], [1]), 1)
    assert value(engine, "y", 1) == 15


def test_a_removed_rules_series_stops_and_its_past_stays() -> None:
    engine = make_engine()
    engine.set_rule(make_rule(EWMA_1))
    engine.ingest(make_samples([1]), 0)
    engine.remove_rule("rule")
    engine.ingest(make_samples([2], [1]), 1)
    assert engine.store.span(NODE, "y", 0, 9) == [(0, 1)]
    assert value(engine, "y", 100) is None
    assert engine.states() == {}


def test_a_rule_that_always_fails_is_named_and_stops_no_other() -> None:
    engine = make_engine()
    bad = engine.set_rule(
        make_rule(make_step("expr", expression="if(1, 'word')"), name="bad", outputs={"value": Output(metric="z")})
    )
    good = engine.set_rule(make_rule(EWMA_1, name="good"))
    for time in range(3):
        engine.ingest(make_samples([1], [time]), time)
    assert (bad.ready, bad.failures, good.ready, good.samples) == (False, 3, True, 3)
    assert bad.error == "node/a: z is a gauge, but the chain gives 'word'"


def test_a_stale_input_takes_its_output_along() -> None:
    engine = make_engine()
    engine.store.declare(Metric("x", ttl=10.0))
    engine.set_rule(make_rule(EWMA_1))
    engine.ingest(make_samples([1]), 0)
    assert [value(engine, "y", now) for now in (10, 10.5)] == [1, None]


def test_an_output_that_has_no_value_any_more_is_withdrawn() -> None:
    engine = make_engine()
    engine.set_rule(make_rule(make_step("expr", expression="1 / x")))
    engine.ingest(make_samples([2]), 0)
    engine.ingest(make_samples([0], [1]), 1)
    assert value(engine, "y", 1) is None
    assert engine.store.span(NODE, "y", 0, 9) == [(0, 0.5)]


def test_events_are_numbered_and_read_from_where_one_was() -> None:
    engine = make_engine()
    engine.set_rule(make_rule(make_step("threshold", hi=5, lo=5), emit=Emit.EVENT))
    engine.ingest(make_samples([9, 1, 9]), 2)
    assert [n.sequence for n in engine.events.since(0)] == [1, 2, 3]
    assert [(n.sequence, n.event.value) for n in engine.events.since(1, limit=1)] == [(2, "OK")]
    assert engine.events.since(3) == []
    assert engine.store.entities() != []
    assert engine.store.metric("y") is not None


def test_old_events_make_room_and_the_gap_can_be_seen() -> None:
    log = EventLog(capacity=2)
    engine = Engine(Store(), log, Turns(), clock=lambda: 0.0)
    engine.set_rule(make_rule(make_step("threshold", hi=5, lo=5), emit=Emit.EVENT))
    engine.ingest(make_samples([9, 1, 9]), 2)
    assert (log.first, log.last) == (2, 3)
    assert [n.sequence for n in log.since(0)] == [2, 3]


async def test_who_waits_for_events_is_woken() -> None:
    log = EventLog()
    engine = Engine(Store(), log, Turns(), clock=lambda: 0.0)
    engine.set_rule(make_rule(make_step("threshold", hi=5, lo=5), emit=Emit.EVENT))
    waiting = log.wait(0)
    engine.ingest(make_samples([9]), 0)
    await waiting
    assert log.last == 1


@pytest.mark.parametrize("count", [300])
def test_a_rule_whose_targets_explode_is_contained(count: int) -> None:
    engine = make_engine()
    state = engine.set_rule(make_rule(EWMA_1, cardinality=10))
    engine.ingest([Sample(Entity(f"node/{index}"), "x", 0, 1.0) for index in range(count)], 0)
    assert (state.series, state.samples, state.ready) == (10, 10, False)
    assert "more than 10 entities" in state.error
    assert len(engine.store.latest(0, metric="y")) == 10


def make_slow_engine() -> Engine:
    """Each look at the clock finds a slice over, so that others come between any two steps."""
    ticks = count()
    return Engine(Store(), EventLog(), Turns(lambda: float(next(ticks))), clock=lambda: 0.0)


def make_many(number: int, time: float = 0.0) -> list[Sample]:
    return [Sample(Entity(f"node/n{index}"), "x", time, float(index)) for index in range(number)]


def derived(engine: Engine) -> dict[str, float | str | None]:
    return {str(reading.entity): reading.value for reading in engine.store.latest(1.0, metric="y")}


def test_what_is_taken_up_gently_gives_what_it_gives_at_once() -> None:
    async def main() -> tuple[list[Outcome], Engine]:
        engine = make_slow_engine()
        engine.set_rule(make_rule(EWMA_1))
        return await engine.ingest_gently(make_many(200), 0.0), engine

    outcomes, gentle = run_virtual(main())
    at_once = make_engine()
    at_once.set_rule(make_rule(EWMA_1))
    assert at_once.ingest(make_many(200), 0.0) == outcomes
    assert derived(gentle) == derived(at_once) == {f"node/n{index}": float(index) for index in range(200)}
    assert gentle.states()["rule"].samples == at_once.states()["rule"].samples == 200
    assert gentle.outcomes == at_once.outcomes


@pytest.mark.parametrize("seconds", [0.15, 0.3, 0.45, 0.6])
@pytest.mark.parametrize("between", ["samples", "a period", "a changed rule", "a removed rule", "a sweep", "the end"])
def test_what_comes_between_finds_no_half_of_anything(between: str, seconds: float) -> None:
    """The rest of what has begun is done first: the rule sees every sample that was stored, and no other time."""

    async def main() -> Engine:
        engine = make_slow_engine()
        engine.set_rule(make_rule(EWMA_1))
        taking = asyncio.create_task(engine.ingest_gently(make_many(200), 0.0))
        await asyncio.sleep(seconds)
        assert (engine.store.size[0] >= 200, taking.done()) == (True, False)
        match between:
            case "samples":
                engine.ingest(make_samples([7]), 0.0)
            case "a period":
                engine.tick(0.0)
            case "a changed rule":
                engine.set_rule(make_rule(EWMA_1, generation=2))
            case "a removed rule":
                engine.remove_rule("rule")
            case "a sweep":
                engine.sweep(0.0)
            case _:
                taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        return engine

    want = {f"node/n{index}": float(index) for index in range(200)}
    if between == "samples":
        want[str(NODE)] = 7.0
    assert derived(run_virtual(main())) == want
