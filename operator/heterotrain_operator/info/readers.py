"""All readers put together, by the field of `Source` that each reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from heterotrain_operator.info.sources.base import Source
from heterotrain_operator.info.sources.command import CommandReader
from heterotrain_operator.info.sources.endpoint import EndpointReader
from heterotrain_operator.info.sources.kubernetes import ApiReader, KubeletReader, NoApi, ObjectReader
from heterotrain_operator.info.sources.local import LocalReader
from heterotrain_operator.info.sources.prometheus import PrometheusReader
from heterotrain_operator.info.sources.web import Web, WebSettings
from heterotrain_operator.info.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """What rules may read here; the admin's, not the rules'."""

    web: WebSettings = field(default_factory=WebSettings)
    prometheus_url: str | None = None
    """For rules that name none."""
    prometheus_credentials: str | None = None
    """Name of the credentials that go with it."""
    namespaces: Sequence[str] = ()
    """The only namespaces whose pods and events may be read; empty: all."""
    allow_commands: bool = False
    node: str | None = None
    """Name of this machine; `None`: its host name."""


def make_readers(
    settings: ReaderSettings,
    turns: Turns,
    api: ApiReader | None = None,
    transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
) -> tuple[Mapping[str, Source], Web]:
    """Readers, and the connections they share, which are to be closed at the end. `push` has none."""
    web = Web(settings.web, transport)
    api = api or NoApi()
    return {
        "prometheus": PrometheusReader(web, settings.prometheus_url, settings.prometheus_credentials),
        "endpoint": EndpointReader(web, turns),
        "kubernetes": ObjectReader(api, settings.namespaces),
        "kubelet": KubeletReader(api, turns),
        "local": LocalReader(settings.node),
        "command": CommandReader(allowed=settings.allow_commands),
    }, web
