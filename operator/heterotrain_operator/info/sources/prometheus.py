"""Prometheus' HTTP API: instant and range queries. Queries are the rule's own text; only quoted values are filled in.

https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from heterotrain_api.info_collection import CollectedMetric, CollectionRuleSpec
from heterotrain_operator.info.sources.base import Reason, Reply, Row, SourceError
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

    def __init__(self, web: Web, default_url: str | None) -> None:
        """`default_url`: for rules that name none."""
        self._web = web
        self._default_url = default_url

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
        rows: dict[str, list[Row]] = {}
        errors: dict[str, SourceError] = {}
        source_time = None
        for metric in spec.metrics:
            try:
                path, parameters = _request(metric, source.values, now)
                answer = await self._ask(f"{url.rstrip('/')}/api/v1/{path}", parameters, source.credentials)
            except SourceError as error:
                if error.reason is not Reason.QUERY:
                    raise
                errors[metric.name] = error
            else:
                source_time = answer.server_time if source_time is None else source_time
                rows[metric.name] = parse_result(load_json(answer.body))
        return Reply(rows, source_time, errors)

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


def parse_result(document: Any) -> list[Row]:
    """Rows of an answer, whatever its result's type; raises `SourceError`. Pure."""
    try:
        if document["status"] != "success":
            raise SourceError(Reason.QUERY, f"Prometheus says {document.get('error', document['status'])!r:.300}")
        kind, result = document["data"]["resultType"], document["data"]["result"]
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
