"""A recording: what a job's synchronisation policy was told, a line each, so that it can be told again. Pure.

The first line of a term says how the policy was made, each other one which method was called when (seconds on one
clock). The policy is deterministic: told the same it decides the same (`heterotrain_core.replay`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from heterotrain_core.sync.policy import Policy
from heterotrain_core.sync_settings import from_fields, settings_of, to_fields
from heterotrain_core.synchronization import Synchronization
from heterotrain_core.types import Decision, Plan, SampleSource, Share

FORMAT_VERSION: Final = 1

Record = Callable[[str], None]
"""Takes a line, without its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How a term's policy was made."""

    term: int
    synchronization: Synchronization
    plan: Plan
    names: tuple[str, ...]
    dataset_size: int
    epochs: int
    epoch: int = 0
    used: tuple[tuple[int, int], ...] = ()
    """Positions of the epoch that were committed before."""
    max_rounds: int | None = None
    version: int = 0
    least: int = 1


@dataclass(frozen=True, slots=True)
class Told:
    """One call of the policy."""

    seconds: float
    what: str
    """``join``, ``leave``, ``done``, ``timer``, ``plan``, ``synchronization``, ``stop``, ``drain`` or ``add``."""
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Recording:
    """One term."""

    beginning: Beginning
    told: tuple[Told, ...]


def make_policy(beginning: Beginning, cursor: SampleSource, record: Record | None = None) -> Policy:
    """The policy of a term; with `record` one that writes down what it is told."""
    if record is not None:
        return RecordedPolicy(beginning, cursor, record)
    b = beginning
    return Policy(b.synchronization, b.plan, b.names, cursor, max_rounds=b.max_rounds, version=b.version, least=b.least)


class RecordedPolicy(Policy):
    """A `Policy` that writes down what it is told; not what it refuses, since that changes nothing."""

    def __init__(self, beginning: Beginning, cursor: SampleSource, record: Record) -> None:
        b = beginning
        super().__init__(
            b.synchronization, b.plan, b.names, cursor, max_rounds=b.max_rounds, version=b.version, least=b.least
        )
        self._record = record
        record(json.dumps(_beginning_document(beginning)))

    def add_worker(self, name: str) -> None:
        """See `Policy`."""
        super().add_worker(name)
        self._note(self._now, "add", name=name)

    def on_join(self, worker: int, now: float) -> Sequence[Decision]:
        """See `Policy`."""
        decisions = super().on_join(worker, now)
        self._note(now, "join", worker=worker)
        return decisions

    def on_leave(self, worker: int, now: float) -> Sequence[Decision]:
        """See `Policy`."""
        decisions = super().on_leave(worker, now)
        self._note(now, "leave", worker=worker)
        return decisions

    def drain(self, worker: int) -> Sequence[Decision]:
        """See `Policy`."""
        decisions = super().drain(worker)
        self._note(self._now, "drain", worker=worker)
        return decisions

    def on_done(
        self, worker: int, iteration: int, base_version: int, samples: int, now: float, *, refused: bool = False
    ) -> Sequence[Decision]:
        """See `Policy`."""
        decisions = super().on_done(worker, iteration, base_version, samples, now, refused=refused)
        self._note(now, "done", worker=worker, at=iteration, base=base_version, samples=samples, refused=refused)
        return decisions

    def on_timer(self, now: float) -> Sequence[Decision]:
        """See `Policy`."""
        due = self.next_timer
        decisions = super().on_timer(now)
        if due is not None and now >= due:
            self._note(now, "timer")
        return decisions

    def on_plan(self, plan: Plan, now: float) -> Sequence[Decision]:
        """See `Policy`."""
        decisions = super().on_plan(plan, now)
        self._note(now, "plan", **plan_document(plan))
        return decisions

    def on_stop(self, reason: str, now: float) -> Sequence[Decision]:
        """See `Policy`."""
        decisions = super().on_stop(reason, now)
        self._note(now, "stop", reason=reason)
        return decisions

    def _note(self, now: float, what: str, **values: Any) -> None:
        self._record(json.dumps({"t": now, "told": what, **values}))


def read_recording(lines: Iterable[str]) -> tuple[Recording, ...]:
    """All terms of a recording, in order; a last line that is not whole is passed over.

    Raises `ValueError` that names the line which cannot be taken.
    """
    terms: list[tuple[Beginning, list[Told]]] = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break
        try:
            document = json.loads(line)
            if "begins" in document:
                terms.append((_beginning(document["begins"]), []))
            else:
                values = {k: v for k, v in document.items() if k not in {"t", "told"}}
                terms[-1][1].append(Told(float(document["t"]), str(document["told"]), values))
        except (ValueError, ArithmeticError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise ValueError(f"line {number} is no line of a recording: {error!r}") from error
    if not terms:
        raise ValueError("it holds no training: the job ended before its first round")
    return tuple(Recording(beginning, tuple(told)) for beginning, told in terms)


def plan_document(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it; the inverse of `plan_of`."""
    return {
        "generation": plan.generation,
        "reason": plan.reason,
        "derived": plan.derived,
        "shares": {name: [share.samples, share.micro_batch] for name, share in plan.shares.items()},
        "synchronization": None if plan.synchronization is None else _fields(plan.synchronization),
    }


def plan_of(document: Mapping[str, Any]) -> Plan:
    """Read what `plan_document` gave."""
    fields = document["synchronization"]
    return Plan(
        int(document["generation"]),
        {str(name): Share(int(n), None if m is None else int(m)) for name, (n, m) in document["shares"].items()},
        str(document["reason"]),
        bool(document["derived"]),
        None if fields is None else from_fields(fields).synchronization(),
    )


def _fields(synchronization: Synchronization) -> dict[str, Any]:
    return dict(to_fields(settings_of(synchronization)))


def _beginning_document(beginning: Beginning) -> dict[str, Any]:
    document = {
        **asdict(beginning),
        "format": FORMAT_VERSION,
        "plan": plan_document(beginning.plan),
        "synchronization": _fields(beginning.synchronization),
    }
    return {"begins": document}


def _beginning(document: Mapping[str, Any]) -> Beginning:
    if document["format"] != FORMAT_VERSION:
        raise ValueError(f"format {document['format']} is not {FORMAT_VERSION}, which is known here")
    limit = document["max_rounds"]
    return Beginning(
        term=int(document["term"]),
        synchronization=from_fields(document["synchronization"]).synchronization(),
        plan=plan_of(document["plan"]),
        names=tuple(map(str, document["names"])),
        dataset_size=int(document["dataset_size"]),
        epochs=int(document["epochs"]),
        epoch=int(document["epoch"]),
        used=tuple((int(a), int(b)) for a, b in document["used"]),
        max_rounds=None if limit is None else int(limit),
        version=int(document["version"]),
        least=int(document["least"]),
    )
