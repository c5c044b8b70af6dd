"""Any address that answers with Prometheus text or JSON."""

from __future__ import annotations

from typing import Final

from heterotrain_api.info_collection import CollectionRuleSpec, Format
from heterotrain_operator.info.sources.base import Reply, off_the_loop
from heterotrain_operator.info.sources.documents import read_document
from heterotrain_operator.info.sources.text_format import Rows, reading_text
from heterotrain_operator.info.sources.web import Web
from heterotrain_operator.info.turns import Turns

_TEXT: Final = "text/plain;version=0.0.4"


class EndpointReader:
    """Reads rules with an endpoint source."""

    def __init__(self, web: Web, turns: Turns) -> None:
        self._web = web
        self._turns = turns

    async def read(self, spec: CollectionRuleSpec, now: float) -> Reply:
        """One request; the label ``instance`` is the address' host and port where the source has none."""
        del now
        source = spec.source.endpoint
        if source is None:
            raise TypeError("not a rule of endpoint")
        accept = _TEXT if source.format is Format.PROMETHEUS_TEXT else "application/json"
        answer = await self._web.get(source.url, credentials=source.credentials, accept=accept)
        instance = {"instance": source.url.partition("//")[2].partition("/")[0]}
        rows: Rows = {}
        if source.format is Format.PROMETHEUS_TEXT:
            await self._turns.work(reading_text(answer.body, spec.metrics, rows, instance))
        else:
            by_name = await off_the_loop(len(answer.body), read_document, answer.body, source, spec.metrics)
            rows = {
                name: [row._replace(labels={**instance, **row.labels}) for row in found]
                for name, found in by_name.items()
            }
        return Reply(rows, answer.server_time)
