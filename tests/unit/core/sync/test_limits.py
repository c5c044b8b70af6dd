"""Delay has BSP and ASP as its limits: the same decisions, whatever happens (algorithms.md D7)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders_sync import World, examples, randomly
from heterotrain_core.synchronization import NO_DISCOUNT, Asp, Backup, Bsp, Delay, Ssp, Synchronization

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["done"] * 6 + ["refuse", "leave", "join", "drain", "plan", "stop"]),
        st.integers(0, 3),
        st.lists(st.integers(0, 5), min_size=4, max_size=4),
    ),
    max_size=40,
)


def play(mode: Synchronization, actions: list[tuple[str, int, list[int]]], size: int, *, ahead: int = 0) -> World:
    """Three of four workers join, the actions happen a second apart, then everybody works to the end."""
    world = World(mode, [3, 2, 1, 2], dataset_size=size, epochs=2, rounds_ahead=ahead)
    world.leave(3)
    world.join(0, 1, 2)
    gone = {3}
    for action, which, shares in actions:
        world.now += 1
        ready, live = world.ready(), world.policy.live
        if action in {"done", "refuse"} and ready:
            world.done(ready[which % len(ready)], refused=action == "refuse")
        elif action == "leave" and which not in gone:
            world.leave(which)
            gone.add(which)
        elif action == "join" and which in gone:
            world.join(which)
            gone.remove(which)
        elif action == "drain" and which in live:
            world.drain(which)
        elif action == "plan":
            world.plan(shares)
        elif action == "stop" and which == 0 and len(world.commits) > 10:
            world.stop()
        world.tick()
    choose = randomly(0)
    while ready := world.ready():
        world.now += 1
        world.done(choose(ready))
        world.tick()
    return world


@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(Delay(window_seconds=None, staleness_bound=None), id="no window at all"),
        pytest.param(Delay(window_seconds=None, staleness_bound=3), id="no window, some bound"),
        pytest.param(Delay(window_seconds=0.0, staleness_bound=0), id="bound 0 and the shortest window"),
        pytest.param(Delay(window_seconds=0.5, staleness_bound=0), id="bound 0 and a window"),
        pytest.param(Backup(0), id="no backup workers"),
    ],
)
@settings(max_examples=examples(30))
@given(actions=ACTIONS, size=st.integers(1, 40))
def test_lock_step_is_bsp_decision_for_decision(
    mode: Synchronization, actions: list[tuple[str, int, list[int]]], size: int
) -> None:
    assert play(mode, actions, size).decisions == play(Bsp(), actions, size).decisions


@settings(max_examples=examples(30))
@given(actions=ACTIONS, size=st.integers(1, 40), ahead=st.integers(1, 2))
def test_without_losses_and_plans_lock_step_has_the_commits_of_bsp_with_rounds_ahead(
    actions: list[tuple[str, int, list[int]]], size: int, ahead: int
) -> None:
    only_done = [a for a in actions if a[0] in {"done", "refuse"}]
    delay, bsp = play(Delay(window_seconds=None), [], size), play(Bsp(), [], size, ahead=ahead)
    assert delay.commits == bsp.commits

    shuffled = play(Bsp(), [a for a in only_done if a[0] == "done"], size, ahead=ahead)
    assert shuffled.commits == bsp.commits


@settings(max_examples=examples(60))
@given(actions=ACTIONS, size=st.integers(1, 40))
def test_no_window_no_bound_and_no_discount_is_asp(actions: list[tuple[str, int, list[int]]], size: int) -> None:
    delay = Delay(window_seconds=0.0, staleness_bound=None, discount=NO_DISCOUNT)

    assert play(delay, actions, size).decisions == play(Asp(), actions, size).decisions


@settings(max_examples=examples(60))
@given(actions=ACTIONS, size=st.integers(1, 40))
def test_ssp_without_bound_is_asp(actions: list[tuple[str, int, list[int]]], size: int) -> None:
    assert play(Ssp(staleness_bound=None), actions, size).decisions == play(Asp(), actions, size).decisions
