"""The event list and the watch stream: order, cursors that go on where they were, values that come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from heterotrain_operator.rest.context import MAX_WATCHERS
from support.info_server import InfoServer, eventually, sent_events

Sent = tuple[str, str | None, Any]


@contextmanager
def watching(
    server: InfoServer, *, headers: dict[str, str] | None = None, **parameters: Any
) -> Iterator[Iterator[Sent]]:
    with server.client.stream("GET", "/v1/watch", params=parameters, headers=headers or {}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield sent_events(answer.iter_lines())


def swing(server: InfoServer, entity: str, *values: float) -> None:
    """Values 0.1 ms apart, the last one now: all later than those of a request before, however fast it was answered."""
    now = time.time()
    server.push(
        [
            {"entity": entity, "metric": "load", "time": now - (len(values) - 1 - i) / 10_000, "value": value}
            for i, value in enumerate(values)
        ]
    )


def test_events_are_listed_and_gone_on_from(server: InfoServer) -> None:
    swing(server, "list/a", 0.5, 0.9, 0.5)
    answer = server.get("/v1/events", entity="list/*")
    assert [(one["value"], one["previous"]) for one in answer["events"]] == [("HOT", "OK"), ("OK", "HOT")]
    assert answer["events"][0].items() >= {
        "rule": "hot", "entity": "list/a", "metric": "load_state", "message": "load_state of list/a is HOT, was OK",
    }.items()  # fmt: skip
    assert server.get("/v1/events", since=answer["cursor"], entity="list/*")["events"] == []
    after_first = server.get("/v1/events", since=answer["events"][0]["cursor"], entity="list/*")
    assert [one["value"] for one in after_first["events"]] == ["OK"]
    swing(server, "list/b", 0.9)
    more = server.get("/v1/events", since=answer["cursor"], entity="list/*")
    assert [one["entity"] for one in more["events"]] == ["list/b"]


def test_pages_of_events_join(server: InfoServer) -> None:
    swing(server, "join/a", 0.9, 0.5, 0.9, 0.5)
    seen: list[str] = []
    since = "0"
    while True:
        page = server.get("/v1/events", since=since, limit=1, entity="join/*")
        seen += [one["value"] for one in page["events"]]
        if not page["events"]:
            break
        since = page["cursor"]
    assert seen == ["HOT", "OK", "HOT", "OK"]


def test_a_stream_tells_events_as_they_come_and_goes_on_after_a_break(server: InfoServer) -> None:
    with watching(server, entity="stream/*") as events:
        swing(server, "stream/a", 0.9)
        swing(server, "elsewhere/a", 0.9)
        kind, cursor, event = next(events)
        assert (kind, event["entity"], event["value"], event["cursor"]) == ("event", "stream/a", "HOT", cursor)
    swing(server, "stream/a", 0.5, 0.9)
    assert cursor is not None
    for how in ({"since": cursor}, {"headers": {"Last-Event-ID": cursor}}):
        with watching(server, entity="stream/*", **how) as events:  # type: ignore[arg-type]
            assert [next(events)[2]["value"] for _ in range(2)] == ["OK", "HOT"]


def test_a_cursor_of_another_server_is_gone(server: InfoServer) -> None:
    swing(server, "gone/a", 0.9)
    for since in ("1-0x1.0p+3", "99999-0x1.0p+3", "99999999999999999999-0x1.0p+3"):
        for path in ("/v1/events", "/v1/watch"):
            answer = server.client.get(path, params={"since": since})
            assert (answer.status_code, answer.json()["code"]) == (410, "cursor_gone")
            assert "since=0" in answer.json()["message"]


def test_a_stream_of_values_begins_with_what_is_there_and_tells_what_goes(server: InfoServer) -> None:
    spec = {"source": {"push": {"entities": ["live/*"]}}, "metrics": [{"name": "live", "ttl": 1.5}]}
    assert server.client.post("/v1/rules/collect/live", json=spec).status_code == 201
    server.push([{"entity": "live/a", "metric": "live", "value": 1}])
    with watching(server, what="samples", metric="live", interval=0.1) as sent:
        kind, _, first = next(sent)
        assert (kind, first["entity"], first["value"]) == ("sample", "live/a", 1)
        assert next(sent)[0] == "synced"
        server.push(
            [{"entity": "live/a", "metric": "live", "value": 2}, {"entity": "live/b", "metric": "live", "value": 3}]
        )
        assert {(next_["entity"], next_["value"]) for next_ in (next(sent)[2], next(sent)[2])} == {
            ("live/a", 2), ("live/b", 3),
        }  # fmt: skip
        began = time.monotonic()
        absent = [next(sent)[2] for _ in range(2)]
        assert time.monotonic() - began > 1
        assert sorted((one["entity"], one["value"], one["expires"]) for one in absent) == [
            ("live/a", None, None), ("live/b", None, None),
        ]  # fmt: skip
        assert server.get("/v1/latest", metric="live")["samples"] == []
        server.push([{"entity": "live/a", "metric": "live", "value": 4}])
        assert next(sent)[2]["value"] == 4


def test_there_are_only_so_many_streams_and_each_is_given_back(server: InfoServer) -> None:
    def try_one() -> int:
        with server.client.stream("GET", "/v1/watch") as answer:
            return answer.status_code

    with httpx.Client(
        base_url=server.url, headers=server.client.headers, limits=httpx.Limits(max_connections=None), trust_env=False
    ) as client:
        streams = [client.stream("GET", "/v1/watch") for _ in range(MAX_WATCHERS)]
        for stream in streams:
            assert stream.__enter__().status_code == 200
        refused = server.client.get("/v1/watch")
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, "too_many", "1")
        assert server.get("/healthz") == {"status": "ok"}
        for stream in streams:
            stream.__exit__(None, None, None)
    eventually(lambda: try_one() == 200)


def test_a_server_that_ends_ends_its_streams(tmp_path: Any) -> None:
    other = InfoServer(tmp_path)
    with watching(other) as events:
        began = time.monotonic()
        assert other.end().endswith("stopped\n")
        assert time.monotonic() - began < 10
        with pytest.raises(StopIteration):
            next(events)
    other.client.close()
    assert other.process.returncode == 0
