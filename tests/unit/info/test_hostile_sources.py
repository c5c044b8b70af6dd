"""Sources that answer wrongly: every way has its name, nothing wrong is served, and the next good answer counts."""

from __future__ import annotations

import asyncio
import json
import math
import random
from email.utils import formatdate
from typing import Any

import httpx
import pytest

from heterotrain_operator.info.readers import ReaderSettings
from heterotrain_operator.info.sources.base import Reason
from heterotrain_operator.info.sources.web import WebSettings
from heterotrain_operator.info.store import Outcome
from support.info_world import START, World, make_collection, virtual_seconds
from support.scripted_web import Scripted
from support.virtual_time import run_virtual

GOOD = Scripted(b"load 1.5\n")
SETTINGS = ReaderSettings(web=WebSettings(max_bytes=1000))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(Scripted(silent=True), Reason.TIMEOUT, id="takes the request and says nothing"),
        pytest.param(Scripted(b"load 9\n" * 30, chunk=1, seconds_between=0.1), Reason.TIMEOUT, id="a slow trickle"),
        pytest.param(Scripted(fails=httpx.ConnectError), Reason.CONNECT, id="no connection"),
        pytest.param(Scripted(fails=httpx.ReadError), Reason.CONNECT, id="a connection that breaks"),
        pytest.param(Scripted(fails=httpx.ReadTimeout), Reason.TIMEOUT, id="a timeout below"),
        pytest.param(Scripted(b"load 9\n" * 200), Reason.TOO_LARGE, id="more than the cap"),
        pytest.param(Scripted(status=302, headers={"location": "http://n2/"}), Reason.REDIRECT, id="a redirect"),
        pytest.param(Scripted(b"load 9\n", status=401), Reason.DENIED, id="no rights"),
        pytest.param(Scripted(b"load 9\n", status=404), Reason.HTTP_STATUS, id="not found"),
        pytest.param(Scripted(b"load 9\n", status=503), Reason.HTTP_STATUS, id="a server's error"),
        pytest.param(
            Scripted(b"load 9\n", headers={"content-type": "text/html"}), Reason.NOT_METRICS, id="HTML by its type"
        ),
        pytest.param(Scripted(b"<html>load 9</html>"), Reason.NOT_METRICS, id="HTML by its look"),
        pytest.param(Scripted(b"\x1f\x8b\x08\xff"), Reason.NOT_METRICS, id="bytes that are no text"),
        pytest.param(
            Scripted(b"\x1f\x8b", headers={"content-encoding": "gzip"}), Reason.NOT_METRICS, id="compressed unasked"
        ),
        pytest.param(Scripted(b"load nine\n"), Reason.MALFORMED, id="a value that is a word"),
        pytest.param(Scripted(b'load{a="b 9\n'), Reason.MALFORMED, id="a line that is cut off"),
        pytest.param(Scripted(b""), Reason.EMPTY, id="nothing at all"),
        pytest.param(Scripted(b"# HELP load x\n"), Reason.EMPTY, id="comments only"),
    ],
)
def test_a_wrong_answer_has_a_name_and_serves_nothing(answer: Scripted, reason: Reason) -> None:
    async def play() -> None:
        answers = [GOOD, answer, GOOD]
        world = World(lambda _: answers.pop(0), settings=SETTINGS)
        state = world.collector.set_rule(make_collection(timeout=2))
        await world.collector.run("rule")
        assert (state.ready, world.value("node/n1", "load")) == (True, 1.5)
        await asyncio.sleep(20)  # past the ttl of three intervals
        await world.collector.run("rule")
        assert (state.ready, state.outcomes[reason], state.failures) == (False, 1, 1)
        assert state.error.startswith(f"{reason}: ")
        assert world.value("node/n1", "load") is None
        await world.collector.run("rule")
        assert (state.ready, state.error, world.value("node/n1", "load")) == (True, "", 1.5)
        await world.connections.close()

    run_virtual(play())


@pytest.mark.parametrize(
    ("body", "outcome", "trouble"),
    [
        pytest.param("load NaN\n", "not_finite", "values are not finite: load is nan", id="NaN"),
        pytest.param("load +Inf\n", "not_finite", "values are not finite: load is inf", id="infinity"),
        pytest.param("other 1\n", "empty", "metrics without a series: none for load", id="another metric only"),
        pytest.param(f"load 9 {(START + 60) * 1000:.0f}\n", "future", "", id="a clock that is ahead"),
        pytest.param(f"load 9 {(START - 9000) * 1000:.0f}\n", "late", "", id="a value of long ago"),
    ],
)
def test_a_wrong_value_is_counted_and_not_stored(body: str, outcome: str, trouble: str) -> None:
    async def play() -> None:
        world = World(lambda _: Scripted(body.encode()))
        state = world.collector.set_rule(make_collection())
        await world.collector.run("rule")
        assert (state.ready, state.outcomes[outcome]) == (False, 1)
        assert trouble in state.error
        assert state.error
        assert world.value("node/n1", "load") is None
        await world.connections.close()

    run_virtual(play())


def test_a_good_series_is_stored_beside_a_bad_one() -> None:
    async def play() -> None:
        world = World(
            lambda _: Scripted(
                b'load{instance="a:1"} 1\nload{instance="b"} NaN\nload{instance="{"} 2\nload{instance="a"} 3\n'
            )
        )
        state = world.collector.set_rule(make_collection())
        await world.collector.run("rule")
        assert (world.value("node/a", "load"), world.value("node/b", "load")) == (1.0, None)
        assert {key: state.outcomes[key] for key in ("not_finite", "unmapped", "several", "stored")} == {
            "not_finite": 1, "unmapped": 1, "several": 1, "stored": 1,
        }  # fmt: skip
        assert state.ready
        assert "1 series name no entity: load {instance={}" in state.error
        await world.connections.close()

    run_virtual(play())


def test_a_clock_that_differs_is_corrected_by_the_date_that_the_server_tells() -> None:
    async def play() -> None:
        behind = 600.0

        def answer(_: httpx.Request) -> Scripted:
            there = virtual_seconds() - behind
            return Scripted(f"load 1 {there * 1000:.0f}\n".encode(), headers={"date": formatdate(there, usegmt=True)})

        world = World(answer)
        state = world.collector.set_rule(make_collection())
        times = []
        for _ in range(3):
            await world.collector.run("rule")
            times.append(world.store.latest(virtual_seconds())[0].time - virtual_seconds())
            await asyncio.sleep(5)
        assert all(abs(time) <= 1 for time in times)
        assert len({round(time, 6) for time in times}) == 1, "the same correction each time"
        assert state.outcomes["clock_skew"] == 3
        await world.connections.close()

    run_virtual(play())


def test_a_target_that_keeps_failing_is_asked_less_often_and_found_again() -> None:
    async def play() -> None:
        broken = True

        def answer(_: httpx.Request) -> Scripted:
            return Scripted(status=500) if broken else GOOD

        world = World(answer)
        world.service.set_rule(make_collection())
        running = asyncio.create_task(world.service.run())
        await asyncio.sleep(600)
        state = world.collector.states()["rule"]
        assert 10 <= len(world.web.requests) <= 20, "about one a minute after the first ones, not one in 5 s"
        assert state.outcomes[Reason.BREAKER_OPEN] > 90
        broken = False
        await asyncio.sleep(65)
        assert (state.ready, world.value("node/n1", "load")) == (True, 1.5)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.connections.close()

    run_virtual(play())


SOURCE = {"prometheus": {"url": "http://prom:9090", "values": {"job": 'a"b\\'}}}
BY_NODE = [{"name": "node/{node}"}]


def success(kind: str, result: Any) -> Any:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


@pytest.mark.parametrize(
    ("document", "status", "reason"),
    [
        pytest.param({"status": "error", "error": "parse error"}, 400, Reason.QUERY, id="a query that is refused"),
        pytest.param({"status": "error", "error": "overloaded"}, 200, Reason.QUERY, id="an error with status 200"),
        pytest.param({"status": "error", "error": "down"}, 503, Reason.HTTP_STATUS, id="a server that is not ready"),
        pytest.param([1, 2], 200, Reason.MALFORMED, id="another document"),
        pytest.param(success("vector", [{"metric": {}, "value": [1]}]), 200, Reason.MALFORMED, id="a pair of one"),
        pytest.param(
            success("vector", [{"metric": {"a": 1}, "value": [1, "1"]}]), 200, Reason.MALFORMED, id="labels of numbers"
        ),
        pytest.param(success("vector", 7), 200, Reason.MALFORMED, id="a result that is no list"),
        pytest.param(success("string", [1, "x"]), 200, Reason.QUERY, id="a text"),
        pytest.param(success("vector", []), 200, Reason.EMPTY, id="an empty vector is not 0"),
    ],
)
def test_a_prometheus_that_answers_wrongly_serves_nothing(document: Any, status: int, reason: Reason) -> None:
    async def play() -> None:
        world = World(lambda _: Scripted(json.dumps(document).encode(), status=status))
        rule = make_collection(source=SOURCE, entity=BY_NODE, metrics=[{"name": "load", "query": "load"}])
        state = world.collector.set_rule(rule)
        await world.collector.run("rule")
        assert (state.ready, state.outcomes[reason], world.store.latest(virtual_seconds())) == (False, 1, [])
        assert state.error
        await world.connections.close()

    run_virtual(play())


def vector(*series: tuple[dict[str, str], float, str]) -> bytes:
    result = [{"metric": labels, "value": [time, value]} for labels, time, value in series]
    return json.dumps(success("vector", result)).encode()


def test_one_refused_query_stops_no_other_and_values_are_escaped() -> None:
    async def play() -> None:
        def answer(request: httpx.Request) -> Scripted:
            if request.url.params["query"] == "bad(":
                return Scripted(b'{"status": "error", "error": "parse error"}', status=400)
            return Scripted(vector(({"node": "a"}, START, "2")))

        metrics = [{"name": "bad", "query": "bad("}, {"name": "load", "query": 'load{job="${job}"}'}]
        world = World(answer)
        state = world.collector.set_rule(make_collection(source=SOURCE, entity=BY_NODE, metrics=metrics))
        await world.collector.run("rule")
        assert world.value("node/a", "load") == 2.0
        assert world.web.requests[1].url.params["query"] == 'load{job="a\\"b\\\\"}'
        assert (state.ready, state.outcomes[Reason.QUERY]) == (True, 1)
        assert state.error == "bad: query: the query is refused: parse error"
        await world.connections.close()

    run_virtual(play())


def test_values_have_the_time_of_the_scrape_and_the_same_scrape_counts_once() -> None:
    async def play() -> None:
        def answer(request: httpx.Request) -> Scripted:
            now = virtual_seconds()
            scraped = now - now % 15
            value = f"{scraped}" if request.url.params["query"] == "timestamp(load)" else "7"
            return Scripted(vector(({"node": "a"}, now, value)))

        metric = {"name": "load", "query": "load", "timeQuery": "timestamp(load)"}
        world = World(answer)
        state = world.collector.set_rule(make_collection(source=SOURCE, entity=BY_NODE, metrics=[metric]))
        for _ in range(4):
            await world.collector.run("rule")
            await asyncio.sleep(5)
        assert [time - START for time, _ in world.store.span("node/a", "load", 0, START + 99)] == [0, 15]  # type: ignore[arg-type]
        assert (state.ready, state.outcomes[Outcome.DUPLICATE]) == (True, 2)
        await world.connections.close()

    run_virtual(play())


def test_a_range_gives_all_its_values_and_those_seen_before_are_known() -> None:
    async def play() -> None:
        def answer(request: httpx.Request) -> Scripted:
            start, end = (float(request.url.params[name]) for name in ("start", "end"))
            values = [[time, f"{time - START}"] for time in range(math.ceil(start), int(end) + 1, 5)]
            document = success("matrix", [{"metric": {"node": "a"}, "values": values}])
            return Scripted(json.dumps(document).encode())

        metric = {"name": "load", "query": "load", "range": 20, "step": 5}
        world = World(answer)
        state = world.collector.set_rule(make_collection(source=SOURCE, entity=BY_NODE, metrics=[metric]))
        await world.collector.run("rule")
        assert world.value("node/a", "load") == 0.0
        await asyncio.sleep(10)
        await world.collector.run("rule")
        assert world.value("node/a", "load") == 10.0
        assert (state.samples, state.error) == (7, "")
        await world.connections.close()

    run_virtual(play())


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://169.254.169.254/latest/meta-data", "is a metadata service"),
        ("http://[fe80::1]/", "is a metadata service"),
        ("http://[::ffff:169.254.169.254]/", "is a metadata service"),
        ("http://metadata.google.internal./x", "is a metadata service"),
        ("http://other.example/metrics", "is not among the hosts that the settings allow"),
    ],
)
def test_hosts_that_rules_must_not_ask_are_not_asked(url: str, reason: str) -> None:
    async def play() -> None:
        world = World(settings=ReaderSettings(web=WebSettings(allowed_hosts=("*.svc", "169.*"))))
        state = world.collector.set_rule(make_collection(source={"endpoint": {"url": url}}))
        await world.collector.run("rule")
        assert world.web.requests == []
        assert state.outcomes[Reason.FORBIDDEN] == 1
        assert reason in state.error
        await world.connections.close()

    run_virtual(play())


def test_an_hour_of_hostile_answers_crashes_nothing_and_serves_nothing_wrong() -> None:
    """The truth at time t is t itself: whatever is served as present is the truth of its time, and not too old."""

    async def play() -> None:
        chance = random.Random(7)

        def truth() -> float:
            return virtual_seconds() - START

        def answer(_: httpx.Request) -> Scripted:
            now = truth()
            good = Scripted(f"load {now!r}\n".encode())
            return chance.choice([
                good, good, good, good,
                Scripted(silent=True),
                Scripted(f"load {now!r}".encode(), chunk=1, seconds_between=0.5),
                Scripted(fails=httpx.ConnectError), Scripted(fails=httpx.RemoteProtocolError),
                Scripted(b"<html>load 9e9</html>"), Scripted(b"load 9e9\n", status=500),
                Scripted(b"load 9e9\n", status=302),
                Scripted(b"load NaN\n"), Scripted(b""), Scripted(b"load 9e9\n" * 200), Scripted(b'load{a="'),
                Scripted(f"load 9e9 {(START + now + 999) * 1000:.0f}\n".encode()),
                Scripted(f"load 9e9 {(START - 9999) * 1000:.0f}\n".encode()),
            ])  # fmt: skip

        world = World(answer, settings=SETTINGS)
        world.service.set_rule(make_collection(interval=2, ttl=6))
        running = asyncio.create_task(world.service.run())
        fresh = 0
        for _ in range(3600):
            await asyncio.sleep(1)
            reading = world.store.latest(virtual_seconds(), "node/n1", "load")
            if reading and reading[0].value is not None:
                fresh += 1
                assert reading[0].value == pytest.approx(reading[0].time - START, abs=0.01)
                assert 0 <= virtual_seconds() - reading[0].time <= 6
        assert not running.done()
        assert 1000 < fresh < 3600, "both happened: values, and none"
        outcomes = world.collector.states()["rule"].outcomes
        seen = {Reason.TIMEOUT, Reason.CONNECT, Reason.NOT_METRICS, Reason.HTTP_STATUS, Reason.REDIRECT, Reason.EMPTY,
                Reason.TOO_LARGE, Reason.MALFORMED, Outcome.NOT_FINITE, Outcome.FUTURE, Outcome.LATE}  # fmt: skip
        assert {reason for reason in seen if not outcomes[reason]} == set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.connections.close()

    run_virtual(play())
