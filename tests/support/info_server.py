"""A real ``heterotrain info serve`` in a process of its own, and a client of it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

TOKEN = "t0ken-of-the-tests"
COMMAND = [sys.executable, "-c", "import sys; from heterotrain_operator import cli; cli.main(sys.argv[1:])"]
API = "heterotrain.io/v1alpha1"
T = TypeVar("T")


class InfoServer:
    """The process and how to reach it."""

    def __init__(self, folder: Path, *arguments: str, token: str | None = TOKEN) -> None:
        given = [] if token is None else ["--token", token]
        self.process = subprocess.Popen(
            [*COMMAND, "info", "serve", "--port", "0", *given, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HETEROTRAIN_HOME": str(folder / "home")},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        found = re.search(r"http://\S+?:(\d+)/v1", self.first_line)
        if found is None:
            raise AssertionError(f"no server: {self.first_line}{self.end()}")
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=20, trust_env=False
        )

    def get(self, path: str, **parameters: Any) -> Any:
        """The document of an answer that must be a success."""
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def push(self, samples: Sequence[Mapping[str, Any]]) -> Any:
        answer = self.client.post("/v1/samples", json={"samples": samples})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def dryrun(self, rules: Sequence[Any], samples: Sequence[Mapping[str, Any]], **fields: Any) -> httpx.Response:
        body = {"rules": rules, "samples": samples, **fields}
        return self.client.post("/v1/rules/process:dryrun", json=body)

    def value(self, entity: str, metric: str) -> Any:
        """The present value; `None` if absent."""
        samples = self.get("/v1/latest", entity=entity, metric=metric)["samples"]
        return samples[0]["value"] if samples else None

    def end(self, number: int = signal.SIGTERM) -> str:
        """Stop the process; the rest of its output."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        output, _ = self.process.communicate(timeout=20)
        return output


@contextmanager
def info_server(
    folder: Path, *arguments: str, rules: Sequence[Any] = (), token: str | None = TOKEN
) -> Iterator[InfoServer]:
    """A server with rules (manifests); stopped at the end."""
    files = []
    if rules:
        file = folder / "rules.yaml"
        file.write_text(yaml.safe_dump_all(rules))
        files = ["--rules", str(file)]
    server = InfoServer(folder, *files, *arguments, token=token)
    try:
        yield server
    finally:
        server.client.close()
        server.end()


def collection(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "CollectionRule", "metadata": {"name": name}, "spec": spec}


def processing(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": API, "kind": "ProcessingRule", "metadata": {"name": name}, "spec": spec}


def push_rule(name: str, *metrics: str, **fields: Any) -> dict[str, Any]:
    """A rule that takes pushed samples of all entities."""
    return collection(
        name, source={"push": {"entities": ["**"]}}, metrics=[{"name": metric} for metric in metrics], **fields
    )


def chain(metric: str, output: str, *steps: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """The spec of a processing rule over one metric."""
    return {"inputs": {"x": {"metric": metric}}, "chain": list(steps), "output": {"metric": output}, **fields}


def sent_events(lines: Iterator[str]) -> Iterator[tuple[str, str | None, Any]]:
    """Server-sent events of a stream's lines: event, id, document."""
    event, cursor, data = "message", None, ""
    for line in lines:
        field, _, text = line.partition(": ")
        match field:
            case "event":
                event = text
            case "id":
                cursor = text
            case "data":
                data = text
            case "" if data:
                yield event, cursor, json.loads(data)
                event, cursor, data = "message", None, ""


def eventually(look: Callable[[], T], seconds: float = 20.0) -> T:
    """What `look` gives once it is true; fails with its last answer."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found
