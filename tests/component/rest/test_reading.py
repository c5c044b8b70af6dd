"""Entities, metrics, samples and newest values of a running server; in pages, and the same for the same question."""

from __future__ import annotations

import time
from typing import Any

from support.info_server import InfoServer


def all_pages(server: InfoServer, path: str, key: str, limit: int, **parameters: Any) -> tuple[list[Any], int]:
    """Entries of all pages, and how many pages there were."""
    entries: list[Any] = []
    pages, cursor = 0, {}
    while True:
        page = server.get(path, limit=limit, **parameters, **cursor)
        assert len(page[key]) <= limit
        entries += page[key]
        pages += 1
        if page["next"] is None:
            return entries, pages
        cursor = {"cursor": page["next"]}


def test_pages_have_everything_once(server: InfoServer) -> None:
    now = time.time()
    server.push(
        [
            {"entity": f"page/{name}", "metric": metric, "time": now - 10 + tick, "value": tick}
            for tick in range(5)
            for name in "cab"
            for metric in ("x", "speed")
        ]
    )
    series = [(f"page/{name}", metric) for name in "abc" for metric in ("speed", "x")]
    latest, pages = all_pages(server, "/v1/latest", "samples", 4, entity="page/*")
    assert ([(one["entity"], one["metric"]) for one in latest], pages) == (series, 2)
    assert {(one["value"], one["time"]) for one in latest} == {(4, now - 6)}
    samples, pages = all_pages(server, "/v1/samples", "samples", 7, entity="page/*")
    assert pages == 5
    assert [(one["entity"], one["metric"], one["value"]) for one in samples] == [
        (*key, tick) for key in series for tick in range(5)
    ]
    entities, pages = all_pages(server, "/v1/entities", "entities", 2, kind="page")
    assert ([one["entity"] for one in entities], pages) == (["page/a", "page/b", "page/c"], 2)
    metrics, _ = all_pages(server, "/v1/metrics", "metrics", 3)
    names = [one["metric"] for one in metrics]
    assert names == sorted(set(names))
    assert {"x", "speed", "load_state"} <= set(names)


def test_a_page_goes_on_where_it_was_although_others_came(server: InfoServer) -> None:
    push = [{"entity": f"grow/{name}", "metric": "x", "value": 1} for name in ("b", "d", "f")]
    server.push(push)
    first = server.get("/v1/latest", entity="grow/*", limit=2)
    server.push([{"entity": f"grow/{name}", "metric": "x", "value": 1} for name in ("a", "c", "e", "g")])
    second = server.get("/v1/latest", entity="grow/*", limit=2, cursor=first["next"])
    seen = [one["entity"] for page in (first, second) for one in page["samples"]]
    assert seen == ["grow/b", "grow/d", "grow/e", "grow/f"]


def test_spans_are_reduced_by_step(server: InfoServer) -> None:
    base = (time.time() - 100) // 20 * 20
    server.push(
        [{"entity": "span/a", "metric": "x", "time": base + second, "value": second} for second in (0, 4, 9, 10, 30)]
    )

    def span(**parameters: Any) -> list[tuple[float, Any]]:
        samples = server.get("/v1/samples", entity="span/a", metric="x", **parameters)["samples"]
        return [(one["time"] - base, one["value"]) for one in samples]

    assert span() == [(0, 0), (4, 4), (9, 9), (10, 10), (30, 30)]
    assert span(**{"from": base + 4, "to": base + 10}) == [(4, 4), (9, 9), (10, 10)]
    assert span(step=10, agg="max") == [(0, 9), (10, 10), (30, 30)]
    assert span(step=10, agg="count") == [(0, 3), (10, 1), (30, 1)]
    assert span(step=10) == [(0, 9), (10, 10), (30, 30)]
    assert span(step=20, agg="median", **{"from": base}) == [(0, 6.5), (20, 30)]
    assert span(step=20, agg="median", limit=1) == [(0, 6.5)]


def test_words_have_no_mean(server: InfoServer) -> None:
    server.push([{"entity": "words/a", "metric": "load", "value": 0.9}])
    answer = server.client.get("/v1/samples", params={"entity": "words/*", "step": 5, "agg": "mean"})
    assert answer.status_code == 422
    assert "load_state of words/a has words" in answer.json()["message"]


def test_an_old_value_is_absent_and_its_past_stays(server: InfoServer) -> None:
    now = time.time()
    server.push([{"entity": "old/a", "metric": "x", "time": now - 3000, "value": 7}])
    assert server.get("/v1/latest", entity="old/*") == {"samples": [], "next": None}
    absent = {"entity": "old/a", "metric": "x", "time": now - 3000, "value": None, "expires": None}
    assert server.get("/v1/latest", entity="old/*", absent=True) == {"samples": [absent], "next": None}
    assert [one["value"] for one in server.get("/v1/samples", entity="old/*")["samples"]] == [7]


def test_the_same_question_has_the_same_answer(server: InfoServer) -> None:
    server.push([{"entity": "same/a", "metric": "x", "value": 7}])
    for path in ("/v1/latest?entity=same/a", "/v1/samples?entity=same/a", "/v1/entities?kind=same", "/v1/metrics"):
        assert server.client.get(path).content == server.client.get(path).content


def test_one_entity_by_its_name(server: InfoServer) -> None:
    server.push([{"entity": "pod/space/name", "metric": "x", "value": 1}])
    want = {"entity": "pod/space/name", "kind": "pod", "name": "space/name", "labels": {}, "metrics": ["x"]}
    assert server.get("/v1/entities/pod/space/name") == want
    assert server.get("/v1/entities/pod/space%2Fname") == want
    assert server.client.get("/v1/entities/pod/space/other").status_code == 404
    assert server.client.get("/v1/entities/pod/no-namespace").status_code == 404


def test_pushes_are_refused_one_by_one(server: InfoServer) -> None:
    now = time.time()
    answer = server.push(
        [
            {"entity": "push/a", "metric": "x", "time": now, "value": 1},
            {"entity": "push/a", "metric": "x", "time": now, "value": 1},
            {"entity": "push/a", "metric": "unknown", "value": 1},
            {"entity": "push/a", "metric": "x", "value": "+Inf"},
            {"entity": "push/a", "metric": "x", "time": now + 3600, "value": 1},
        ]
    )
    assert answer["stored"] == 1
    assert [one["index"] for one in answer["refused"]] == [2, 3, 4]
    assert "no rule with source push has metric unknown" in answer["refused"][0]["message"]


def test_the_schema_says_what_there_is(server: InfoServer) -> None:
    schema = server.get("/v1/schema")
    assert schema["kinds"]["worker"] == ["NAMESPACE", "JOB", "NAME"]
    assert schema["operators"]["ewma"]["parameters"]["alpha"] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    assert schema["operators"]["alpha_beta"]["outputs"] == ["value", "bandwidth", "delta"]
    assert "prometheus" in schema["rules"]["collect"]["properties"]["source"]["properties"]
