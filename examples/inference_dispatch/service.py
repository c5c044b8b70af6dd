"""The processes of the example, and the hand of whoever runs it: servers, the information service, rules by REST."""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

HERE = Path(__file__).parent
RULES = HERE / "rules"


@dataclass(frozen=True)
class Server:
    """An inference server as a process; `exporter` as in ``server.py``."""

    name: str
    process: subprocess.Popen[str]
    url: str

    def slow(self, times: float) -> None:
        """Have every request take so many times as long."""
        httpx.post(f"{self.url}/slow", content=str(times), trust_env=False).raise_for_status()


def start_servers(model: Path, speeds: Mapping[str, float], seconds: float, tpx: Iterable[str] = ()) -> list[Server]:
    """Start all servers, by name; returns once they answer. `tpx`: those with the made-up accelerator's exporter."""
    processes = {
        name: subprocess.Popen(
            [
                sys.executable, str(HERE / "server.py"), "--name", name, "--model", str(model), "--speed", str(speed),
                "--seconds", str(seconds), "--exporter", "tpx" if name in tpx else "plain",
            ],
            stdout=subprocess.PIPE, text=True,
        )
        for name, speed in speeds.items()
    }  # fmt: skip
    return [Server(name, process, _first_line(process)) for name, process in processes.items()]


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise SystemExit(f"a process did not start: {' '.join(map(str, process.args))}")  # type: ignore[arg-type]
    return line


class Service:
    """``heterotrain info serve`` as a process, and its rules by REST."""

    def __init__(self, folder: Path, rules: Iterable[Mapping[str, Any]]) -> None:
        """`folder`: takes the file of the rules."""
        self.token = secrets.token_urlsafe(16)
        file = folder / "rules.yaml"
        file.write_text(yaml.safe_dump_all(rules))
        command = [sys.executable, "-c", "import sys; from heterotrain_operator import cli; cli.main(sys.argv[1:])"]
        self.process = subprocess.Popen(
            [*command, "info", "serve", "--rules", str(file), "--port", "0", "--token", self.token],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = _first_line(self.process)
        found = re.search(r"http://[^/\s]+", line)
        if found is None:
            raise SystemExit(f"the information service did not start: {line}")
        self.url = found[0]
        self.client = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, trust_env=False, timeout=20
        )

    def apply(self, rules: Iterable[Mapping[str, Any]]) -> None:
        """Make or change rules while the service runs, as anybody with the right may."""
        for rule in rules:
            kind = "collect" if rule["kind"] == "CollectionRule" else "process"
            path = f"/v1/rules/{kind}/{rule['metadata']['name']}"
            known = self.client.get(path)
            if known.status_code == 404:
                self.client.post(path, json={"spec": rule["spec"]}).raise_for_status()
            else:
                body = {"spec": rule["spec"], "generation": known.json()["generation"]}
                self.client.put(path, json=body).raise_for_status()

    def close(self) -> None:
        """End the process."""
        self.client.close()
        end([self.process])


def end(processes: Iterable[subprocess.Popen[str]]) -> None:
    """End processes that we started."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.communicate(timeout=20)


def read_rules(name: str, url: str | None = None) -> list[dict[str, Any]]:
    """The rules of a file of ``rules/``; `url`: of the server that its collection rules read."""
    rules = list(yaml.safe_load_all((RULES / f"{name}.yaml").read_text()))
    for rule in rules:
        if rule["kind"] == "CollectionRule" and url is not None:
            rule["spec"]["source"]["endpoint"]["url"] = f"{url}/metrics"
    return rules


def server_rule(server: Server) -> dict[str, Any]:
    """The rule that collects what one server tells."""
    (rule,) = read_rules("server", server.url)
    return {**rule, "metadata": {"name": f"server-{server.name}"}}
