"""What cannot be changed once a job exists, and what to do instead. Declared once for the API server and for Python.

Everything that decides what is computed is fixed: no running process would take a change up, and a status that claimed
so would lie. Replicas of workers are fixed too until a job can be scaled while it runs; loosening a rule later breaks
nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from heterotrain_api.rules import Rule
from heterotrain_api.v1alpha1 import EnvVar, HeteroTrainJobSpec, Output, Volume

_AGAIN: Final = "delete the job and create it again, or create one of another name"
_SHARES: Final = f"`heterotrain plan set` changes the shares of a running job; for anything else {_AGAIN}"


@dataclass(frozen=True, slots=True)
class Immutable:
    """A field of the object at `path` that keeps its first value."""

    path: str
    field: str
    """Name in the manifest."""
    attribute: str
    """Name in the model."""
    instead: str = _AGAIN
    """What to do instead."""
    empty: str = ""
    """CEL literal that an absent field is equal to; none for fields that are required or have a default."""
    identity: Callable[[Any], object] = lambda value: value
    """What of the value must stay."""
    rule: str = ""
    """CEL expression where equality of the field does not say what must stay."""

    @property
    def message(self) -> str:
        """What the user reads."""
        return f"cannot be changed once the job exists: {self.instead}"

    @property
    def cel(self) -> str:
        """The transition rule at `path`."""
        if self.rule:
            return self.rule
        if not self.empty:
            return f"self.{self.field} == oldSelf.{self.field}"
        new, old = (f"(has({x}.{self.field}) ? {x}.{self.field} : {self.empty})" for x in ("self", "oldSelf"))
        return f"{new} == {old}"


def _variables(env: tuple[EnvVar, ...]) -> object:
    """The list is a map by name to the API server: the order does not count."""
    return {variable.name: variable.value for variable in env}


def _volume_identity(output: Output) -> object:
    """Kind of the volume and its claim. CEL cannot compare what is inside an opaque object."""
    volume = output.volume
    if volume is None:
        return None
    return frozenset(volume.to_document()), volume.persistent_volume_claim


def _volume_rule() -> str:
    new, old = "self.output.volume", "oldSelf.output.volume"
    kinds = [str(info.alias) for info in Volume.model_fields.values()]
    same_kind = " && ".join(f"has({new}.{kind}) == has({old}.{kind})" for kind in kinds)
    claim = "persistentVolumeClaim"
    same_claim = f"(!has({new}.{claim}) || {new}.{claim}.claimName == {old}.{claim}.claimName)"
    return f"has({new}) == has({old}) && (!has({new}) || ({same_kind} && {same_claim}))"


IMMUTABLE: Final[tuple[Immutable, ...]] = (
    Immutable("spec", "image", "image"),
    Immutable("spec", "command", "command"),
    Immutable("spec", "args", "args", empty="[]"),
    Immutable("spec", "env", "env", empty="[]", identity=_variables),
    Immutable("spec", "globalBatchSize", "global_batch_size"),
    Immutable("spec", "batchGrain", "batch_grain"),
    Immutable("spec", "seed", "seed"),
    Immutable("spec", "output", "output", identity=_volume_identity, rule=_volume_rule()),
    Immutable("spec", "synchronization", "synchronization"),
    Immutable("spec", "stop", "stop", "`heterotrain stop` ends a job and keeps its model; for other limits " + _AGAIN),
    Immutable("spec.parameterServers", "replicas", "replicas", "the parameters are already spread; " + _AGAIN),
    Immutable("spec.workers[*]", "device", "device"),
    Immutable("spec.workers[*]", "batch", "batch", _SHARES),
    Immutable("spec.workers[*]", "env", "env", empty="[]", identity=_variables),
)


def same_groups(old: HeteroTrainJobSpec, new: HeteroTrainJobSpec) -> bool:
    """Whether both have the same worker groups, in any order."""
    return {group.name for group in old.workers} == {group.name for group in new.workers}


SAME_GROUPS: Final = Rule(
    "spec",
    "self.workers.size() == oldSelf.workers.size() && self.workers.all(w, oldSelf.workers.exists(o, o.name == w.name))",
    f"must keep the same groups: groups cannot be added, removed or renamed once the job exists; {_AGAIN}",
    lambda _: True,
    field=".workers",
)
"""A transition rule; its Python side is `same_groups`, since it needs both values."""
