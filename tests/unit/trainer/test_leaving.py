"""SIGTERM to a worker's process: once to hand in and leave, twice to leave at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from heterotrain.errors import LeftJobError
from heterotrain.leaving import LeaveWatch


@contextmanager
def watching(*, at_once: bool, seconds: float = 60.0) -> Iterator[list[str]]:
    told: list[str] = []

    def leave() -> bool:
        told.append("leaving")
        return at_once

    watch = LeaveWatch(leave, seconds=seconds)
    watch.install()
    try:
        yield told
    finally:
        watch.remove()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def wait_after_signal() -> None:
    terminate()
    threading.Event().wait(30)


def test_with_work_under_way_the_first_signal_tells_the_job_and_the_second_ends() -> None:
    with watching(at_once=False) as told:
        terminate()
        assert told == ["leaving"]
        with pytest.raises(LeftJobError, match="drops what it was computing") as left:
            terminate()
        assert (left.value.code, told) == (0, ["leaving"])


def test_with_nothing_under_way_the_first_signal_ends() -> None:
    with watching(at_once=True), pytest.raises(LeftJobError, match="has left its job"):
        terminate()


def test_what_takes_too_long_is_dropped_without_a_second_signal() -> None:
    with watching(at_once=False, seconds=0.01), pytest.raises(LeftJobError, match="drops"):
        wait_after_signal()


def test_a_handler_of_the_script_stays() -> None:
    mine = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, mine)
    try:
        watch = LeaveWatch(lambda: True)
        watch.install()
        watch.remove()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_outside_the_main_thread_nothing_is_watched() -> None:
    thread = threading.Thread(target=LeaveWatch(lambda: True).install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
