"""``/metrics`` of a job's processes, in Prometheus text: off unless `Env.METRICS` names an address.

Metrics never cost a training: what cannot be served is said in the log, and the process goes on without it. Answers
are given in a thread of their own; ``prometheus-client`` is imported only where metrics are served.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from heterotrain.transport.wire import join_address, split_address
from heterotrain_api.contract import Env

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_log = logging.getLogger("heterotrain.metrics")

Address: TypeAlias = tuple[str, int]
"""Host and port; port 0 for any free one."""

PREFIX: Final = "heterotrain_trainer_"
"""Of every metric: names without it are the operator's, which tells of jobs under its own labels."""


def metrics_address(environment: Mapping[str, str]) -> Address | None:
    """What `Env.METRICS` names; `None`: not set, no metrics.

    Raises `ValueError` that names the variable, what it may be, and the remedy.
    """
    value = environment.get(Env.METRICS, "")
    if not value:
        return None
    try:
        return split_address(value)
    except ValueError as error:
        raise ValueError(f"{Env.METRICS}: {error}; unset it for no metrics") from error


def can_serve(address: Address | None) -> bool:
    """Whether there is an address and the package that serves; that it is missing is said in the log."""
    if address is None or importlib.util.find_spec("prometheus_client") is not None:
        return address is not None
    _log.warning(
        "no metrics at %s: the package prometheus-client is missing: pip install 'heterotrain[trainer]'",
        join_address(*address),
    )
    return False


def start_metrics(address: Address, registry: CollectorRegistry) -> Callable[[], None]:
    """Serve a registry at `address` until the function returned is called. To be asked first: `can_serve`."""
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(address[1], addr=address[0], registry=registry)
    except OSError as error:
        _log.warning("no metrics at %s: %s; %s may name another address", join_address(*address), error, Env.METRICS)
        return _nothing
    _log.info("metrics at http://%s/metrics", join_address(address[0], server.server_port))

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5.0)

    return stop


def _nothing() -> None:
    """There is nothing to stop."""
