"""The store: what is kept, what is refused, what is absent, and that memory stays flat."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.info.values import ABSENT, Entity, Metric, MetricType, Sample
from heterotrain_operator.info.ring import Ring
from heterotrain_operator.info.store import EntityInfo, Limits, Outcome, Store

A, B = Entity("node/a"), Entity("node/b")


def make_store(**limits: float) -> Store:
    store = Store(Limits(**limits))  # type: ignore[arg-type]
    store.declare(Metric("x", ttl=10.0))
    return store


def put(
    store: Store, time: float, value: float | str, metric: str = "x", entity: Entity = A, now: float = math.nan
) -> Outcome:
    return store.put(Sample(entity, metric, time, value), time if math.isnan(now) else now)


def test_a_value_is_there_until_its_ttl_and_absent_after_it() -> None:
    store = make_store()
    put(store, 100, 7.0)
    at_the_end, after = store.get(A, "x", 110), store.get(A, "x", 110.001)
    assert at_the_end is not None
    assert after is not None
    assert (at_the_end.value, after.value, after.time) == (7.0, ABSENT, 100)
    assert [r.value for r in store.latest(200)] == [ABSENT]


def test_a_withdrawn_value_is_absent_at_once_and_its_past_stays() -> None:
    store = make_store()
    put(store, 1, 7.0)
    store.withdraw(A, "x")
    assert [r.value for r in store.latest(1)] == [ABSENT]
    assert store.span(A, "x", 0, 9) == [(1, 7.0)]
    put(store, 2, 8.0)
    assert [r.value for r in store.latest(2)] == [8.0]


@pytest.mark.parametrize(
    ("sample", "now", "want"),
    [
        pytest.param(Sample(A, "x", 50, 1.0), 50, Outcome.DUPLICATE, id="the same time again, whatever the value"),
        pytest.param(Sample(A, "x", 49, 1.0), 50, Outcome.LATE, id="older than the newest"),
        pytest.param(Sample(B, "x", 1, 1.0), 9000, Outcome.LATE, id="older than the retention"),
        pytest.param(Sample(A, "x", 56, 1.0), 50, Outcome.FUTURE, id="from a clock that is ahead"),
        pytest.param(Sample(A, "x", 55, 1.0), 50, Outcome.STORED, id="a little ahead"),
        pytest.param(Sample(A, "x", 51, math.nan), 51, Outcome.NOT_FINITE, id="no number"),
        pytest.param(Sample(A, "x", math.nan, 1.0), 51, Outcome.NOT_FINITE, id="no time"),
        pytest.param(Sample(A, "x", 51, "HOT"), 51, Outcome.WRONG_TYPE, id="a word for a gauge"),
        pytest.param(Sample(A, "x", 51, math.inf), 51, Outcome.STORED, id="infinity, which robust z gives"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(sample: Sample, now: float, want: Outcome) -> None:
    store = make_store()
    put(store, 50, 0.0)
    before = store.span(A, "x", 0, 99)
    assert store.put(sample, now) is want
    assert (store.span(A, "x", 0, 99) == before) == (want is not Outcome.STORED)


def test_series_beyond_the_limit_find_no_room_until_others_are_swept() -> None:
    store = make_store(series=1, retention_seconds=100.0)
    assert put(store, 0, 1.0) is Outcome.STORED
    assert put(store, 0, 1.0, entity=B) is Outcome.NO_ROOM
    assert store.sweep(101) == 1
    assert put(store, 101, 1.0, entity=B) is Outcome.STORED
    assert store.entities() == [EntityInfo(B, {}, ("x",))]


def test_the_oldest_make_room_for_the_newest() -> None:
    store = make_store(samples_per_series=3, retention_seconds=1000.0)
    for time in range(5):
        put(store, time, float(time))
    assert store.span(A, "x", 0, 9) == [(2, 2.0), (3, 3.0), (4, 4.0)]
    put(store, 1003.5, 5.0)
    assert store.span(A, "x", 0, 2000) == [(4, 4.0), (1003.5, 5.0)]


def test_a_full_store_lets_no_series_grow() -> None:
    store = make_store(samples=3)
    for time in range(10):
        put(store, time, float(time))
        put(store, time, float(time), entity=B)
    assert store.size == (2, 3)
    assert [store.span(entity, "x", 0, 99) for entity in (A, B)] == [[(8, 8.0), (9, 9.0)], [(9, 9.0)]]


def test_undeclared_metrics_are_forgotten_with_their_last_series() -> None:
    store = make_store(retention_seconds=10.0)
    put(store, 0, 1.0, metric="once")
    put(store, 0, "word", metric="text")
    assert [m.name for m in store.metrics()] == ["once", "text", "x"]
    store.sweep(11)
    assert [m.name for m in store.metrics()] == ["x"]
    assert store.entities() == []


def test_a_metric_that_becomes_one_of_words_begins_anew() -> None:
    store = make_store()
    put(store, 1, 1.0)
    store.declare(Metric("x", MetricType.STATE, ttl=10.0))
    assert put(store, 2, "HOT") is Outcome.STORED
    assert store.span(A, "x", 0, 9) == [(2, "HOT")]


@pytest.mark.parametrize(
    ("aggregate", "want"),
    [
        ("mean", [(0, 2.0), (10, 10.0)]),
        ("min", [(0, 1.0), (10, 10.0)]),
        ("max", [(0, 3.0), (10, 10.0)]),
        ("sum", [(0, 4.0), (10, 10.0)]),
        ("count", [(0, 2.0), (10, 1.0)]),
        ("median", [(0, 2.0), (10, 10.0)]),
        ("first", [(0, 1.0), (10, 10.0)]),
        ("last", [(0, 3.0), (10, 10.0)]),
    ],
)
def test_a_span_is_reduced_over_steps_that_begin_at_multiples(aggregate: str, want: list[tuple[float, float]]) -> None:
    store = make_store()
    for time, value in ((1, 1.0), (9, 3.0), (10, 10.0)):
        put(store, time, value)
    assert store.span(A, "x", 0, 10, step=10, aggregate=aggregate) == want


@pytest.mark.parametrize(
    ("step", "aggregate", "message"),
    [(0.0, "mean", "step must be more than 0"), (1.0, "mode", "unknown aggregate"), (1.0, "mean", "needs numbers")],
)
def test_impossible_reductions_are_refused_in_words(step: float, aggregate: str, message: str) -> None:
    store = make_store()
    put(store, 1, "word", metric="text")
    with pytest.raises(ValueError, match=message):
        store.span(A, "text", 0, 9, step=step, aggregate=aggregate)


def test_changes_come_in_order_and_only_after_the_revision() -> None:
    store = make_store()
    put(store, 1, 1.0)
    seen = store.revision
    put(store, 1, 1.0, entity=B)
    put(store, 2, 2.0)
    assert [(r.entity, r.value) for r in store.changes(seen, 2)] == [(B, 1.0), (A, 2.0)]
    assert store.changes(store.revision, 2) == []


def test_entities_and_latest_are_chosen_by_name_and_label() -> None:
    store = make_store()
    for entity in (A, B):
        put(store, 1, 1.0, entity=entity)
    put(store, 1, 1.0, entity=Entity("pod/ns/p"))
    store.set_labels(A, {"zone": "one"})
    store.set_labels(Entity("node/unknown"), {"zone": "one"})
    assert [e.entity for e in store.entities("node")] == [A, B]
    assert [e.entity for e in store.entities("*", {"zone": "one|two"})] == [A]
    assert [r.entity for r in store.latest(1, "node/*", "x", {"zone": "!one"})] == [B]


def test_memory_is_flat_while_entities_come_and_go_for_a_day() -> None:
    store = make_store(retention_seconds=600.0, samples_per_series=64)
    sizes = []
    for minute in range(24 * 60):
        now = minute * 60.0
        for slot in range(5):  # each lives five minutes
            put(store, now, 1.0, entity=Entity(f"pod/ns/{slot}-{minute // 5}"), now=now)
        store.sweep(now)
        sizes.append(store.size)
    assert max(sizes[30:]) == max(sizes[-30:])
    assert max(sizes)[0] <= 5 * 4


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.floats(0.1, 5), st.floats(-9, 9), st.booleans(), st.integers(0, 8)), max_size=40),
)
def test_a_ring_is_a_list_that_forgets_its_beginning(
    capacity: int, steps: list[tuple[float, float, bool, int]]
) -> None:
    model: list[tuple[float, float | str]] = []
    ring, time = Ring(capacity, numeric=True), 0.0
    for elapsed, value, may_grow, drop in steps:
        time += elapsed
        slots = ring.allocated
        if ring.full and len(ring) and not (may_grow and slots < capacity):
            model = model[1:]
        model = [*model, (time, value)]
        ring.append(time, value, may_grow=may_grow)
        if drop == 0:
            ring.drop_before(time - 4)
            model = [one for one in model if one[0] >= time - 4]
        assert list(ring.between(-1, time)) == model
        assert list(ring.between(time - 3, time - 1)) == [one for one in model if time - 3 <= one[0] <= time - 1]
        assert ring.allocated <= capacity
        assert ring.last() == model[-1]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), max_size=60))
def test_a_series_has_every_time_once_and_in_order(puts: list[tuple[int, int]]) -> None:
    store = make_store()
    outcomes: Counter[Outcome] = Counter()
    for time, entity in puts:
        outcomes[store.put(Sample(Entity(f"node/{entity}"), "x", time, 1.0), 9)] += 1
    kept = [store.span(info.entity, "x", 0, 9) for info in store.entities()]
    assert all(times == sorted(set(times)) for times in kept)
    assert outcomes[Outcome.STORED] == sum(map(len, kept))
