"""Evaluations shared out among the workers: every sample once, by speed; sums added in worker order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from heterotrain_core.run_effects import EvaluationOutcome, EvaluationWork, Send
from heterotrain_core.run_values import RunFault, RunReason
from heterotrain_core.shares import proportional


@dataclass(slots=True)
class _Call:
    """An evaluation that some or all workers have reached."""

    number: int
    sizes: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    """That the callers' models hold."""
    parts: dict[str, int] = field(default_factory=dict)
    """Samples given to each worker; empty until all have called."""
    sums: dict[str, Mapping[str, float]] = field(default_factory=dict)


class EvaluationBoard:
    """Evaluations of one job, one after another. Raises `RunFault` when the scripts do not agree."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._speeds: dict[str, float] = {}
        self._call: _Call | None = None

    @property
    def callers(self) -> frozenset[str]:
        """Workers that wait for the others to call."""
        return frozenset(self._call.sizes) if self._call is not None and not self._call.parts else frozenset()

    @property
    def busy(self) -> frozenset[str]:
        """Workers that have called and were not answered."""
        return frozenset(self._call.sizes) if self._call is not None else frozenset()

    def call(self, worker: str, number: int, dataset_size: int, version: int) -> None:
        """A worker has reached its evaluation `number`, with `version` in its model; `share_out` follows."""
        if number <= self._last.get(worker, -1) or worker in self.busy or dataset_size < 0:
            message = f"worker {worker} called evaluation {number} of {dataset_size} samples out of turn"
            raise RunFault(RunReason.SCRIPTS_DIFFER, message)
        self._last[worker] = number
        if self._call is None:
            self._call = _Call(number)
        call = self._call
        other = next(iter(call.sizes), worker)
        if call.number != number or call.parts:
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

    def share_out(self, workers: Sequence[str], speeds: Mapping[str, float], shares: Mapping[str, int]) -> list[Send]:
        """Work for all, once all `workers` (in worker order) have called; else nothing.

        By the speeds of the evaluation before, else by `speeds` of training, else by `shares`: the first that is
        known of all. Only those who hold the newest version get samples, so that one version is measured: not a worker
        that was drained, nor, within an epoch, one that is behind in a mode in which workers do not wait.
        """
        call = self._call
        if call is None or call.parts or not workers or any(w not in call.sizes for w in workers):
            return []
        known = next(
            (s for s in (self._speeds, speeds) if all(s.get(w, 0.0) > 0.0 for w in workers)),
            {w: float(n) for w, n in shares.items()},
        )
        newest = max(call.versions[w] for w in workers)
        able = [call.versions[w] == newest for w in workers]
        weights = [known.get(w, 0.0) * is_able for w, is_able in zip(workers, able, strict=True)]
        counts = proportional(weights if any(weights) else able, next(iter(call.sizes.values())))
        call.parts = dict(zip(workers, counts, strict=True))
        sends = []
        start = 0
        for worker, count in call.parts.items():
            sends.append(Send(worker, EvaluationWork(call.number, start, start + count)))
            start += count
        return sends

    def part(self, worker: str, number: int, sums: Mapping[str, float], seconds: float) -> list[Send]:
        """A worker's sums; the outcome for all once all parts that are not empty are in."""
        call = self._call
        if call is None or call.number != number or worker not in call.parts or worker in call.sums:
            if number == self._last.get(worker):
                return []  # an empty part, after the outcome that did not need it
            message = f"worker {worker} gave a part of evaluation {number} that it was not asked for"
            raise RunFault(RunReason.WORKER_FAILED, message)
        count = call.parts[worker]
        call.sums[worker] = sums if count else {}
        if count and seconds > 0:
            self._speeds[worker] = count / seconds
        if any(n > 0 and w not in call.sums for w, n in call.parts.items()):
            return []
        outcome = EvaluationOutcome(number, _added(call), sum(call.parts.values()))
        self._call = None
        return [Send(w, outcome) for w in call.parts]

    def left(self, worker: str) -> None:
        """A worker has left; whoever waits must not wait for it."""
        if self._call is not None and worker in self._call.sizes:
            raise RunFault(RunReason.SCRIPTS_DIFFER, f"worker {worker} left in the middle of an evaluation")


def _added(call: _Call) -> dict[str, float]:
    """Sums in worker order; all parts must have the same names."""
    total: dict[str, float] = {}
    first: str | None = None
    for worker, count in call.parts.items():
        if not count:
            continue
        sums = call.sums[worker]
        if first is None:
            first, total = worker, dict(sums)
        elif sums.keys() != total.keys():
            raise RunFault(
                RunReason.SCRIPTS_DIFFER,
                f"evaluation {call.number}: worker {worker} measured {sorted(sums)}, worker {first} {sorted(total)}",
            )
        else:
            total = {name: total[name] + value for name, value in sums.items()}
    return total
