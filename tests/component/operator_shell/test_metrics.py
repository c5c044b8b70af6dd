"""The server of the metrics: shows them, says when the operator is ready."""

from __future__ import annotations

import socket

import httpx

from heterotrain_operator.metrics import Metrics, serve


def test_metrics_and_readiness() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    metrics, ready = Metrics(), [False]
    metrics.passes.inc()
    metrics.follow("jobs", lambda: 12.5, lambda: 0.0)
    stop = serve(metrics, port, lambda: ready[0])
    try:
        base = f"http://127.0.0.1:{port}"
        text = httpx.get(f"{base}/metrics").text
        assert "heterotrain_operator_passes_total 1.0" in text
        assert 'heterotrain_operator_watch_event_age_seconds{resource="jobs"} 12.5' in text
        assert httpx.get(f"{base}/readyz").status_code == 503
        ready[0] = True
        assert httpx.get(f"{base}/readyz").status_code == 200
    finally:
        stop()


def test_every_metric_has_the_prefix_and_says_what_it_is() -> None:
    for metric in Metrics().registry.collect():
        assert metric.name.startswith("heterotrain_operator_")
        assert metric.documentation.endswith(".")
