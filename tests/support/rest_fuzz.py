"""schemathesis against a real server: random requests by its own OpenAPI document.

Run by ``bench/rest_fuzz.py``, and for a few seconds by the tests. Loaded by schemathesis itself it is a module of
hooks: cursors that random texts never hit are mostly left out, and names are few, so that requests reach what is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import hypothesis
import schemathesis

from support.info_server import TOKEN, InfoServer, info_server, processing, push_rule

CHECKS: Final = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
)
MAX_CURSOR: Final = 4096
"""Characters that the document allows."""
ENDLESS: Final = "/v1/watch"
"""A stream: its tests are written by hand."""
RULES: Final = (
    push_rule("alpha", "x", "load", ttl=600),
    processing(
        "beta",
        inputs={"load": {"metric": "load"}},
        chain=[{"operator": "threshold", "hi": 0.8, "lo": 0.6}],
        output={"metric": "state"},
        emit="both",
    ),
)


def _aimless(observation: float, *, label: str = "") -> float:
    return observation


if "SCHEMATHESIS_HOOKS" in os.environ:  # this module is loaded by schemathesis
    # It has Hypothesis (6.170) aim at answers of 2xx, and the climb ends long runs with an IndexError of its own.
    hypothesis.target = _aimless


@schemathesis.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without cursors, but now and then; one that the document does not allow stays: its refusal is what is tested."""
    cursor = (query or {}).get("cursor")
    if query and isinstance(cursor, str) and len(cursor) <= MAX_CURSOR and len(cursor) % 4:
        return {name: value for name, value in query.items() if name != "cursor"}
    return query


@schemathesis.hook
def map_path_parameters(context: Any, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """Few names of rules, some of which exist."""
    if not parameters or "name" not in parameters or "kind" in parameters:
        return parameters
    return {**parameters, "name": ("alpha", "beta", "gamma", "delta")[len(str(parameters["name"])) % 4]}


def fuzz(seconds: int) -> tuple[int, str, str]:
    """schemathesis's exit code and output after about so long, and the server's own output."""
    with tempfile.TemporaryDirectory() as folder, info_server(Path(folder), rules=RULES) as server:
        _fill(server)
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json",
                "--header", f"Authorization: Bearer {TOKEN}", "--max-time", str(seconds),
                "--phases", "examples,coverage,fuzzing", "--checks", ",".join(CHECKS),
                "--exclude-path", ENDLESS, "--request-timeout", "20", "--warnings", "off", "--no-color",
            ],
            env={**os.environ, "SCHEMATHESIS_HOOKS": "support.rest_fuzz", "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True, text=True, cwd=folder, timeout=seconds + 300, check=False,
        )  # fmt: skip
        alive = server.process.poll() is None and server.get("/healthz") == {"status": "ok"}
        log = server.end()
    return (done.returncode if alive else 99), done.stdout + done.stderr, log


def _fill(server: InfoServer) -> None:
    now = time.time()
    server.push(
        [
            {"entity": entity, "metric": metric, "time": now - 20 + tick, "value": (tick + len(metric)) % 3 / 2}
            for tick in range(20)
            for entity in ("node/a", "pod/space/a", "link/a/b")
            for metric in ("x", "load")
        ]
    )
