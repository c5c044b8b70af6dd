"""The two ways to train behind one interface: alone (`heterotrain.alone`) or in a job (`heterotrain.job`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from heterotrain.gradients import Gradients
from heterotrain.grants import Item
from heterotrain.manifest import ModelTensors
from heterotrain_core.memory import NO_MEMORY_USE, MemoryUse
from heterotrain_core.types import Grant


@dataclass(frozen=True, slots=True)
class Setup:
    """What `Session.prepare` has found and checked."""

    tensors: ModelTensors
    optimizer: torch.optim.Optimizer
    """The real optimizer. Alone it steps; in a job only its (shared) parameter groups are used."""
    dataset_size: int
    device: torch.device
    smallest_batch: int = 1
    """Samples that the model needs at once to be trained (`manifest.smallest_batch`)."""

    @property
    def optimizer_name(self) -> str:
        """Class name in `torch.optim`."""
        return type(self.optimizer).__name__

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups as the real optimizer completed them; schedulers change them in place."""
        return self.optimizer.param_groups


@dataclass(frozen=True, slots=True)
class Clip:
    """Clip the norm of the aggregate gradient."""

    max_norm: float
    norm_type: float


@dataclass(frozen=True, slots=True)
class Update:
    """A grant that was computed: its mean gradient, and how long it took (seconds)."""

    grant: Grant
    clip: Clip | None
    data_seconds: float
    compute_seconds: float
    cpu_seconds: float = 0.0
    """Processor time of the computing, of all threads together."""
    memory: MemoryUse = NO_MEMORY_USE


class Engine(Protocol):
    """Called by the training thread alone, in the order: configure, start, then next_item and submit in turns."""

    @property
    def seed(self) -> int:
        """Seed of the job."""
        ...

    @property
    def batch_size(self) -> int:
        """Global batch, in samples."""
        ...

    @property
    def rank(self) -> int:
        """Ordinal of this worker, from 0."""
        ...

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        ...

    @property
    def version(self) -> int:
        """The version that the model holds."""
        ...

    def configure(self, setup: Setup) -> Gradients:
        """Agree on the model and its initial values; returns where gradients are to be accumulated."""
        ...

    def start(self, epochs: int) -> None:
        """Say that the script is ready for the first grant."""
        ...

    def next_item(self) -> Item:
        """Wait for the next grant or end; when this returns the model holds the version that it names."""
        ...

    def take_unfetched(self, epoch: int) -> Grant | None:
        """The next grant of `epoch` whose samples nobody has asked for yet, if one is at hand; never waits."""
        ...

    def submit(self, update: Update) -> None:
        """Hand in the accumulated gradients of the grant that `next_item` gave last."""
        ...

    def evaluation_range(self, dataset_size: int) -> range:
        """The samples of this worker in the next evaluation; waits until all workers have reached it."""
        ...

    def evaluation_sums(self, sums: Mapping[str, float], seconds: float) -> Mapping[str, float] | range:
        """Add this worker's sums to those of the others; waits for them. A range: measure these samples too."""
        ...

    def report(self, values: Mapping[str, float]) -> None:
        """Show values in the job's status."""
        ...

    @property
    def may_begin_anew(self) -> bool:
        """Whether the script may leave the job and join again."""
        ...

    def close(self, failure: str | None = None, *, too_many: int = 0) -> None:
        """The script is over, well or with `failure`; safe to call twice. `too_many`: samples that did not fit at once;
        the script begins anew.
        """
        ...
