"""Which orders can be foreseen, and when there is something to do for one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from heterotrain.ps.foresight import Foresight
from heterotrain.ps.values import CommitOrder, GradientName


def order(version: int, weights: tuple[float, ...] = (0.75, 0.25), **fields: Any) -> CommitOrder:
    """A BSP round: iteration and version are one number."""
    contributions = tuple((GradientName(w, 1, version), weight) for w, weight in enumerate(weights))
    return CommitOrder(term=1, version=version, **{"contributions": contributions, **fields})


def tell(foresight: Foresight, *orders: CommitOrder, is_here: Callable[[GradientName], bool] = lambda _: False) -> None:
    for each in orders:
        foresight.expect(foresight.foresee(each), is_here)


def after(*orders: CommitOrder) -> CommitOrder | None:
    foresight = Foresight()
    tell(foresight, *orders)
    return foresight.expected


NEWER = ((GradientName(0, 1, 5), 0.75), (GradientName(1, 2, 5), 0.25))


@pytest.mark.parametrize(
    ("orders", "expected"),
    [
        pytest.param([order(4)], None, id="one order says nothing"),
        pytest.param([order(4), order(5)], order(6), id="two alike"),
        pytest.param(
            [order(4, retain=frozenset({4})), order(5, discard=(GradientName(2, 1, 5),))],
            order(6),
            id="what stays and what is let go does not change the result",
        ),
        pytest.param([order(4), order(5, (0.5, 0.5))], None, id="other shares"),
        pytest.param([order(3), order(4, (0.5, 0.5)), order(5, (0.5, 0.5))], order(6, (0.5, 0.5)), id="shares settled"),
        pytest.param([order(4), order(5, groups=('{"lr": 0.5}',))], None, id="another learning rate"),
        pytest.param([order(4), order(5, scale=0.5)], None, id="a part of the samples counted"),
        pytest.param([order(4), order(5, contributions=NEWER)], None, id="a worker came back"),
        pytest.param([order(4), order(6)], None, id="not the next one"),
        pytest.param([order(4), replace(order(5), term=2)], None, id="another term"),
        pytest.param([order(4, ()), order(5, ())], None, id="only the version moves"),
        pytest.param(
            [order(4, clip_coefficient=1.0), order(5, clip_coefficient=1.0)], None, id="clipping needs all shards"
        ),
        pytest.param([order(4, compensation=0.1), order(5, compensation=0.1)], None, id="compensation of stale ones"),
    ],
)
def test_an_order_is_foreseen_where_rounds_are_alike(orders: list[CommitOrder], expected: CommitOrder | None) -> None:
    assert after(*orders) == expected


def test_there_is_something_to_do_at_the_first_and_at_the_last_gradient() -> None:
    foresight = Foresight()
    three = (0.5, 0.25, 0.25)
    tell(foresight, order(4, three), order(5, three))
    names = [GradientName(worker, 1, 6) for worker in (2, 0, 0, 1)]
    assert [foresight.arrived(name) for name in names] == [True, False, False, True], "one came twice"
    assert foresight.is_complete
    assert not foresight.arrived(GradientName(0, 1, 7)), "of another round"


def test_gradients_that_were_here_before_their_round_count() -> None:
    foresight = Foresight()
    early = GradientName(0, 1, 6)
    tell(foresight, order(4), order(5), is_here=early.__eq__)
    assert not foresight.is_complete
    assert foresight.arrived(GradientName(1, 1, 6))
    assert foresight.is_complete
