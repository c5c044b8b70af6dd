"""What is refused, always in the one shape of errors: strangers, wrong paths and methods, bodies of all wrong kinds."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from support.info_server import TOKEN, InfoServer

BODIES = ("/v1/samples", "/v1/rules/process:dryrun", "/v1/rules/process/new", "/v1/rules/collect/new")
GUARDED = ("/v1/entities", "/v1/latest", "/v1/rules/process", "/v1/schema", "/v1/watch", "/v1/nothing")
SHAPE = {"code", "message", "fields"}


def refusal(answer: httpx.Response, status: int) -> Any:
    """The error of an answer, which has the one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document.keys() == SHAPE
    assert document["message"]
    return document


def send(server: InfoServer, path: str, body: bytes | str, **headers: str) -> httpx.Response:
    return server.client.post(path, content=body, headers={"Content-Type": "application/json", **headers})


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="no header"),
        pytest.param({"Authorization": "Bearer wrong"}, id="another token"),
        pytest.param({"Authorization": f"Bearer {TOKEN}x"}, id="more than the token"),
        pytest.param({"Authorization": f"Basic {TOKEN}"}, id="another scheme"),
        pytest.param({"Authorization": "Bearer"}, id="an empty token"),
        pytest.param({"Authorization": TOKEN}, id="no scheme"),
        pytest.param([("Authorization", f"Bearer {token}") for token in (TOKEN, "other")], id="two headers"),
    ],
)
def test_strangers_learn_nothing(
    server: InfoServer, path: str, headers: dict[str, str] | list[tuple[str, str]]
) -> None:
    answer = httpx.get(server.url + path, headers=headers, trust_env=False)
    assert refusal(answer, 401)["code"] == "unauthenticated"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_health_and_the_description_need_no_token(server: InfoServer) -> None:
    assert httpx.get(f"{server.url}/healthz", trust_env=False).json() == {"status": "ok"}
    document = httpx.get(f"{server.url}/openapi.json", trust_env=False).json()
    assert {"/v1/latest", "/v1/rules/process:dryrun", "/v1/watch"} <= document["paths"].keys()


@pytest.mark.parametrize(
    "path", ["/", "/v2/latest", "/v1", "/v1/", "/v1/latest/", "/v1/rules/other/x", "/v1/rules/process/a/b"]
)
def test_there_is_no_such_path(server: InfoServer, path: str) -> None:
    assert refusal(server.client.get(path), 404)["code"] == "not_found"


def test_a_wrong_method_says_which_there_are(server: InfoServer) -> None:
    answer = server.client.patch("/v1/rules/process/hot")
    assert refusal(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "DELETE, GET, POST, PUT"
    assert server.client.put("/v1/samples").headers["allow"] == "GET, POST"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half an object"),
        pytest.param(b'{"samples": NaN}', id="NaN"),
        pytest.param(b'{"samples": -Infinity}', id="an infinite number"),
        pytest.param(b'{"now": 1e999}', id="a number that is too large"),
        pytest.param(b'{"now": ' + b"9" * 5000 + b"}", id="an endless integer"),
        pytest.param(b'"\\ud800"', id="half of a surrogate pair"),
        pytest.param(b'"\xff"', id="no UTF-8"),
        pytest.param(b"[" * 100_000, id="nested without end"),
        pytest.param(b'{"samples": [], "samples": []}', id="a field twice"),
    ],
)
def test_what_is_no_json(server: InfoServer, path: str, body: bytes) -> None:
    assert refusal(send(server, path, body), 400)["code"] == "malformed"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", ["null", "1", "[]", '"text"', '{"other": 1}'])
def test_what_is_json_and_nothing_else(server: InfoServer, path: str, body: str) -> None:
    document = refusal(send(server, path, body), 422)
    assert document["code"] == "invalid"
    assert all(fault.keys() == {"field", "message"} for fault in document["fields"])
    assert document["fields"]


@pytest.mark.parametrize("path", BODIES)
def test_a_body_must_be_said_to_be_json_and_be_small(server: InfoServer, path: str) -> None:
    other = send(server, path, "{}", **{"Content-Type": "application/x-www-form-urlencoded"})
    assert refusal(other, 415)["code"] == "unsupported_media_type"
    packed = send(server, path, gzip.compress(b"{}"), **{"Content-Encoding": "gzip"})
    assert "without Content-Encoding" in refusal(packed, 415)["message"]
    large = json.dumps({"samples": [" " * 5_000_000]})
    assert refusal(send(server, path, large), 413)["code"] == "too_large"

    def pieces() -> Any:
        for _ in range(80):
            yield b" " * 65_536

    chunked = server.client.post(path, content=pieces(), headers={"Content-Type": "application/json"})
    assert refusal(chunked, 413)["code"] == "too_large"


@pytest.mark.parametrize(
    ("path", "field", "words"),
    [
        ("/v1/latest?limit=0", "limit", "greater than or equal to 1"),
        ("/v1/latest?limit=many", "limit", "integer"),
        ("/v1/latest?metrc=x", "metrc", "does not exist here"),
        ("/v1/latest?metric=no-name", "metric[0]", "no digit first"),
        ("/v1/latest?label=zone", "label[0]", "zone=eu"),
        ("/v1/latest?label=a=1&label=a=2", "label", "twice"),
        ("/v1/latest?cursor=x", "cursor", "leave it out"),
        ("/v1/latest?limit=1&limit=2", "limit", "give it once"),
        ("/v1/watch?since=0&since=1", "since", "give it once"),
        ("/v1/samples?from=yesterday", "from", "number"),
        ("/v1/samples?from=20&to=10", "from", "the older time"),
        ("/v1/samples?to=nan", "to", "finite"),
        ("/v1/samples?step=0", "step", "greater"),
        ("/v1/samples?agg=mean", "agg", "step"),
        ("/v1/samples?step=5&agg=mode", "agg", "'mean', 'min'"),
        ("/v1/entities?kind=Node", "kind", "pattern"),
        ("/v1/events?since=never", "since", "give 0"),
        ("/v1/events?since=-1-0x1p0", "since", "give 0"),
        ("/v1/watch?what=all", "what[0]", "events"),
    ],
)
def test_parameters_are_named_with_what_is_allowed(server: InfoServer, path: str, field: str, words: str) -> None:
    fields = refusal(server.client.get(path), 422)["fields"]
    assert [fault["field"] for fault in fields] == [field]
    assert words in fields[0]["message"]


def test_samples_are_named_by_their_place(server: InfoServer) -> None:
    samples = [
        {"entity": "node/a", "metric": "x", "value": 1},
        {"entity": "pod/a", "metric": "x", "value": 1},
        {"entity": "node/a", "metric": "x", "value": True},
        {"entity": "node/a", "metric": "x", "time": "now", "value": 1},
        {"entity": "node/a", "value": 1, "unit": "s"},
        {"entity": "node/a", "metric": "x", "value": "x" * 257},
        {"entity": "node a", "metric": "x", "value": 1},
    ]
    fields = refusal(server.client.post("/v1/samples", json={"samples": samples}), 422)["fields"]
    assert [fault["field"] for fault in fields] == [
        "samples[1].entity", "samples[2].value", "samples[3].time", "samples[4].metric", "samples[4].unit",
        "samples[5].value", "samples[6].entity",
    ]  # fmt: skip
    assert "pod/NAMESPACE/NAME" in fields[0]["message"]
    assert fields[1]["message"] == fields[5]["message"] == "must be a number, or a text of at most 256 characters"
    assert fields[6]["message"] == "must be an entity: kind/name, such as node/a or pod/namespace/name"
    nothing = refusal(server.client.post("/v1/samples", json=[]), 422)
    assert nothing["message"] == "must be a JSON object"


def test_a_body_that_comes_too_slowly_holds_up_nobody(server: InfoServer) -> None:
    head = (
        f"POST /v1/samples HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.sendall(head.encode())
        began = time.monotonic()
        assert server.get("/healthz") == {"status": "ok"}
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "talk", [b"nonsense\r\n\r\n", b"GET /v1/latest HTTP/1.1\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n"]
)
def test_what_is_no_http_is_refused(server: InfoServer, talk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
        wire.sendall(talk)
        assert wire.recv(100).startswith(b"HTTP/1.1 400 ")
    assert server.get("/healthz") == {"status": "ok"}


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lambda cursor: cursor[:-3], id="cut"),
        pytest.param(lambda cursor: cursor + "AAAA", id="longer"),
        pytest.param(lambda _: "bnVsbA", id="null"),
        pytest.param(lambda _: "W10", id="an empty list"),
        pytest.param(lambda _: "Wy0xXQ", id="a list of a number"),
        pytest.param(lambda _: "ä", id="no letters of base64"),
    ],
)
def test_cursors_are_checked(server: InfoServer, forged: Callable[[str], str]) -> None:
    server.push([{"entity": f"node/c{i}", "metric": "x", "value": 1} for i in range(3)])
    cursor = server.get("/v1/latest", entity="node/c*", limit=1)["next"]
    answer = server.client.get("/v1/latest", params={"entity": "node/c*", "cursor": forged(cursor)})
    assert refusal(answer, 422)["fields"][0]["field"] == "cursor"
    other = server.client.get("/v1/latest", params={"entity": "node/*", "cursor": cursor})
    assert "other parameters" in refusal(other, 422)["message"]
