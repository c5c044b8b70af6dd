"""Which fields an older CRD drops."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_operator.job.pruned import pruned_fields


@pytest.mark.parametrize(
    ("sent", "stored", "want"),
    [
        pytest.param({"a": 1}, {"a": 1, "b": 2}, [], id="nothing"),
        pytest.param({"a": None}, {}, [], id="null is as good as absent"),
        pytest.param({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"c": 1}}, ["a", "b.d"], id="fields"),
        pytest.param({"l": [{"a": 1}, {"a": 1}]}, {"l": [{}, {}]}, ["l[].a"], id="fields of entries, once"),
    ],
)
def test_fields(sent: dict[str, Any], stored: dict[str, Any], want: list[str]) -> None:
    assert pruned_fields(sent, stored) == want
