"""The condition under which pulls wait for a version: nobody is forgotten, and the last one who came is woken first."""

from __future__ import annotations

import threading

import pytest

from heterotrain.ps.last_first import LastFirst


def test_the_last_one_who_came_is_woken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    changed, woken = LastFirst(threading.RLock()), []
    came: list[threading.Condition] = []
    notify = threading.Condition.notify

    def note(condition: threading.Condition, n: int = 1) -> None:
        if condition in came:  # other threads of this process use conditions too
            woken.append(condition)
        notify(condition, n)

    def wait() -> None:
        with changed:
            changed.wait(10.0)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
        before = len(came)
        while len(came) == before:
            with changed:
                came = list(changed._waiting)
    monkeypatch.setattr(threading.Condition, "notify", note)
    with changed:
        changed.notify_all()
    for thread in threads:
        thread.join(10.0)

    assert woken == came[::-1]
    assert changed._waiting == []


def test_everybody_is_woken_and_may_wait_again() -> None:
    changed, there, seen = LastFirst(threading.RLock()), threading.Barrier(4, timeout=10.0), []
    version = 0

    def follow() -> None:
        for wanted in (1, 2):
            with changed:
                while version < wanted:
                    changed.wait(30.0)
                seen.append(wanted)
            there.wait()

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for wanted in (1, 2):
        with changed:
            version = wanted
            changed.notify_all()
        there.wait()
    for thread in threads:
        thread.join(10.0)

    assert sorted(seen) == [1, 1, 1, 2, 2, 2]


def test_a_wait_ends_when_its_time_is_up() -> None:
    changed = LastFirst(threading.RLock())

    with changed:
        changed.wait(0.001)

    assert changed._waiting == []
