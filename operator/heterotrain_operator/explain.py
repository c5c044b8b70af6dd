"""From the record of the adaptation loop to the chain that led to a plan: samples → speeds → findings → shares. Pure.

Records are the lines of ``decisions.jsonl`` (`heterotrain_operator.adaptation`), oldest first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from heterotrain_api.status import HeteroTrainJobStatus

Record = Mapping[str, Any]
_PROPOSING: Final = frozenset({"Propose", "RollBack", "FallBack", "Relax", "Split"})

LEAST_SPREAD_SAID: Final = 0.02
"""Relative: what single steps vary by less moves no share that is worth a word."""


class NothingToExplainError(LookupError):
    """There is no decision of that kind; the text says which there are."""


def read_records(lines: Iterable[str]) -> list[Record]:
    """The records; a last line that is still being written is passed over. Raises `ValueError` for other lines."""
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            continue
        record = json.loads(line)
        if not isinstance(record, dict) or "action" not in record:
            raise ValueError(f"line {number} is no decision")
        records.append(record)
    return records


def records_of(status: HeteroTrainJobStatus) -> list[Record]:
    """What the status of a job on a cluster keeps of them: the newest ones."""
    return [json.loads(decision.record) for decision in status.decisions if decision.record]


def generations(records: Sequence[Record]) -> list[int]:
    """Plans that the loop proposed, in order."""
    return [r["proposal"]["generation"] for r in records if r["action"] in _PROPOSING]


def chain(records: Sequence[Record], generation: int | None = None) -> list[Record]:
    """What belongs to one plan: its decision, the coordinator's answer, what came of it; then the newest look.

    Without `generation` the newest decision of any kind. Raises `NothingToExplainError`.
    """
    decisions = [r for r in records if r["action"] != "Answer"]
    if not decisions:
        raise NothingToExplainError(
            "the adaptation has not decided anything yet: it needs a few rounds of every worker"
        )
    if generation is None:
        proposed = generations(records)
        newest = decisions[-1]
        return [*(chain(records, proposed[-1]) if proposed else ()), *([newest] if _is_look(newest) else ())]
    own = [i for i, r in enumerate(records) if r["action"] in _PROPOSING and r["proposal"]["generation"] == generation]
    if not own:
        known = ", ".join(map(str, generations(records))) or "none"
        raise NothingToExplainError(
            f"the adaptation has not made plan {generation}; it made: {known}. Plan 1 holds the start shares, "
            "others were set by hand or derived by the coordinator"
        )
    later = records[own[-1] + 1 :]
    answers = [r for r in later if r["action"] == "Answer" and r["answer"]["generation"] == generation][:1]
    checks = [r for r in later if r.get("verified") and r["verified"]["generation"] == generation][:1]
    return [records[own[-1]], *answers, *checks]


def _is_look(record: Record) -> bool:
    return record["action"] in {"Keep", "Recommend"} and not record.get("verified")


def explain(records: Sequence[Record]) -> list[str]:
    """The chain for people, a line each."""
    lines: list[str] = []
    for record in records:
        if lines:
            lines.append("")
        lines += _answer(record) if record["action"] == "Answer" else _decision(record)
    return lines


def _answer(record: Record) -> list[str]:
    return [f"{_at(record)}: {record['reason']}"]


def _decision(record: Record) -> list[str]:
    proposal = record.get("proposal")
    what = f"plan {proposal['generation']} was proposed" if proposal else _WORDS[record["action"]]
    lines = [f"{_at(record)}, round {record['version']}: {what}: {record['reason']}"]
    if record.get("verified"):
        lines.append(f"  verified: {_verified(record['verified'])}")
        if not proposal:
            return lines
    lines += [f"  found: {found['words']}" for found in record["found"]]
    lines.append("  samples and speeds:")
    lines += [f"    {_worker(worker)}" for worker in record["workers"]]
    lines.append(
        f"  step time: {_ms(record['present_seconds'])} with the shares in force by the models (measured"
        f" {_ms(record['measured_seconds'])}), {_ms(record['predicted_seconds'])} with those wanted:"
        f" a gain of {record['gain']:.1%}, held against {record['band']:.1%}"
    )
    if record.get("workers_left_out"):
        lines.append(f"    and {record['workers_left_out']} more")
    if record.get("escalation"):
        lines.append(f"  escalation: {record['escalation']}")
    if record["advice"]:
        lines.append(f"  advice: {record['advice']}")
    return lines


_WORDS: Final = {
    "Keep": "the shares stay",
    "Recommend": "a change is recommended",
    "Replace": "a worker is replaced",
    "GiveUp": "given up",
}


def _worker(worker: Mapping[str, Any]) -> str:
    share = (
        f"{worker['applied']}→{worker['wanted']}" if worker["applied"] != worker["wanted"] else f"{worker['applied']}"
    )
    limit = f", held by {worker['limit']}" if worker["limit"] else ""
    if not worker["seconds_per_sample"]:
        return f"{worker['name']}: {worker['steps']} steps, speed not known; share {share}{limit}"
    dropped = f", {worker['dropped']} outliers" if worker["dropped"] else ""
    varies = f", single steps vary by {worker['spread']:.0%}" if worker.get("spread", 0.0) >= LEAST_SPREAD_SAID else ""
    speed = f"{_ms(worker['fixed_seconds'])} + {1000 * worker['seconds_per_sample']:.3g} ms a sample"
    if worker.get("knots"):
        speed = "no line: " + ", ".join(f"{share} in {_ms(seconds)}" for share, seconds in worker["knots"])
    return (
        f"{worker['name']}: {worker['steps']} steps{dropped}: {speed} (± {worker['error']:.1%}{varies});"
        f" share {share}: {_ms(worker['seconds_applied'])} → {_ms(worker['seconds_wanted'])}{limit}"
    )


def _verified(verified: Mapping[str, Any]) -> str:
    return (
        f"plan {verified['generation']}: predicted {_ms(verified['predicted_seconds'])} a round, measured"
        f" {_ms(verified['measured_seconds'])} ({verified['error']:.1%} off);"
        f" {verified['speed_before']:.0f} → {verified['speed_after']:.0f} samples/s"
    )


def _at(record: Record) -> str:
    return f"{record['seconds']:.1f} s"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 10 else f"{seconds:.1f} s"
