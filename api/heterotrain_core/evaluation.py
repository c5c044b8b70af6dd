"""Evaluations shared out among the workers: every sample once, by speed; sums added in worker order. Pure.

Calls are matched by their number. A worker that came while others were training is *behind*: nobody waits for it, and
what it evaluates it evaluates alone, until it has reached the end of an epoch with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heterotrain_core.run_effects import EvaluationOutcome, EvaluationWork, Send
from heterotrain_core.run_values import RunFault, RunReason
from heterotrain_core.shares import proportional


@dataclass(slots=True)
class _Piece:
    """Samples given to a worker, and its sums over them once they are in."""

    worker: str
    start: int
    stop: int
    sums: Mapping[str, float] | None = None


@dataclass(slots=True)
class _Call:
    """An evaluation that some or all workers have reached."""

    number: int
    sizes: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    """That the callers' models hold."""
    pieces: list[_Piece] = field(default_factory=list)
    """In worker order, then what was handed on; none until all have called."""
    orphans: list[tuple[int, int]] = field(default_factory=list)
    """Of workers that are lost; nobody has them yet."""

    def begun_by(self, worker: str) -> _Piece | None:
        """What the worker is measuring."""
        return next((p for p in self.pieces if p.worker == worker and p.sums is None), None)

    def free(self) -> list[str]:
        """Workers that have handed in all that they were given, and hold the newest version that is left."""
        newest = max(self.versions.values(), default=0)
        return [w for w in self.sizes if self.versions[w] == newest and self.begun_by(w) is None]


class EvaluationBoard:
    """Evaluations of one job, one after another. Raises `RunFault` when the scripts do not agree."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        """Newest call of each worker, in its own counting."""
        self._offsets: dict[str, int] = {}
        """What a worker's own count is short of, if it came later."""
        self._speeds: dict[str, float] = {}
        self._call: _Call | None = None
        self._behind: dict[str, bool] = {}
        """Workers that came later; whether they have reached the end of an epoch since."""
        self._alone: dict[str, int] = {}
        """Samples of those who evaluate by themselves."""
        self._finished = 0
        """Number of the newest evaluation that is over."""
        self._outcome: tuple[int, EvaluationOutcome] | None = None
        """Version and outcome of it."""
        self._repeats: set[str] = set()
        """Workers that get that outcome once they have handed in their empty part."""

    @property
    def callers(self) -> frozenset[str]:
        """Workers that wait for the others to call."""
        return frozenset(self._call.sizes) if self._call is not None and not self._call.pieces else frozenset()

    @property
    def busy(self) -> bool:
        """An evaluation of all is under way."""
        return self._call is not None

    def is_behind(self, worker: str) -> bool:
        """Nobody waits for it."""
        return worker in self._behind

    def came(self, worker: str) -> None:
        """A worker has joined while others are training."""
        self._behind[worker] = False

    def at_epoch_end(self, worker: str) -> None:
        """A worker holds the version of an epoch's end."""
        if worker in self._behind:
            self._behind[worker] = True

    def call(self, worker: str, number: int, dataset_size: int, version: int) -> list[Send]:
        """A worker has reached its evaluation `number`, with `version` in its model; `share_out` follows."""
        busy = self._call is not None and worker in self._call.sizes
        if number <= self._last.get(worker, -1) or busy or dataset_size < 0:
            message = f"worker {worker} called evaluation {number} of {dataset_size} samples out of turn"
            raise RunFault(RunReason.SCRIPTS_DIFFER, message)
        self._last[worker] = number
        if worker in self._behind:
            return self._call_behind(worker, number, dataset_size, version)
        if self._own(worker, number) <= self._finished:
            return self._by_itself(worker, number, dataset_size)  # it began anew before training; others are over it
        self._join_call(worker, number, dataset_size, version)
        return []

    def share_out(self, workers: Sequence[str], speeds: Mapping[str, float], shares: Mapping[str, int]) -> list[Send]:
        """Work for all, once all `workers` (in worker order) have called; else nothing.

        By the speeds of the evaluation before, else by `speeds` of training, else by `shares`: the first that is
        known of all. Only those who hold the newest version get samples, so that one version is measured: not a worker
        that was drained, nor, within an epoch, one that is behind in a mode in which workers do not wait.
        """
        call = self._call
        if call is None or call.pieces or not workers or any(w not in call.sizes for w in workers):
            return []
        known = next(
            (s for s in (self._speeds, speeds) if all(s.get(w, 0.0) > 0.0 for w in workers)),
            {w: float(n) for w, n in shares.items()},
        )
        newest = max(call.versions[w] for w in workers)
        able = [call.versions[w] == newest for w in workers]
        weights = [known.get(w, 0.0) * is_able for w, is_able in zip(workers, able, strict=True)]
        counts = proportional(weights if any(weights) else able, next(iter(call.sizes.values())))
        start = 0
        for worker, count in zip(workers, counts, strict=True):
            call.pieces.append(_Piece(worker, start, start + count))
            start += count
        return [self._work(p) for p in call.pieces]

    def part(self, worker: str, number: int, sums: Mapping[str, float], seconds: float) -> list[Send]:
        """A worker's sums; the outcome for all once all parts that are not empty are in."""
        if worker in self._alone and number == self._last.get(worker):
            size = self._alone.pop(worker)
            return [Send(worker, EvaluationOutcome(number, dict(sums), size))]
        if worker in self._repeats and self._outcome is not None:
            self._repeats.discard(worker)
            return [Send(worker, self._outcome[1])]
        call = self._call
        piece = call.begun_by(worker) if call is not None and call.number == self._own(worker, number) else None
        if call is None or piece is None:
            if number == self._last.get(worker):
                return []  # an empty part, after the outcome that did not need it
            message = f"worker {worker} gave a part of evaluation {number} that it was not asked for"
            raise RunFault(RunReason.WORKER_FAILED, message)
        count = piece.stop - piece.start
        piece.sums = sums if count else {}
        if count and seconds > 0:
            self._speeds[worker] = count / seconds
        return self._go_on(call)

    def left(self, worker: str) -> None:
        """A worker has left; whoever waits must not wait for it."""
        if self._call is not None and worker in self._call.sizes:
            raise RunFault(RunReason.SCRIPTS_DIFFER, f"worker {worker} left in the middle of an evaluation")
        self._forget(worker)

    def lost(self, worker: str) -> list[Send]:
        """A worker is gone, perhaps in the middle of an evaluation: others get its part. `share_out` follows."""
        self._forget(worker)
        call = self._call
        if call is None or call.sizes.pop(worker, None) is None:
            return []
        del call.versions[worker]
        if not call.sizes:
            self._call = None
            return []
        if not call.pieces:
            return []
        begun = call.begun_by(worker)
        if begun is not None:
            call.pieces.remove(begun)
            if begun.start < begun.stop:
                call.orphans.append((begun.start, begun.stop))
        return self._go_on(call)

    def _call_behind(self, worker: str, number: int, dataset_size: int, version: int) -> list[Send]:
        """As the others' if it is at the same place, else alone."""
        call = self._call
        if not self._behind[worker]:
            return self._by_itself(worker, number, dataset_size)
        del self._behind[worker]
        if call is None and self._outcome is not None and self._outcome[0] == version:
            self._offsets[worker] = self._finished - number
            self._repeats.add(worker)
            return [Send(worker, EvaluationWork(number, 0, 0))]
        self._offsets[worker] = (call.number if call is not None else self._finished + 1) - number
        if call is None or not call.pieces:
            self._join_call(worker, number, dataset_size, version)
            return []
        call.sizes[worker], call.versions[worker] = dataset_size, version
        call.pieces.append(_Piece(worker, dataset_size, dataset_size))
        return [self._work(call.pieces[-1])]

    def _by_itself(self, worker: str, number: int, dataset_size: int) -> list[Send]:
        self._alone[worker] = dataset_size
        return [Send(worker, EvaluationWork(number, 0, dataset_size))]

    def _join_call(self, worker: str, number: int, dataset_size: int, version: int) -> None:
        if self._call is None:
            self._call = _Call(self._own(worker, number))
        call = self._call
        other = next(iter(call.sizes), worker)
        if call.number != self._own(worker, number) or call.pieces:
            raise RunFault(
                RunReason.SCRIPTS_DIFFER,
                f"worker {worker} is at its evaluation {number} while worker {other} is at {call.number}: all workers "
                "must call session.evaluate equally often, in the same order",
            )
        if call.sizes.get(other, dataset_size) != dataset_size:
            raise RunFault(
                RunReason.SCRIPTS_DIFFER,
                f"evaluation {number}: worker {worker} has a data set of {dataset_size} samples, worker {other} of "
                f"{call.sizes[other]}",
            )
        call.sizes[worker] = dataset_size
        call.versions[worker] = version

    def _go_on(self, call: _Call) -> list[Send]:
        """Hand on what lost workers had, then the outcome if nothing is missing."""
        sends: list[Send] = []
        for worker in call.free():
            if call.orphans:
                call.pieces.append(_Piece(worker, *call.orphans.pop()))
                sends.append(self._work(call.pieces[-1]))
        if call.orphans or any(p.sums is None and p.start < p.stop for p in call.pieces):
            return sends
        size = next(iter(call.sizes.values()))
        outcome = EvaluationOutcome(call.number, _added(call), size)
        self._call, self._finished = None, call.number
        self._outcome = max(call.versions.values()), outcome
        return [*sends, *(Send(w, outcome) for w in call.sizes)]

    def _work(self, piece: _Piece) -> Send:
        return Send(piece.worker, EvaluationWork(self._last[piece.worker], piece.start, piece.stop))

    def _own(self, worker: str, number: int) -> int:
        """A worker's own number as that of all."""
        return number + self._offsets.get(worker, 0)

    def _forget(self, worker: str) -> None:
        for table in (self._last, self._offsets, self._behind, self._alone):
            table.pop(worker, None)
        self._repeats.discard(worker)


def _added(call: _Call) -> dict[str, float]:
    """Sums in the order of the pieces; all must have the same names."""
    total: dict[str, float] = {}
    first: str | None = None
    for piece in call.pieces:
        if piece.start == piece.stop or piece.sums is None:
            continue
        if first is None:
            first, total = piece.worker, dict(piece.sums)
        elif piece.sums.keys() != total.keys():
            raise RunFault(
                RunReason.SCRIPTS_DIFFER,
                f"evaluation {call.number}: worker {piece.worker} measured {sorted(piece.sums)}, worker {first} "
                f"{sorted(total)}",
            )
        else:
            total = {name: total[name] + value for name, value in piece.sums.items()}
    return total
