"""How far a training has come, as a value: what a checkpoint keeps besides the parameters. Pure.

Parameters and optimizer state at `Progress.version` and this belong together: from both, every further round follows as
if nothing had happened. Random state needs no place of its own: it follows from seed, worker and iteration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from heterotrain_core.agreement import manifest_difference
from heterotrain_core.cursor import DataCursor
from heterotrain_core.layout import TensorKind, TensorSpec
from heterotrain_core.run_values import Manifest
from heterotrain_core.sync_settings import SyncSettings, settings_of
from heterotrain_core.synchronization import DiscountKind, Normalization, Synchronization, SyncMode
from heterotrain_core.types import Plan, Share

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A training at one version, between two commits. What was granted and not committed is free again."""

    version: int
    epoch: int
    """Epoch that the next grant is of; when the last one is over, that one."""
    used: tuple[tuple[int, int], ...]
    """Positions of the epoch that commits have used (see `DataCursor.used`)."""
    manifest: Manifest
    groups: tuple[str, ...]
    """Hyperparameters of the last commit, a JSON object a parameter group."""
    plan: Plan
    synchronization: Synchronization
    """As wanted: the operator may have moved bounds or changed the mode."""
    global_batch_size: int
    seed: int
    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    """Of the training, in evaluations."""
    reported: Mapping[str, float] = field(default_factory=dict)
    schedule_step: int = 0
    """Where schedules by samples stand; for people: it follows from the rest."""

    @property
    def samples(self) -> int:
        """Used up in all epochs."""
        return self.epoch * self.manifest.dataset_size + sum(stop - start for start, stop in self.used)

    @property
    def ended_epoch(self) -> int | None:
        """The epoch that ended with this very version, if one did. Scripts evaluate there, so its end is told again."""
        if sum(stop - start for start, stop in self.used) == self.manifest.dataset_size:
            return self.epoch
        return self.epoch - 1 if self.epoch > 0 and not self.used else None

    def cursor(self, epochs: int) -> DataCursor:
        """A cursor that goes on from here; raises `ValueError` if the script trains fewer epochs than are begun."""
        if self.epoch >= epochs:
            begun = self.epoch + 1 if self.used else self.epoch
            raise ValueError(f"the checkpoint is at epoch {begun} of its training, the script now trains {epochs}")
        return DataCursor(self.manifest.dataset_size, epochs, epoch=self.epoch, used=self.used)

    def mismatch(self, manifest: Manifest, seed: int) -> str | None:
        """Why a training of this model and seed cannot go on from here; `None`: it can."""
        difference = manifest_difference(self.manifest, manifest)
        if difference is not None:
            return difference
        whole = self.ended_epoch is not None or not self.used
        if seed != self.seed and not whole:
            return (
                f"seed {seed} instead of {self.seed}: the sample order of the epoch that was begun would be another; "
                f"set spec.seed to {self.seed}"
            )
        return None


def to_document(progress: Progress) -> dict[str, Any]:
    """The value as JSON has it; the inverse of `from_document`."""
    manifest, plan = progress.manifest, progress.plan
    return {
        "formatVersion": FORMAT_VERSION,
        "version": progress.version,
        "epoch": progress.epoch,
        "used": [list(pair) for pair in progress.used],
        "samples": progress.samples,
        "scheduleStep": progress.schedule_step,
        "trainingSeconds": progress.training_seconds,
        "evaluationSeconds": progress.evaluation_seconds,
        "globalBatchSize": progress.global_batch_size,
        "seed": progress.seed,
        "hyperparameters": [json.loads(group) for group in progress.groups],
        "reported": dict(progress.reported),
        "synchronization": asdict(settings_of(progress.synchronization)),
        "plan": {
            "generation": plan.generation,
            "reason": plan.reason,
            "derived": plan.derived,
            "shares": {name: [share.samples, share.micro_batch] for name, share in plan.shares.items()},
        },
        "model": {
            "optimizer": manifest.optimizer,
            "groups": [json.loads(group) for group in manifest.groups],
            "datasetSize": manifest.dataset_size,
            "smallestBatch": manifest.smallest_batch,
            "tensors": [
                [t.name, list(t.shape), t.dtype, t.kind.name, t.group, list(t.aliases)] for t in manifest.tensors
            ],
        },
    }


def from_document(document: Mapping[str, Any]) -> Progress:
    """Read what `to_document` wrote; raises `ValueError` that says what is wrong with it."""
    try:
        if document["formatVersion"] != FORMAT_VERSION:
            raise ValueError(f"format version {document['formatVersion']} is not {FORMAT_VERSION}, which is known here")
        plan, model = document["plan"], document["model"]
        progress = Progress(
            version=int(document["version"]),
            epoch=int(document["epoch"]),
            used=tuple((int(start), int(stop)) for start, stop in document["used"]),
            schedule_step=int(document["scheduleStep"]),
            training_seconds=float(document["trainingSeconds"]),
            evaluation_seconds=float(document["evaluationSeconds"]),
            global_batch_size=int(document["globalBatchSize"]),
            seed=int(document["seed"]),
            groups=_texts(document["hyperparameters"]),
            reported={str(name): float(value) for name, value in document["reported"].items()},
            plan=Plan(
                int(plan["generation"]),
                {str(name): Share(int(n), None if m is None else int(m)) for name, (n, m) in plan["shares"].items()},
                str(plan["reason"]),
                bool(plan["derived"]),
            ),
            synchronization=_synchronization(document["synchronization"]),
            manifest=Manifest(
                tuple(map(_tensor, model["tensors"])),
                str(model["optimizer"]),
                _texts(model["groups"]),
                int(model["datasetSize"]),
                int(model.get("smallestBatch", 1)),
            ),
        )
        if progress.version < 0 or progress.epoch < 0:
            raise ValueError("version and epoch must not be negative")
        DataCursor(progress.manifest.dataset_size, progress.epoch + 1, epoch=progress.epoch, used=progress.used)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the progress of a training: {type(error).__name__} {error}") from error
    return progress


def _texts(groups: Any) -> tuple[str, ...]:
    return tuple(json.dumps(group, sort_keys=True) for group in groups)


def _synchronization(settings: Mapping[str, Any]) -> Synchronization:
    kind = settings["discount"]
    return SyncSettings(
        mode=SyncMode(settings["mode"]),
        staleness_bound=settings["staleness_bound"],
        delay_window_seconds=settings["delay_window_seconds"],
        discount=None if kind is None else DiscountKind(kind),
        discount_exponent=float(settings["discount_exponent"]),
        normalization=Normalization(settings["normalization"]),
        delay_compensation=float(settings["delay_compensation"]),
        dssp_lower=int(settings["dssp_lower"]),
        dssp_range=int(settings["dssp_range"]),
        backup_workers=int(settings["backup_workers"]),
    ).synchronization()


def _tensor(entry: Any) -> TensorSpec:
    name, shape, dtype, kind, group, aliases = entry
    return TensorSpec(
        str(name), tuple(map(int, shape)), str(dtype), TensorKind[kind], int(group), tuple(map(str, aliases))
    )
