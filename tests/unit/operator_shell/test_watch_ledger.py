"""A watch is judged by what lists have shown and it has not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.watch_ledger import Version, WatchLedger

A1, A2, B1 = Version("a", "1"), Version("a", "2"), Version("b", "1")


def test_what_was_delivered_before_or_after_the_list_is_fine() -> None:
    ledger = WatchLedger(0)
    ledger.delivered("ns", A1, deleted=False, now=1)
    ledger.listed("ns", [A1, B1], 2)
    ledger.delivered("ns", B1, deleted=False, now=3)
    ledger.listed("ns", [A1, B1], 62)
    assert ledger.lag() == 0


def test_an_object_that_lists_show_again_and_again_and_the_watch_never_makes_the_lag_grow() -> None:
    ledger = WatchLedger(0)
    for now in (0, 60, 120):
        ledger.delivered("ns", A1, deleted=False, now=now)  # others come through all the while
        ledger.listed("ns", [A1, B1], now)
    assert ledger.lag() == 120
    ledger.delivered("ns", B1, deleted=False, now=121)
    assert ledger.lag() == 0


def test_a_newer_version_and_a_deletion_can_be_withheld_too() -> None:
    ledger = WatchLedger(0)
    ledger.delivered("ns", A1, deleted=False, now=0)
    ledger.delivered("ns", B1, deleted=False, now=0)
    ledger.listed("ns", [A2], 10)
    ledger.listed("ns", [A2], 70)
    assert ledger.lag() == 60
    ledger.delivered("ns", A2, deleted=False, now=71)
    assert ledger.lag() == 60  # of the deletion
    ledger.delivered("ns", B1, deleted=True, now=72)
    assert ledger.lag() == 0


def test_a_quiet_cluster_and_lists_that_fail_are_no_fault_of_the_watch() -> None:
    ledger = WatchLedger(0)
    ledger.delivered("ns", A1, deleted=False, now=0)
    ledger.listed("ns", [A2], 1)  # the event is on its way; then neither lists nor the watch get through for an hour
    assert (ledger.lag(), ledger.age(3600)) == (0, 3600)
    ledger.listed("ns", [A2], 3601)
    assert ledger.lag() == 3600  # now it is known


def test_scopes_are_apart_and_can_be_forgotten() -> None:
    ledger = WatchLedger(0)
    for now in (0, 60):
        ledger.listed("one", [A1], now)
        ledger.listed("two", [], now)
    assert ledger.lag() == 60
    ledger.forget("one")
    assert ledger.lag() == 0


def test_age_counts_from_the_start_until_the_first_event() -> None:
    assert WatchLedger(5).age(15) == 10


Step = tuple[bool, str, str, bool]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("123"), st.booleans()), max_size=30))
def test_a_watch_that_delivers_all_in_order_never_lags_and_leaves_nothing_behind(
    changes: list[tuple[str, str, bool]],
) -> None:
    ledger, objects = WatchLedger(0), dict[str, str]()
    for now, (uid, version, deleted) in enumerate(changes):
        if deleted:
            objects.pop(uid, None)
        else:
            objects[uid] = version
        ledger.delivered("ns", Version(uid, version), deleted=deleted, now=now)
        ledger.listed("ns", [Version(*item) for item in objects.items()], now)
        assert ledger.lag() == 0
    for uid, version in tuple(objects.items()):
        ledger.delivered("ns", Version(uid, version), deleted=True, now=100)
    assert ledger.scopes == ()
