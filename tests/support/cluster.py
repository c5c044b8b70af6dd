"""A namespace of a real cluster, by kubectl: what a user does and sees. Every wait ends with a diagnosis."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from heterotrain_api.contract import Label

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
OPERATOR_NAMESPACE: Final = "heterotrain-system"
DEPLOYMENT: Final = "heterotrain-operator"
POLL_SECONDS: Final = 0.5

_SLOW_DIGITS: Final = """
import runpy, time
import torch.nn.functional as F
quick = F.cross_entropy
F.cross_entropy = lambda *given: (time.sleep(0.05), quick(*given))[1]
runpy.run_module("digits", run_name="__main__", alter_sys=True)
"""

Document = dict[str, Any]
T = TypeVar("T")


class CommandFailedError(AssertionError):
    """kubectl or helm refused; `text` is what it said."""

    def __init__(self, command: list[str], text: str) -> None:
        super().__init__(f"{' '.join(command)}: {text}")
        self.text = text


class UnansweredError(CommandFailedError):
    """kubectl could not reach the API server."""


_UNANSWERED: Final = ("Unable to connect to the server", "i/o timeout", "etcdserver: request timed out")


def run(*command: str, stdin: str | None = None, seconds: float = 120) -> str:
    """What a command prints; raises `CommandFailedError`."""
    done = subprocess.run(command, check=False, input=stdin, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        text = done.stderr.strip() or done.stdout.strip()
        unanswered = any(words in text for words in _UNANSWERED)
        raise (UnansweredError if unanswered else CommandFailedError)(list(command), text)
    return done.stdout


def document_of(*command: str) -> Document:
    """The JSON object that a command prints."""
    document: Document = json.loads(run(*command))
    return document


def example(name: str, **spec: Any) -> Document:
    """The manifest of an example; `spec` replaces fields of its spec."""
    document: Document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    document["spec"] |= spec
    return document


def slow_digits(epochs: int, **spec: Any) -> Document:
    """The digits at 16 rounds/s (an epoch has 25): a job that shall last waits, and leaves the processors to others."""
    return example("digits", command=["python", "-c", _SLOW_DIGITS], args=["--epochs", str(epochs)], **spec)


@dataclass(frozen=True)
class Namespace:
    """kubectl in one namespace."""

    name: str

    def kubectl(self, *arguments: str, stdin: str | None = None, seconds: float = 120) -> str:
        return run("kubectl", "--namespace", self.name, *arguments, stdin=stdin, seconds=seconds)

    def apply(self, document: Mapping[str, Any], *options: str) -> str:
        return self.kubectl("apply", *options, "-f", "-", stdin=json.dumps(document))

    def diff(self, document: Mapping[str, Any]) -> str:
        """What `kubectl diff` shows; it ends with 1 if that is anything."""
        command = ["kubectl", "--namespace", self.name, "diff", "-f", "-"]
        done = subprocess.run(command, check=False, input=json.dumps(document), capture_output=True, text=True)
        if done.returncode not in (0, 1):
            raise CommandFailedError(command, done.stderr)
        return done.stdout

    def get(self, kind: str, name: str) -> Document:
        return document_of("kubectl", "--namespace", self.name, "get", kind, name, "-o", "json")

    def objects(self, kind: str, selector: str = "") -> list[Document]:
        command = ("kubectl", "--namespace", self.name, "get", kind, "-o", "json", "--selector", selector)
        items: list[Document] = document_of(*command)["items"]
        return items

    def job(self, name: str) -> Job:
        return Job(self.get("htj", name))

    def pods(self, job: Job) -> list[Document]:
        return self.objects("pods", f"{Label.JOB_UID}={job.uid}")

    def wait(self, what: str, seconds: float, probe: Callable[[], T | None]) -> T:
        """Ask `probe` until it gives something; after `seconds` fail, with all that a person would look at.

        An API server that does not answer for a moment is asked again: what a test waits for is not its speed."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                answer = probe()
            except UnansweredError:
                answer = None
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {what}\n{self.diagnosis()}")
            time.sleep(POLL_SECONDS)

    def wait_for_job(self, name: str, what: str, seconds: float, holds: Callable[[Job], bool]) -> Job:
        """The job, once `holds` says so."""

        def probe() -> Job | None:
            job = self.job(name)
            return job if holds(job) else None

        return self.wait(f"job {name}: {what}", seconds, probe)

    def wait_until_over(self, name: str, seconds: float) -> Job:
        """The job, once it has succeeded or failed."""
        return self.wait_for_job(name, "is over", seconds, lambda job: job.condition("Succeeded")[0] != "Unknown")

    def told(self, job: Job, last: str) -> list[str]:
        """``Type Reason`` of each event of the job, oldest first, once `last` is among them.

        Events are sent after the status that they tell of: who has seen that status may not see them yet."""

        def probe() -> list[str] | None:
            found = (e for e in self.objects("events") if e["involvedObject"].get("uid") == job.uid)
            in_order = sorted(found, key=lambda e: e.get("firstTimestamp") or e["metadata"]["creationTimestamp"])
            events = [f"{e['type']} {e['reason']}" for e in in_order]
            return events if last in events else None

        return self.wait(f"job {job.name}: an event {last}", 60, probe)

    def diagnosis(self) -> str:
        """Jobs, pods, events, and the end of every log."""
        parts = [
            _try("kubectl", "--namespace", self.name, *arguments)
            for arguments in (
                ("get", "htj", "-o", "yaml"),
                ("get", "pods", "-o", "wide"),
                ("get", "events", "--sort-by=.lastTimestamp"),
                ("logs", "--selector", Label.JOB_UID, "--all-containers", "--prefix", "--tail=15"),
            )
        ]
        operator = ("kubectl", "--namespace", OPERATOR_NAMESPACE)
        parts.append(_try(*operator, "get", "pods"))
        parts.append(_try(*operator, "logs", f"deployment/{DEPLOYMENT}", "--tail=40"))
        return "\n".join(parts)


def _try(*command: str) -> str:
    try:
        text = run(*command)
    except CommandFailedError as error:
        text = str(error)
    return f"$ {' '.join(command)}\n{text}"


@dataclass(frozen=True)
class Job:
    """A HeteroTrainJob as the API server has it."""

    document: Document

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])

    @property
    def status(self) -> Document:
        status: Document = self.document.get("status", {})
        return status

    @property
    def round(self) -> int:
        return int(self.status.get("progress", {}).get("round", 0))

    def condition(self, kind: str) -> tuple[str, str, str]:
        """Status, reason and message of a condition; one that is not there is Unknown."""
        for entry in self.status.get("conditions", []):
            if entry["type"] == kind:
                return entry["status"], entry["reason"], entry["message"]
        return "Unknown", "", ""


@dataclass(frozen=True)
class Operator:
    """The operator's Deployment."""

    def scale(self, replicas: int) -> None:
        run("kubectl", "-n", OPERATOR_NAMESPACE, "scale", f"deployment/{DEPLOYMENT}", f"--replicas={replicas}")

    def kill(self) -> None:
        """End its process at once, without a word; the Deployment starts another."""
        selector = "app.kubernetes.io/component=operator"
        run("kubectl", "-n", OPERATOR_NAMESPACE, "delete", "pod", "-l", selector, "--force", "--grace-period=0")

    def wait_until_ready(self) -> None:
        run("kubectl", "-n", OPERATOR_NAMESPACE, "rollout", "status", f"deployment/{DEPLOYMENT}", "--timeout=90s")
