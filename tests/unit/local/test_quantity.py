from __future__ import annotations

import pytest

from heterotrain_operator.local.quantity import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("512Mi", 512 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("1e9", 10**9),
        ("12E-1", 2),
        ("1E", 10**18),
        ("300k", 300_000),
        ("1500m", 2),
        ("64", 64),
        (64, 64),
        (".5Ki", 512),
    ],
)
def test_memory_is_read_as_kubernetes_does(text: str | float, want: int) -> None:
    assert parse_bytes(text) == want


@pytest.mark.parametrize("text", ["", "Mi", "12 Mi", "1MiB", "-1Mi", "1u", "ten"])
def test_what_is_no_memory_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount of memory"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "want"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (600 * 2**20, "600 MiB"), (5 * 2**40, "5.0 TiB")],
)
def test_bytes_are_shown_in_the_unit_that_fits(count: int, want: str) -> None:
    assert format_bytes(count) == want
