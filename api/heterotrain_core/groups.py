"""How many workers each group of a job shall have, and what the names beyond those of the configuration mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from heterotrain_core.least import raise_minimum
from heterotrain_core.run_values import WorkerSpec
from heterotrain_core.types import Bounds


class Groups:
    """The workers of group ``g`` are ``g-0`` to ``g-(replicas - 1)``, all with the bounds of the configured ones."""

    def __init__(self, specs: Sequence[WorkerSpec]) -> None:
        self._replicas: dict[str, int] = {}
        self._bounds: dict[str, Bounds] = {}
        for spec in specs:
            self._replicas[spec.group] = self._replicas.get(spec.group, 0) + 1
            self._bounds.setdefault(spec.group, spec.bounds)

    @property
    def replicas(self) -> Mapping[str, int]:
        """Wanted, in the order of the configuration."""
        return dict(self._replicas)

    def raise_minimums(self, least: int, grain: int) -> None:
        """The model needs so many samples at once; shares have this grain."""
        self._bounds = {group: raise_minimum(bounds, least, grain) for group, bounds in self._bounds.items()}

    def wants(self, spec: WorkerSpec) -> bool:
        """Whether a worker is one of its group's."""
        return spec.name in self.names(spec.group, self._replicas[spec.group])

    def names(self, group: str, replicas: int) -> tuple[str, ...]:
        """Of a group with so many workers."""
        return tuple(f"{group}-{index}" for index in range(replicas))

    def spec(self, group: str, name: str) -> WorkerSpec:
        """A worker that is not in the configuration; it gets its share when it joins."""
        return WorkerSpec(name, group, 0, self._bounds[group])

    def scale(self, group: str, replicas: int) -> None:
        """Want another number."""
        self._replicas[group] = replicas

    def least_samples(self, replicas: Mapping[str, int]) -> int:
        """Sum of the smallest shares of all workers, with so many in each group."""
        return sum(self._bounds[group].minimum * count for group, count in replicas.items())

    def fault(self, group: str, replicas: int, global_batch_size: int) -> str | None:
        """Why a group cannot have so many workers; `None`: it can."""
        if group not in self._replicas:
            return f"unknown group `{group}`; the job's groups are {_listed(self._replicas)}"
        if replicas < 1:
            return f"group {group} must have at least 1 worker, not {replicas}; drain a worker to be without it"
        if replicas > LARGEST_GROUP:
            return f"group {group} must have at most {LARGEST_GROUP} workers, not {replicas}"
        least = self.least_samples({**self._replicas, group: replicas})
        if least > global_batch_size:
            return (
                f"with {replicas} workers in group {group} the minimum shares of all sum to {least} samples, more than "
                f"the global batch of {global_batch_size}: give it fewer workers"
            )
        return None


LARGEST_GROUP = 1000
"""More would be a slip of the keyboard."""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
