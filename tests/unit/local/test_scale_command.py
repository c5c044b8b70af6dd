"""``heterotrain scale``: what it reads, and what it makes of a job's groups on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from heterotrain_operator.commands.cluster import scaled_workers
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.scale import parse_groups

WORKERS: list[dict[str, Any]] = [{"name": "gpu", "device": "CUDA"}, {"name": "cpu", "replicas": 2, "batch": {"min": 1}}]


def test_groups_are_read_as_names_and_numbers() -> None:
    assert parse_groups(["cpu=4", "big-gpu=1"]) == {"cpu": 4, "big-gpu": 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cpu"], "cpu: write GROUP=REPLICAS with at least 1 worker, e.g. cpu=4"),
        (["=4"], "=4: write GROUP=REPLICAS"),
        (["cpu=0"], "cpu=0: write GROUP=REPLICAS"),
        (["cpu=-1"], "cpu=-1: write GROUP=REPLICAS"),
        (["cpu=vier"], "cpu=vier: write GROUP=REPLICAS"),
        (["cpu=000"], "cpu=000: write GROUP=REPLICAS"),
        (["cpu=257"], "cpu=257: a group has at most 256 workers"),
        (["cpu=99999999999"], "cpu=99999999999: a group has at most 256 workers"),
        (["cpu=" + "9" * 5000], "cpu=" + "9" * 36 + ": a group has at most 256 workers"),
        (["cpu=1", "cpu=2"], "group cpu is given twice"),
    ],
)
def test_words_that_are_none_are_refused(words: Sequence[str], message: str) -> None:
    with pytest.raises(CommandError) as error:
        parse_groups(words)
    assert str(error.value).startswith(message)


def test_only_the_numbers_of_the_named_groups_change() -> None:
    assert scaled_workers(WORKERS, {"cpu": 3}) == [
        {"name": "gpu", "device": "CUDA", "replicas": 1},
        {"name": "cpu", "replicas": 3, "batch": {"min": 1}},
    ]


def test_an_unknown_group_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no group is named tpu; there are: gpu, cpu"):
        scaled_workers(WORKERS, {"tpu": 3})
