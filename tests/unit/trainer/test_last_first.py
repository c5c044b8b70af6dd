"""The condition under which pulls wait for a version: nobody is forgotten, and the last one who came is woken first."""

from __future__ import annotations

import collections
import threading
import time

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
    assert not changed._waiting


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

    assert not changed._waiting


class Waiting:
    """Threads that wait until they are woken, one after the other."""

    def __init__(self, changed: LastFirst, count: int, seconds: float = 20.0) -> None:
        self.changed, self.woken = changed, 0
        self.threads = [threading.Thread(target=self._wait, args=(seconds,)) for _ in range(count)]
        for before, thread in enumerate(self.threads):
            thread.start()
            until = time.monotonic() + 10.0
            while len(changed._waiting) <= before and time.monotonic() < until:
                time.sleep(0.001)  # lets it have the interpreter

    def _wait(self, seconds: float) -> None:
        with self.changed:
            self.changed.wait(seconds)
            self.woken += 1

    def join(self) -> None:
        for thread in self.threads:
            thread.join(10.0)


def test_only_one_is_woken_at_a_time() -> None:
    changed = LastFirst(threading.RLock())
    waiting = Waiting(changed, 3)
    with changed:
        changed.notify_all()
        first = list(changed._waiting)
        assert [own._waiters == collections.deque() for own in first] == [False, False, True]  # type: ignore[attr-defined]
    waiting.join()
    assert waiting.woken == 3


def test_who_is_told_again_before_it_has_run_forgets_nobody() -> None:
    changed = LastFirst(threading.RLock())
    waiting = Waiting(changed, 4)
    with changed:
        for _ in range(3):
            changed.notify_all()
    waiting.join()
    assert waiting.woken == 4


def test_whose_time_was_up_when_it_was_woken_wakes_the_next_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = threading.Condition.wait

    def late(condition: threading.Condition, timeout: float | None = None) -> bool:
        woken = wait(condition, timeout)
        return woken and condition not in changed._waiting

    changed = LastFirst(threading.RLock())
    monkeypatch.setattr(threading.Condition, "wait", late)
    waiting = Waiting(changed, 3)
    with changed:
        changed.notify_all()
    waiting.join()
    assert (waiting.woken, changed._turn, changed._to_wake) == (3, None, [])
