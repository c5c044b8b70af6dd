"""The Prometheus text format: read as prometheus-client reads it, or refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from heterotrain_api.info_collection import CollectedMetric
from heterotrain_operator.info.sources.base import Reason, Row, SourceError
from heterotrain_operator.info.sources.text_format import PIECE, reading_text, text_rows

METRIC = [CollectedMetric.model_validate({"name": "a"})]
VALUES = st.floats().map(repr) | st.integers().map(str) | st.sampled_from(["NaN", "+Inf", "-Inf", "Inf", "1e+06", ".5"])
LABEL_NAMES = st.from_regex(r"\A[a-zA-Z_][a-zA-Z0-9_]{0,5}\Z") | st.sampled_from(["__name__", "__x", "le"])
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
LABELS = st.lists(st.tuples(LABEL_NAMES, st.text(max_size=8).map(lambda text: text.translate(ESCAPES))), max_size=3)
TIMES = st.just("") | st.integers(-(10**14), 10**14).map(lambda time: f" {time}")


def library_rows(line: str) -> list[Row] | None:
    """What prometheus-client reads; `None`: it refuses."""
    try:
        samples = [sample for family in text_string_to_metric_families(f"{line}\n") for sample in family.samples]
        return [
            Row(s.labels, float(s.value), None if s.timestamp is None else float(s.timestamp))
            for s in samples
        ]  # fmt: skip
    except (ValueError, KeyError, IndexError, OverflowError):
        return None


def our_rows(line: str) -> list[Row] | None:
    """`None`: it is refused, as malformed."""
    try:
        return text_rows(line.encode(), METRIC)["a"]
    except SourceError as error:
        if error.reason is not Reason.MALFORMED:
            raise
        return None


def same(ours: list[Row] | None, theirs: list[Row] | None) -> bool:
    """Equal, and NaN equals NaN."""
    return repr(ours) == repr(theirs)


@given(LABELS, VALUES, TIMES, st.sampled_from(["", ","]))
def test_a_line_is_read_as_the_library_reads_it(
    labels: list[tuple[str, str]], value: str, time: str, comma: str
) -> None:
    inner = ",".join(f'{name}="{text}"' for name, text in labels)
    line = f"a{{{inner}{comma if labels else ''}}} {value}{time}"
    assert same(our_rows(line), library_rows(line))


@pytest.mark.parametrize(
    "line",
    [
        "a 1", "a\t1", "a  1  ", "a 1\r", "a{} 1", "a {} 1", 'a{x="1"}1', 'a{x="}"} 1', 'a{x="{"} 1', 'a{x="a,b"} 1',
        'a{x="1",} 1', 'a{x="1",,} 1', 'a{x="1"y="2"} 1', 'a{x="1" , y="2"} 1', 'a{x=1} 1', 'a{x="1"', "a{", "a", "a x",
        "a 1_0", "a 1 2 3", "a 1 x", "a 0x10", "a 1e400", "a -1e-400", "a " + "9" * 30, 'a{x="1",x="2"} 1',
        'a{__name__="b"} 1', 'a{x="\\\\"} 1', 'a{x="\\""} 1', "a 1 # {x=\"1\"} 2", "a 1 1.5", "a +1", "a --1", "a nan",
        "a infinity", "a ١",
    ],
)  # fmt: skip
def test_odd_lines_are_read_or_refused_as_by_the_library(line: str) -> None:
    assert same(our_rows(line), library_rows(line))


def test_a_number_too_large_for_any_is_infinite() -> None:
    assert text_rows(b"a 1" + b"0" * 400 + b"\n", METRIC) == {"a": [Row({}, float("inf"))]}


def test_a_long_text_is_read_in_steps_that_miss_no_line() -> None:
    body = "".join(f'a{{n="{index}"}} {index}\nother{{n="{index}"}} 1\n' for index in range(2000))
    rows: dict[str, list[Row]] = {}
    steps = sum(1 for _ in reading_text(body.encode(), METRIC, rows, {"instance": "x", "n": "none"}))
    assert rows == {"a": [Row({"instance": "x", "n": str(index)}, float(index)) for index in range(2000)]}
    assert steps >= len(body) / (2 * PIECE)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(b"<html>a 1", Reason.NOT_METRICS, id="a page"),
        pytest.param(b'{"a": 1}', Reason.NOT_METRICS, id="JSON"),
        pytest.param(b"\xff\xfe", Reason.NOT_METRICS, id="no text"),
        pytest.param(b"# HELP a Nothing.\n", Reason.EMPTY, id="comments only"),
        pytest.param(b"", Reason.EMPTY, id="nothing"),
        pytest.param(b"b 1\na{ 1\n", Reason.MALFORMED, id="a broken line of the rule's"),
        pytest.param(b"a 1\n" * 100_001, Reason.TOO_LARGE, id="too many"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(body: bytes, reason: Reason) -> None:
    with pytest.raises(SourceError) as refused:
        text_rows(body, METRIC)
    assert refused.value.reason is reason
