"""The Prometheus text format, read piece by piece. Pure.

Most lines are of one plain form, which is read here; all others are left to prometheus-client, whose reading is what
counts. https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from heterotrain_api.info_collection import CollectedMetric
from heterotrain_operator.info.sources.base import MAX_ROWS, Reason, Row, SourceError

PIECE: Final = 8192
"""Characters that are read in one step: some hundred lines, for half a millisecond."""
_LABEL: Final = r'(?!__)[a-zA-Z_][a-zA-Z0-9_]*="[^"\\]*"'
_PLAIN: Final = re.compile(
    r"[a-zA-Z_:][a-zA-Z0-9_:]*"
    rf"(?:\{{((?:{_LABEL}(?:,{_LABEL})*,?)?)\}}[ \t]*|[ \t]+)"
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|Inf)|NaN)"
    r"(?:[ \t]+(-?[0-9]{1,15}))?[ \t\r]*"
)
"""Labels, value and time of a line without escapes and other rare things."""
_PAIR: Final = re.compile(r'([a-zA-Z0-9_]+)="([^"]*)"')
_NOTHING: Final[Mapping[str, str]] = {}

Rows = dict[str, list[Row]]


def text_rows(body: bytes, metrics: Sequence[CollectedMetric]) -> Rows:
    """Rows of each of `metrics`, by name; raises `SourceError`."""
    rows: Rows = {}
    for _ in reading_text(body, metrics, rows):
        pass
    return rows


def reading_text(
    body: bytes, metrics: Sequence[CollectedMetric], rows: Rows, labels: Mapping[str, str] = _NOTHING
) -> Iterator[None]:
    """`text_rows` into `rows`, in steps. Rows have `labels` where the source has none of the name.

    Lines that no metric asks for are not looked at closely.
    """
    text = _decoded(body)
    head = text[:200].lstrip()
    if head.startswith(("<", "{")):
        raise _not_metrics(head)
    wanted: Rows = {metric.from_ or metric.name: [] for metric in metrics}
    rows.update({metric.name: wanted[metric.from_ or metric.name] for metric in metrics})
    lines, taken = 0, 0
    for piece in _pieces(text):
        for line in piece:
            if not line or line[0] == "#":
                continue
            lines += 1
            found = wanted.get(_series_name(line))
            if found is not None:
                found.append(_row(line, labels))
                taken += 1
        if taken > MAX_ROWS:
            raise SourceError(Reason.TOO_LARGE, f"the answer has more than {MAX_ROWS} of the rule's series")
        yield
    if lines == 0:
        raise _not_metrics(head) if head and not head.startswith("#") else _no_series()


def _pieces(text: str) -> Iterator[list[str]]:
    """The lines, some at a time."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE)
        end = len(text) if end < 0 else end
        yield text[start:end].split("\n")
        start = end + 1


def _series_name(line: str) -> str:
    """All before the first brace, space or tab."""
    name = line.partition("{")[0].partition(" ")[0]
    return name.partition("\t")[0] if "\t" in name else name


def _row(line: str, labels: Mapping[str, str]) -> Row:
    plain = _PLAIN.fullmatch(line)
    if plain is not None:
        inner, value, time = plain.groups()
        pairs = _PAIR.findall(inner) if inner else ()
        own = dict(pairs)
        if len(own) == len(pairs):
            return Row({**labels, **own} if labels else own, float(value), None if time is None else int(time) / 1000)
    return _rare_row(line, labels)


def _rare_row(line: str, labels: Mapping[str, str]) -> Row:
    try:
        (sample,) = [s for family in text_string_to_metric_families(line + "\n") for s in family.samples]
        time = None if sample.timestamp is None else float(sample.timestamp)
        return Row({**labels, **sample.labels}, float(sample.value), time)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise SourceError(Reason.MALFORMED, f"a line is not in the Prometheus text format: {error}") from error


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise SourceError(Reason.NOT_METRICS, f"the answer is not text: {error}") from error


def _not_metrics(head: str) -> SourceError:
    return SourceError(Reason.NOT_METRICS, f"the answer is not in the Prometheus text format: {head[:60]!r}")


def _no_series() -> SourceError:
    return SourceError(Reason.EMPTY, "the answer has no series")
