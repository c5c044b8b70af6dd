"""The operator's own metrics, and the small server that shows them.

The server runs in a thread of its own, so that it answers while the event loop does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app, start_http_server

from heterotrain_core.adaptation.values import Action, Answer, Decision

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

WATCHED: Final = ("jobs", "pods")
"""What is watched, as the label ``resource``."""


class Metrics:
    """One set per operator, in its own registry: two operators in one process do not count together."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self.passes: Final = Counter(
            "heterotrain_operator_passes", "Passes over a job, whatever came of them.", registry=self.registry
        )
        self.pass_seconds: Final = Histogram(
            "heterotrain_operator_pass_seconds",
            "Time that a pass took, from the first read to the last write.",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120),
            registry=self.registry,
        )
        self.pass_errors: Final = Counter(
            "heterotrain_operator_pass_errors", "Passes that failed.", ["reason"], registry=self.registry
        )
        self.requests: Final = Counter(
            "heterotrain_operator_api_requests",
            "Requests to the API server; code 0: no answer.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.jobs: Final = Gauge("heterotrain_operator_jobs", "Jobs that are attended.", registry=self.registry)
        self._age: Final = Gauge(
            "heterotrain_operator_watch_event_age_seconds",
            "Time since the watch last delivered an event.",
            ["resource"],
            registry=self.registry,
        )
        self._lag: Final = Gauge(
            "heterotrain_operator_watch_lag_seconds",
            "For how long the watch has withheld what a list has shown; 0: it has not.",
            ["resource"],
            registry=self.registry,
        )

        self._looks: Final = Counter(
            "heterotrain_operator_adaptation_looks",
            "Looks of the adaptation loops at states of coordinators.",
            registry=self.registry,
        )
        self._look_seconds: Final = Counter(
            "heterotrain_operator_adaptation_cpu_seconds",
            "Processor time of these looks.",
            registry=self.registry,
        )
        self._decisions: Final = Counter(
            "heterotrain_operator_adaptation_decisions",
            "Decisions of the adaptation loops.",
            ["action"],
            registry=self.registry,
        )
        self._findings: Final = Counter(
            "heterotrain_operator_adaptation_findings",
            "What decisions found in workers.",
            ["kind"],
            registry=self.registry,
        )
        self._answers: Final = Counter(
            "heterotrain_operator_adaptation_answers",
            "Answers to proposed plans.",
            ["verdict"],
            registry=self.registry,
        )
        self._prediction_error: Final = Histogram(
            "heterotrain_operator_adaptation_prediction_error",
            "Error of the predicted step time of plans, relative to the measured one.",
            buckets=(0.02, 0.05, 0.1, 0.2, 0.5, 1),
            registry=self.registry,
        )

    def looked(self, decision: Decision, cpu_seconds: float) -> None:
        """An adaptation loop has taken a state in."""
        self._looks.inc()
        self._look_seconds.inc(max(0.0, cpu_seconds))
        if decision.action is Action.NONE:
            return
        self._decisions.labels(decision.action.value).inc()
        for found in decision.found:
            self._findings.labels(found.kind.value).inc()
        if decision.verified is not None:
            self._prediction_error.observe(decision.verified.error)

    def answered(self, answer: Answer) -> None:
        """A proposed plan was agreed or refused."""
        self._answers.labels("refused" if answer.refusals else "agreed").inc()

    def follow(self, resource: str, age: Callable[[], float], lag: Callable[[], float]) -> None:
        """Ask `age` and `lag`, in seconds, whenever the metrics are read; called in the server's thread."""
        self._age.labels(resource).set_function(age)
        self._lag.labels(resource).set_function(lag)

    def forbidden(self) -> int:
        """How many requests the API server has refused for want of a right."""
        samples = [sample for metric in self.requests.collect() for sample in metric.samples]
        return int(sum(s.value for s in samples if s.name.endswith("_total") and s.labels["code"] == "403"))

    def writes(self) -> int:
        """How many writes were asked of the API server so far, whatever came of them."""
        return int(
            sum(
                sample.value
                for metric in self.requests.collect()
                for sample in metric.samples
                if sample.name.endswith("_total")
                and sample.labels["verb"] in WRITES
                and not sample.labels["resource"].endswith("reviews")  # questions: nothing is written
            )
        )


WRITES: Final = frozenset({"create", "update", "patch", "delete"})


def serve(metrics: Metrics, port: int, ready: Callable[[], bool]) -> Callable[[], None]:
    """Serve ``/metrics`` and ``/readyz`` until the function returned is called."""
    server, thread = start_http_server(port, registry=metrics.registry)
    server.set_app(_with_readiness(make_wsgi_app(metrics.registry), ready))

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return stop


def _with_readiness(app: WSGIApplication, ready: Callable[[], bool]) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[Any]:
        if environ["PATH_INFO"] != "/readyz":
            return app(environ, start_response)
        status, text = ("200 OK", b"ready\n") if ready() else ("503 Service Unavailable", b"not ready\n")
        start_response(status, [("Content-Type", "text/plain")])
        return [text]

    return answer
