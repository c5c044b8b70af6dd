from __future__ import annotations

from decimal import Decimal

import pytest

from heterotrain_operator.job.quantity import parse_quantity, whole_cpus


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("500m", "0.5"),
        (2, "2"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("2Gi", str(2 * 2**30)),
        ("1e3", "1000"),
        ("100n", "1e-7"),
    ],
)
def test_quantities_as_numbers(text: str | int, want: str) -> None:
    assert parse_quantity(text) == Decimal(want)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "-1", "1ki", "1e"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity; write for example 500m"):
        parse_quantity(text)


@pytest.mark.parametrize(("cpu", "want"), [("100m", 1), ("1500m", 1), (2, 2), ("3.99", 3)])
def test_threads_that_an_amount_keeps_busy(cpu: str | int, want: int) -> None:
    assert whole_cpus(cpu) == want
