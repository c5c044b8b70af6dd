"""Prometheus' HTTP API: instant and range queries. Queries are the rule's own text; only quoted values are filled in.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from heterotrain_api.info_collection import CollectedMetric, CollectionRuleSpec
from heterotrain_operator.info.sources.base import MAX_ROWS, Reason, Reply, Row, SourceError, off_the_loop
from heterotrain_operator.info.sources.documents import load_json
from heterotrain_operator.info.sources.web import Answer, StatusError, Web

MAX_STEPS: Final = 11_000
"""Values of one series that Prometheus gives at most."""
_PLACE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def render_query(query: str, values: Mapping[str, str]) -> str:
    """`query` with every ``${name}`` filled in, escaped as inside quotes; raises `SourceError` for unknown names."""

    def fill(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise SourceError(
                Reason.QUERY, f"{match[0]} is not among the rule's values ({', '.join(values) or 'none'})"
            )
        return values[match[1]].replace("\\", "\\\\").replace('"', '\\"').replace("'", "\\'").replace("\n", "\\n")

    return _PLACE.sub(fill, query)


class PrometheusReader:
    """Reads rules with a prometheus source."""

    def __init__(self, web: Web, default_url: str | None, default_credentials: str | None = None) -> None:
        """`default_url`: for rules that name none; `default_credentials`: for it, and for no other address."""
        self._web = web
        self._default_url = default_url
        self._default_credentials = default_credentials

    async def read(self, spec: CollectionRuleSpec, now: float) -> Reply:
        """One query for each metric; a query that Prometheus refuses stops no other."""
        source = spec.source.prometheus
        if source is None:
            raise TypeError("not a rule of prometheus")
        url = source.url or self._default_url
        if url is None:
            raise SourceError(
                Reason.FORBIDDEN, "no address: give source.prometheus.url, or set the operator's Prometheus"
            )
        credentials = source.credentials or (None if source.url else self._default_credentials)
        reply = Reply({})
        rows: dict[str, Sequence[Row]] = {}
        errors: dict[str, SourceError] = {}

        async def ask(path: str, parameters: Mapping[str, str]) -> list[Row]:
            answer = await self._ask(f"{url.rstrip('/')}/api/v1/{path}", parameters, credentials)
            reply.source_time = answer.server_time if reply.source_time is None else reply.source_time
            return await off_the_loop(len(answer.body), lambda: parse_result(load_json(answer.body)))

        for metric in spec.metrics:
            try:
                found = await ask(*_request(metric, source.values, now))
                if metric.time_query is not None and found:
                    query = render_query(metric.time_query, source.values)
                    found = timed(found, await ask("query", {"query": query}))
                rows[metric.name] = found
            except SourceError as error:
                if error.reason is not Reason.QUERY:
                    raise
                errors[metric.name] = error
        reply.rows, reply.errors = rows, errors
        return reply

    async def _ask(self, url: str, parameters: Mapping[str, str], credentials: str | None) -> Answer:
        try:
            return await self._web.get(url, parameters=parameters, credentials=credentials, accept="application/json")
        except StatusError as error:
            if error.status in (400, 422):
                raise SourceError(Reason.QUERY, f"the query is refused: {_said(error)}") from error
            raise


def _said(error: StatusError) -> str:
    try:
        document = load_json(error.body)
    except SourceError:
        return str(error)
    return str(document.get("error", error))[:300] if isinstance(document, dict) else str(error)


def _request(metric: CollectedMetric, values: Mapping[str, str], now: float) -> tuple[str, dict[str, str]]:
    query = render_query(metric.query or "", values)
    if metric.range is None or metric.step is None:
        return "query", {"query": query}
    if metric.range / metric.step > MAX_STEPS:
        raise SourceError(Reason.QUERY, f"range / step is more than the {MAX_STEPS} values that Prometheus gives")
    end = (
        now // metric.step * metric.step
    )  # the same moments in every run, so that values seen before are known as such
    start = end - metric.range
    return "query_range", {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{metric.step:g}"}


def timed(rows: Sequence[Row], times: Sequence[Row]) -> list[Row]:
    """Each row with the value of the row of `times` that has its labels as its time; without one it is left out."""
    by_labels = {_key(row): row.value for row in times}
    timed_rows = []
    for row in rows:
        time = by_labels.get(_key(row))
        if isinstance(time, float):
            timed_rows.append(row._replace(timestamp=time))
    return timed_rows


def _key(row: Row) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in row.labels.items() if item[0] != "__name__")


def parse_result(document: Any) -> list[Row]:
    """Rows of an answer, whatever its result's type; raises `SourceError`. Pure."""
    try:
        if document["status"] != "success":
            raise SourceError(Reason.QUERY, f"Prometheus says {document.get('error', document['status'])!r:.300}")
        kind, result = document["data"]["resultType"], document["data"]["result"]
        if kind in ("vector", "matrix") and sum(len(s.get("values", "1")) for s in result) > MAX_ROWS:
            raise SourceError(Reason.TOO_LARGE, f"the query gives more than {MAX_ROWS} values: aggregate in the query")
        match kind:
            case "vector":
                return [_row(series["metric"], series["value"]) for series in result]
            case "matrix":
                return [_row(series["metric"], value) for series in result for value in series["values"]]
            case "scalar":
                return [_row({}, result)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(Reason.MALFORMED, f"the answer is not of Prometheus' form: {error!r:.200}") from error
    raise SourceError(Reason.QUERY, f"the query gives a {kind!r:.40}; write one that gives numbers")


def _row(labels: Any, value: Any) -> Row:
    time, number = value
    if not isinstance(labels, dict) or not all(isinstance(text, str) for text in labels.values()):
        raise TypeError("labels")
    return Row(labels, float(number), float(time))
