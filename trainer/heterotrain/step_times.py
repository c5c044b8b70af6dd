"""Where the time of a worker's iterations goes: what is its own, and what is spent waiting for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from heterotrain.engine import Update
from heterotrain_rpc import session_pb2 as pb


class StepTimes:
    """The training thread's own. `clock` gives seconds; see `Timings` in ``session.proto`` for the parts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_done = 0.0
        self._push = 0.0
        self._pull = 0.0
        self._receive = 0.0
        self._apart = 0.0
        """Since the last done: all pulls, and evaluations. Others are waited for in both."""

    def start(self) -> None:
        """The first iteration begins."""
        self._last_done, self._apart = self._clock(), 0.0

    @contextmanager
    def pulling(self) -> Iterator[None]:
        """Inside, the next item and its version are waited for and received."""
        began, self._receive = self._clock(), 0.0
        yield
        self._pull = self._clock() - began
        self._apart += self._pull

    def receive(self, transfer: float, hand_over: Callable[[], None]) -> None:
        """A version is there, after `transfer` seconds on the way; `hand_over` gives it to the model."""
        began = self._clock()
        hand_over()
        self._receive = transfer + self._clock() - began

    @contextmanager
    def evaluating(self, measured: float = 0.0) -> Iterator[None]:
        """Inside, others are waited for in an evaluation, for which this worker has measured some seconds."""
        began = self._clock()
        yield
        self._apart += measured + self._clock() - began

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Inside, the gradient is pushed."""
        began = self._clock()
        yield
        self._push = self._clock() - began

    def done(self, update: Update) -> pb.Timings:
        """The iteration is over, its gradient pushed; returns its times."""
        now = self._clock()
        step = now - self._last_done
        other = step - update.data_seconds - update.compute_seconds - self._push - self._apart
        self._last_done, self._apart = now, 0.0
        return pb.Timings(
            data_seconds=update.data_seconds,
            compute_seconds=update.compute_seconds,
            push_seconds=self._push,
            pull_seconds=self._pull,
            step_seconds=step,
            receive_seconds=self._receive,
            other_seconds=max(0.0, other),
            cpu_seconds=update.cpu_seconds,
        )
