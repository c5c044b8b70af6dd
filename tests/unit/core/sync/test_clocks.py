"""The clocks against a plain dictionary."""

from hypothesis import given, settings
from hypothesis import strategies as st

from builders_sync import examples
from heterotrain_core.sync.clocks import Clocks

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["tick"] * 5 + ["enter", "leave", "align", "catch up"]), st.integers(0, 4))
)


@settings(max_examples=examples(100))
@given(actions=ACTIONS)
def test_lowest_slowest_and_highest_are_always_at_hand(actions: list[tuple[str, int]]) -> None:
    clocks, plain = Clocks(), dict[int, int]()
    lowest = 0
    for action, worker in actions:
        if action == "enter" and worker not in plain:
            plain[worker] = min(plain.values(), default=lowest)
            clocks.enter(worker)
        elif action == "leave" and worker in plain:
            lowest = min(plain.values())
            del plain[worker]
            clocks.leave(worker)
        elif action == "tick" and worker in plain:
            plain[worker] += 1
            clocks.tick(worker)
        elif action == "catch up" and worker in plain:
            others = [clock for other, clock in plain.items() if other != worker]
            plain[worker] = max(plain[worker], min([max(plain.values()), *(clock + 2 for clock in others)]))
            clocks.catch_up(worker, 2)
        elif action == "align" and plain:
            plain = dict.fromkeys(plain, max(plain.values()))
            clocks.align()
        lowest = min(plain.values(), default=lowest)
        assert clocks.lowest == lowest
        assert clocks.slowest == min(plain, key=lambda w: (plain[w], w), default=None)
        assert len(clocks) == len(plain)
        assert {w: clocks[w] for w in plain} == plain
        if plain:
            assert clocks.highest == max(plain.values())
