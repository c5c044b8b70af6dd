"""Rows out of text and JSON documents. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

from prometheus_client.parser import text_string_to_metric_families

from heterotrain_api.info_collection import CollectedMetric, Format
from heterotrain_operator.info.sources.base import MAX_ROWS, Reason, Row, SourceError
from heterotrain_operator.info.sources.json_path import as_text, find
from heterotrain_operator.job.quantity import parse_quantity

_NAME_ENDS: Final = "{ \t"


class Layout(Protocol):
    """How a document is read: the part that endpoints and commands share."""

    @property
    def format(self) -> Format: ...  # noqa: D102

    @property
    def items(self) -> str | None: ...  # noqa: D102

    @property
    def labels(self) -> Mapping[str, str]: ...  # noqa: D102


def read_document(body: bytes, layout: Layout, metrics: Sequence[CollectedMetric]) -> dict[str, list[Row]]:
    """The rows of each of `metrics`, by name; raises `SourceError`."""
    if layout.format is Format.PROMETHEUS_TEXT:
        return text_rows(body, metrics)
    return item_rows(json_items(body, layout.items), layout.labels, metrics)


def text_rows(body: bytes, metrics: Sequence[CollectedMetric]) -> dict[str, list[Row]]:
    """Rows of the Prometheus text format. Lines that no metric asks for are not looked at closely."""
    text = _decoded(body)
    wanted = {metric.from_ or metric.name for metric in metrics}
    lines, others = [], 0
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        if _series_name(line) in wanted:
            lines.append(line)
        else:
            others += 1
    if len(lines) > MAX_ROWS:
        raise SourceError(Reason.TOO_LARGE, f"the answer has more than {MAX_ROWS} of the rule's series")
    _check_is_metrics(text, others + len(lines))
    by_name = _parsed(lines)
    return {metric.name: by_name.get(metric.from_ or metric.name, []) for metric in metrics}


def _parsed(lines: Sequence[str]) -> dict[str, list[Row]]:
    by_name: dict[str, list[Row]] = {}
    try:
        for family in text_string_to_metric_families("\n".join((*lines, ""))):
            for sample in family.samples:
                timestamp = None if sample.timestamp is None else float(sample.timestamp)
                by_name.setdefault(sample.name, []).append(Row(sample.labels, float(sample.value), timestamp))
    except (ValueError, KeyError, IndexError) as error:
        raise SourceError(Reason.MALFORMED, f"a line is not in the Prometheus text format: {error}") from error
    return by_name


def _series_name(line: str) -> str:
    for index, sign in enumerate(line):
        if sign in _NAME_ENDS:
            return line[:index]
    return line


def _check_is_metrics(text: str, lines: int) -> None:
    head = text[:200].lstrip()
    if head.startswith(("<", "{")) or (lines == 0 and head and not head.startswith("#")):
        raise SourceError(Reason.NOT_METRICS, f"the answer is not in the Prometheus text format: {head[:60]!r}")
    if lines == 0:
        raise SourceError(Reason.EMPTY, "the answer has no series")


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise SourceError(Reason.NOT_METRICS, f"the answer is not text: {error}") from error


def load_json(body: bytes) -> Any:
    """A JSON document; raises `SourceError`."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        head = body[:60].decode(errors="replace")
        raise SourceError(Reason.NOT_METRICS, f"the answer is not JSON: {head!r}") from error


def json_items(body: bytes, path: str | None) -> list[Any]:
    """The things in a JSON document that each become an entity."""
    try:
        return find(load_json(body), path or "")
    except ValueError as error:
        raise SourceError(Reason.MALFORMED, str(error)) from error


def item_rows(
    items: Sequence[Any],
    labels: Mapping[str, str],
    metrics: Sequence[CollectedMetric],
    more: Sequence[Mapping[str, str]] = (),
) -> dict[str, list[Row]]:
    """Rows of JSON things, one for each value at a metric's path. `more`: further labels of each thing."""
    try:
        named = [{name: as_text(next(iter(find(item, path)), None)) for name, path in labels.items()} for item in items]
        named = [{**extra, **own} for extra, own in zip(more, named, strict=True)] if more else named
        return {
            metric.name: [row for item, own in zip(items, named, strict=True) for row in _item_rows(item, own, metric)]
            for metric in metrics
        }
    except ValueError as error:
        raise SourceError(Reason.MALFORMED, str(error)) from error


def _item_rows(item: Any, labels: Mapping[str, str], metric: CollectedMetric) -> Iterator[Row]:
    words = metric.type in ("state", "text")
    for found in find(item, metric.path or metric.from_ or metric.name):
        if words:
            yield Row(labels, as_text(found))
        elif (number := as_number(found)) is not None:
            yield Row(labels, number)


def as_number(value: Any) -> float | None:
    """A JSON scalar as a number: quantities, times (seconds since the epoch) and truths too; `None` if it is none."""
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        return float(parse_quantity(value))
    except (ValueError, ArithmeticError):
        pass
    try:
        return datetime.fromisoformat(value).timestamp() if "T" in value else float(value)
    except (ValueError, OverflowError):
        return None
