"""Rows out of text and JSON documents. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from heterotrain_api.info_collection import CollectedMetric, Format
from heterotrain_operator.info.sources.base import Reason, Row, SourceError
from heterotrain_operator.info.sources.json_path import as_text, find
from heterotrain_operator.info.sources.text_format import text_rows
from heterotrain_operator.job.quantity import parse_quantity


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
