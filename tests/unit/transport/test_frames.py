from __future__ import annotations

import pickle
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain.transport.frames import (
    HEADER_BYTES,
    MAX_OFFSET,
    MAX_PARTS,
    MAX_TEXT_BYTES,
    Frame,
    FrameError,
    Hello,
    Pull,
    Push,
    Reply,
    Span,
    Status,
    decode,
    decode_table,
    encode,
    encode_table,
    table_bytes,
    text_length,
)

I64 = st.integers(-(2**63), 2**63 - 1)
COUNTS = {"num_parts": st.integers(0, MAX_PARTS), "num_bytes": st.integers(0, MAX_OFFSET)}
FRAMES = st.one_of(
    st.builds(Hello, st.text(max_size=60), st.integers(-1, 2**31 - 1), I64, I64),
    st.builds(Push, I64, I64, **COUNTS),
    st.builds(Pull, I64, I64, **COUNTS, wait_milliseconds=st.integers(0, 2**32 - 1)),
    st.builds(Reply, st.sampled_from(Status), st.text(max_size=60), st.integers(0, 2**64 - 1)),
)


def read(data: bytes) -> Frame:
    header = data[:HEADER_BYTES]
    assert len(data) == HEADER_BYTES + text_length(header)
    return decode(header, data[HEADER_BYTES:])


@given(FRAMES)
def test_what_is_encoded_is_decoded(frame: Frame) -> None:
    assert read(encode(frame)) == frame


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.binary(max_size=MAX_TEXT_BYTES))
def test_random_bytes_are_refused(header: bytes, text: bytes) -> None:
    with pytest.raises(FrameError):
        decode(header, text)


@given(st.binary(min_size=HEADER_BYTES - 5, max_size=HEADER_BYTES - 5), st.integers(1, 4))
def test_random_fields_give_a_frame_within_limits_or_an_error(rest: bytes, kind: int) -> None:
    header = b"HTNT\x01" + bytes([kind]) + rest[1:]
    try:
        frame = decode(header)
    except FrameError:
        return
    match frame:
        case Push() | Pull():
            assert frame.num_parts <= MAX_PARTS
            assert frame.num_bytes <= MAX_OFFSET
        case Reply():
            assert frame.status in set(Status)


PUSH = encode(Push(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("header", "want_message"),
    [
        pytest.param(b"GET / HTTP/1.1".ljust(HEADER_BYTES), "not a frame", id="another protocol"),
        pytest.param(pickle.dumps(list(range(40)))[:HEADER_BYTES], "not a frame", id="a pickle"),
        pytest.param(PUSH[:4] + b"\x02" + PUSH[5:], "protocol version 2", id="another version"),
        pytest.param(PUSH[:5] + b"\x09" + PUSH[6:], "unknown kind of frame 9", id="an unknown kind"),
        pytest.param(PUSH[:6] + b"\xff\xff" + PUSH[8:], "text of 65535 bytes", id="an endless text"),
        pytest.param(encode(Push(1, 2, MAX_PARTS + 1, 4)), "65537 parts", id="too many parts"),
        pytest.param(encode(Pull(1, 2, 1, MAX_OFFSET + 1, 0)), "more than any arena", id="too many bytes"),
        pytest.param(encode(Reply(Status.DONE))[:8] + b"\x63" + bytes(39), "unknown status 99", id="unknown status"),
    ],
)
def test_impossible_headers_are_refused(header: bytes, want_message: str) -> None:
    with pytest.raises(FrameError, match=want_message):
        decode(header)


def test_requests_carry_no_text() -> None:
    with pytest.raises(FrameError, match="has no text"):
        decode(PUSH, b"x")


def test_long_reasons_are_cut() -> None:
    frame = read(encode(Reply(Status.REFUSED, "é" * MAX_TEXT_BYTES)))
    assert frame == Reply(Status.REFUSED, "é" * (MAX_TEXT_BYTES // 2))


SPANS = st.lists(st.builds(Span, st.integers(0, 2**40), st.integers(1, 2**40)), max_size=20)


@given(SPANS)
def test_tables_give_back_their_parts(spans: list[Span]) -> None:
    table = encode_table(spans)
    assert len(table) == table_bytes(len(spans))
    assert decode_table(table, sum(s.size for s in spans)) == tuple(spans)


@pytest.mark.parametrize(
    ("parts", "num_bytes", "want_message"),
    [
        pytest.param([(0, 0)], 0, "an empty part", id="an empty part"),
        pytest.param([(2**64 - 8, 16)], 16, "beyond any arena", id="a range that wraps around"),
        pytest.param([(0, 2**63)], 2**63, "beyond any arena", id="a huge part"),
        pytest.param([(0, 8), (8, 8)], 17, "16 bytes together, 17 declared", id="another sum"),
    ],
)
def test_impossible_tables_are_refused(parts: list[tuple[int, int]], num_bytes: int, want_message: str) -> None:
    table = b"".join(struct.pack("<QQ", *part) for part in parts)
    with pytest.raises(FrameError, match=want_message):
        decode_table(table, num_bytes)
