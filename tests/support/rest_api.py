"""The operator's REST API as a scheduler in the cluster has it: with a ServiceAccount's token, a port forwarded."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import IO, Any, Final, Self

import httpx

from support.cluster import Document, Namespace, run
from support.info_server import sent_events

SECONDS: Final = 40.0
"""For one answer, or two parts of a stream: one that has nothing to tell says each 20 s that it is alive."""


@contextmanager
def forwarded(namespace: str, target: str, port: int) -> Iterator[str]:
    """The address at which `kubectl port-forward` serves a port of a pod or service."""
    command = ["kubectl", "--namespace", namespace, "port-forward", target, f":{port}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found is None:
                raise AssertionError(f"{' '.join(command)}: {line}")
            with _read_to_its_end(process.stdout, process.terminate):
                yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()


@contextmanager
def _read_to_its_end(told: IO[str], end: Callable[[], None]) -> Iterator[None]:
    """Reads on until `end` has had an effect: kubectl says a line for each connection, and stands still once a pipe is
    full of them (after half an hour of one a second).
    """
    reader = Thread(target=told.read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        end()
        reader.join()


def account_token(namespace: Namespace, name: str) -> str:
    """A token of a new ServiceAccount, which may do nothing yet."""
    namespace.kubectl("create", "serviceaccount", name)
    return namespace.kubectl("create", "token", name).strip()


@contextmanager
def cluster_role(namespace: Namespace, account: str, role: str) -> Iterator[None]:
    """The account has a ClusterRole in all namespaces."""
    binding = f"{namespace.name}-{account}"
    subject = f"--serviceaccount={namespace.name}:{account}"
    run("kubectl", "create", "clusterrolebinding", binding, f"--clusterrole={role}", subject)
    try:
        yield
    finally:
        run("kubectl", "delete", "clusterrolebinding", binding)


class RestApi:
    """A client with a token, or without; a context that ends with its connections."""

    def __init__(self, url: str, token: str | None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=SECONDS, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def status(self, path: str, **parameters: Any) -> int:
        return self.client.get(path, params=parameters).status_code

    def latest(self, **parameters: Any) -> dict[str, dict[str, Document]]:
        """The newest values: sample by metric by entity."""
        answer = self.client.get("/v1/latest", params={"limit": 10000, **parameters})
        assert answer.status_code == 200, answer.text
        found: dict[str, dict[str, Document]] = {}
        for sample in answer.json()["samples"]:
            found.setdefault(sample["entity"], {})[sample["metric"]] = sample
        return found


Seen = list[tuple[float, Document]]
"""When each event came, with it."""


@contextmanager
def watching(namespace: str, target: str, port: int, token: str | None, **parameters: Any) -> Iterator[Seen]:
    """The events of a watch stream, as they come; returns once the stream is there."""
    seen: Seen = []
    with ExitStack() as stack:
        forward = stack.enter_context(ExitStack())
        api = stack.enter_context(RestApi(forward.enter_context(forwarded(namespace, target, port)), token))
        stream = stack.enter_context(api.client.stream("GET", "/v1/watch", params=parameters))
        assert stream.status_code == 200
        reader = Thread(target=_read, args=(stream, seen))
        reader.start()
        stack.callback(reader.join)
        stack.callback(forward.close)  # first of all: it ends what the reader waits for
        yield seen


def _read(stream: httpx.Response, seen: Seen) -> None:
    try:
        for _, _, event in sent_events(stream.iter_lines()):
            seen.append((time.time(), event))
    except (httpx.RemoteProtocolError, httpx.ReadError):  # the forwarded port is gone
        return
