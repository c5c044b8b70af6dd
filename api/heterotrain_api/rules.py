"""Rules over several fields of a `HeteroTrainJob`, each declared once: as CEL for the API server and as Python.

`heterotrain_api.crd` puts the CEL into the schema, `heterotrain_api.validation` calls the predicate; both give the same
message. A predicate sees a model that the schema has accepted, with defaults in place, as a CEL expression does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from heterotrain_api.names import MAX_LABEL, NAME_BUDGET, PS_GROUP
from heterotrain_api.schema_check import suggestion
from heterotrain_api.v1alpha1 import (
    Adaptation,
    Adaptive,
    Batch,
    Discount,
    EnvVar,
    Escalation,
    HeteroTrainJob,
    HeteroTrainJobSpec,
    Synchronization,
    SyncMode,
    Target,
    Toleration,
    WorkerGroup,
)

RESERVED_ENV_PREFIX: Final = "HETEROTRAIN_"
MAX_PODS: Final = 400
"""Of one job, since one Secret holds all its certificates: about 1.1 KB each in base64, of at most 1 MiB, with more
than half to spare for longer keys and the copy that an apply may keep."""
DEFAULT_BOUND: Final = 3
"""Staleness bound of SSP and Delay."""
DEFAULT_BACKUP: Final = 1
"""Backup workers of mode Backup."""

_ASYNCHRONOUS: Final = (SyncMode.ASP, SyncMode.SSP, SyncMode.DSSP, SyncMode.DELAY)
JOB_NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"


@dataclass(frozen=True, slots=True)
class Figures:
    """Values in words: one text, filled in by the API server and by Python."""

    text: str
    """With ``%d`` or ``%s`` for each value."""
    cel: tuple[str, ...]
    """A CEL expression for each value. Texts joined by + would cost too much: the length of a number is not known."""
    values: Callable[[Any], tuple[object, ...]]
    """The same values, from the model."""

    def told(self, node: Any) -> str:
        """The text for the object at a rule's path."""
        return self.text % self.values(node)


@dataclass(frozen=True, slots=True)
class Rule:
    """`cel` and `holds` say the same about the object at `path`."""

    path: str
    """Where the rule stands: field names joined by ``.``, ``[*]`` for the items of a list; empty: the whole job."""
    cel: str
    message: str
    """What must be, and what to do."""
    holds: Callable[[Any], bool]
    """The rule on the model of the object at `path`."""
    at_creation: bool = False
    """Whether it holds for new jobs only: what a job begins with may not fit what it has become."""
    field: str = ""
    """The field to blame, relative to `path`: ``.name``."""
    figures: Figures | None = None
    """By which values the rule is broken, told after the message."""

    def told(self, node: Any) -> str:
        """What is told where `node` breaks the rule."""
        return f"{self.message}; {self.figures.told(node)}" if self.figures is not None else self.message


def smallest_start(group: WorkerGroup) -> int:
    """Smallest share that each worker of the group may start with."""
    return group.batch.min if group.batch.initial is None else group.batch.initial


def largest_share(group: WorkerGroup, spec: HeteroTrainJobSpec) -> int:
    """Largest share on the grain that each worker of the group may ever have."""
    maximum = spec.global_batch_size if group.batch.max is None else group.batch.max
    return group.batch.min + (maximum - group.batch.min) // spec.batch_grain * spec.batch_grain


def largest_start(group: WorkerGroup, spec: HeteroTrainJobSpec) -> int:
    """Largest share that each worker of the group may start with."""
    return largest_share(group, spec) if group.batch.initial is None else group.batch.initial


def _sum(spec: HeteroTrainJobSpec, share: Callable[[WorkerGroup], int]) -> int:
    return sum(group.replicas * share(group) for group in spec.workers)


def _minimum_fits(spec: HeteroTrainJobSpec) -> bool:
    return _sum(spec, lambda group: group.batch.min) <= spec.global_batch_size


def _maximum_suffices(spec: HeteroTrainJobSpec) -> bool:
    return _sum(spec, lambda group: largest_share(group, spec)) >= spec.global_batch_size


def _on_grain(spec: HeteroTrainJobSpec) -> bool:
    return (spec.global_batch_size - _sum(spec, lambda group: group.batch.min)) % spec.batch_grain == 0


def _initial_on_grain(spec: HeteroTrainJobSpec) -> bool:
    return all(
        group.batch.initial is None or (group.batch.initial - group.batch.min) % spec.batch_grain == 0
        for group in spec.workers
    )


def _all_initial_sum_up(spec: HeteroTrainJobSpec) -> bool:
    if any(group.batch.initial is None for group in spec.workers):
        return True
    return _sum(spec, smallest_start) == spec.global_batch_size


def _some_initial_leave_room(spec: HeteroTrainJobSpec) -> bool:
    given = [group.batch.initial is not None for group in spec.workers]
    if all(given) or not any(given):
        return True
    lowest, highest = _sum(spec, smallest_start), _sum(spec, lambda group: largest_start(group, spec))
    return lowest <= spec.global_batch_size <= highest


def _what_is_left(spec: HeteroTrainJobSpec) -> tuple[int, int, int]:
    given = sum(group.replicas * (group.batch.initial or 0) for group in spec.workers)
    others = [group for group in spec.workers if group.batch.initial is None]
    low = sum(group.replicas * group.batch.min for group in others)
    high = sum(group.replicas * largest_share(group, spec) for group in others)
    return spec.global_batch_size - given, low, high


def _is_job_name(job: HeteroTrainJob) -> bool:
    name = job.metadata.name
    edges = name[:1].isalpha() and name[-1:] != "-"
    return edges and all(c in "abcdefghijklmnopqrstuvwxyz0123456789-" for c in name)


def _name_and_a_better_one(job: HeteroTrainJob) -> tuple[str]:
    return (job.metadata.name + suggestion(job.metadata.name, JOB_NAME_PATTERN),)


def _names_fit(job: HeteroTrainJob) -> bool:
    return all(len(job.metadata.name) + len(group.name) <= NAME_BUDGET for group in job.spec.workers)


def _ps_names_fit(job: HeteroTrainJob) -> bool:
    return len(job.metadata.name) + len(PS_GROUP) <= NAME_BUDGET


def _not_reserved(variable: EnvVar) -> bool:
    return not variable.name.startswith(RESERVED_ENV_PREFIX)


def _has_one_bound(target: Target) -> bool:
    return (target.at_least is None) != (target.at_most is None)


def _min_to_max(batch: Batch) -> bool:
    return batch.max is None or batch.min <= batch.max


def _initial_from_min(batch: Batch) -> bool:
    return batch.initial is None or batch.min <= batch.initial


def _initial_to_max(batch: Batch) -> bool:
    return batch.initial is None or batch.max is None or batch.initial <= batch.max


def _key_or_exists(toleration: Toleration) -> bool:
    return bool(toleration.key) or toleration.operator == "Exists"


def _exists_without_value(toleration: Toleration) -> bool:
    return toleration.operator != "Exists" or not toleration.value


def _seconds_for_no_execute(toleration: Toleration) -> bool:
    return toleration.toleration_seconds is None or toleration.effect == "NoExecute"


def _not_ps(group: WorkerGroup) -> bool:
    return group.name != PS_GROUP


def _means_something_in(field: str, attribute: str, *modes: SyncMode) -> Rule:
    """A setting of synchronization that must be left out in all other modes."""
    listed = ", ".join(f"'{mode}'" for mode in modes)
    names = ", ".join(modes[:-1]) + (" or " if len(modes) > 1 else "") + modes[-1]
    return Rule(
        "spec.synchronization",
        f"!has(self.{field}) || self.mode in [{listed}]",
        f"must be left out unless mode is {names}: it means nothing in other modes",
        lambda synchronization: getattr(synchronization, attribute) is None or synchronization.mode in modes,
        field=f".{field}",
    )


def _exponent_of_polynomial(synchronization: Synchronization) -> bool:
    return synchronization.discount_exponent is None or synchronization.discount is Discount.POLYNOMIAL


def _begins_with_rebalance(adaptation: Adaptation) -> bool:
    return adaptation.escalation is None or adaptation.escalation[0] is Escalation.REBALANCE


def _each_step_once(adaptation: Adaptation) -> bool:
    steps = adaptation.escalation or ()
    return len(set(steps)) == len(steps)


def _relaxes_within_a_range(spec: HeteroTrainJobSpec) -> bool:
    steps = spec.adaptation.escalation
    return steps is None or (Escalation.RELAX_STALENESS in steps) == (spec.synchronization.adaptive is not None)


def _adaptive_min_to_max(adaptive: Adaptive) -> bool:
    return adaptive.min <= adaptive.max


def _bound_in_range(synchronization: Synchronization) -> bool:
    adaptive, bound = synchronization.adaptive, synchronization.staleness_bound
    if adaptive is None:
        return True
    bound = DEFAULT_BOUND if bound is None else bound
    return isinstance(bound, int) and adaptive.min <= bound <= adaptive.max


def _pods(spec: HeteroTrainJobSpec) -> int:
    return spec.parameter_servers.replicas + _sum(spec, lambda _: 1)


def _pods_fit(spec: HeteroTrainJobSpec) -> bool:
    return _pods(spec) <= MAX_PODS


def _somebody_is_waited_for(spec: HeteroTrainJobSpec) -> bool:
    if spec.synchronization.mode is not SyncMode.BACKUP:
        return True
    backup = spec.synchronization.backup_workers
    return _sum(spec, lambda _: 1) > (DEFAULT_BACKUP if backup is None else backup)


def _backoff_with_checkpoint(spec: HeteroTrainJobSpec) -> bool:
    return spec.run_policy.backoff_limit is None or spec.checkpoint is not None


def _reserved_env_rule(path: str) -> Rule:
    return Rule(
        path,
        f"!self.name.startsWith('{RESERVED_ENV_PREFIX}')",
        f"must not begin with {RESERVED_ENV_PREFIX}: these names are set by the job itself; choose another name",
        _not_reserved,
        field=".name",
    )


# The expressions below use these for a worker group `w`.
_MAX = "(has(w.batch.max) ? w.batch.max : self.globalBatchSize)"
_LARGEST = f"(w.batch.min + ({_MAX} - w.batch.min) / self.batchGrain * self.batchGrain)"
_START_LOW = "(has(w.batch.initial) ? w.batch.initial : w.batch.min)"
_START_HIGH = f"(has(w.batch.initial) ? w.batch.initial : {_LARGEST})"
_ALL_INITIAL = "self.workers.all(w, has(w.batch.initial))"


def _at_creation(cel: str) -> str:
    return f"oldSelf.hasValue() || ({cel})"


def _cel_sum(share: str, among: str = "") -> str:
    return f"self.workers{among and f'.filter(w, {among})'}.map(w, w.replicas * {share}).sum()"


def _sums(bound: str, cel: str, share: Callable[[WorkerGroup, HeteroTrainJobSpec], int]) -> Figures:
    return Figures(
        f"the sum of replicas x batch.{bound} is %d, globalBatchSize is %d",
        (_cel_sum(cel), "self.globalBatchSize"),
        lambda spec: (_sum(spec, lambda group: share(group, spec)), spec.global_batch_size),
    )


_SUM_OF_MIN = _sums("min", "w.batch.min", lambda group, _: group.batch.min)
_LEFT = Figures(
    "%d is left for them, they take %d to %d",
    (
        f"self.globalBatchSize - {_cel_sum('w.batch.initial', 'has(w.batch.initial)')}",
        _cel_sum("w.batch.min", "!has(w.batch.initial)"),
        _cel_sum(_LARGEST, "!has(w.batch.initial)"),
    ),
    _what_is_left,
)
_PODS = f"self.parameterServers.replicas + {_cel_sum('1')}"


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "spec",
        "!has(self.runPolicy) || !has(self.runPolicy.backoffLimit) || has(self.checkpoint)",
        "must be left out without checkpoint: a job can only go back to a checkpoint; add checkpoint, or leave it out",
        _backoff_with_checkpoint,
        field=".runPolicy.backoffLimit",
    ),
    Rule(
        "",
        f"self.metadata.name.matches('{JOB_NAME_PATTERN}')",
        "must consist of small letters, digits and -, begin with a letter and not end with -: "
        "pods and services are named after the job",
        _is_job_name,
        field=".metadata.name",
        figures=Figures("it is %s", ("self.metadata.name",), _name_and_a_better_one),
    ),
    Rule(
        "",
        f"self.spec.workers.all(w, self.metadata.name.size() + w.name.size() <= {NAME_BUDGET})",
        f"must have, together with the name of any worker group, at most {NAME_BUDGET} characters, so that the names "
        f"of pods (<job>-<group>-<index>-<attempt>) fit into {MAX_LABEL}: shorten the job's or the group's name",
        _names_fit,
        field=".metadata.name",
    ),
    Rule(
        "",
        f"self.metadata.name.size() <= {NAME_BUDGET - len(PS_GROUP)}",
        f"must have at most {NAME_BUDGET - len(PS_GROUP)} characters, so that the names of pods "
        f"(<job>-{PS_GROUP}-<index>-<attempt>) fit into {MAX_LABEL}",
        _ps_names_fit,
        field=".metadata.name",
    ),
    _reserved_env_rule("spec.env[*]"),
    _reserved_env_rule("spec.workers[*].env[*]"),
    Rule(
        "spec.workers[*]",
        f"self.name != '{PS_GROUP}'",
        f"must not be {PS_GROUP}: the parameter servers have that name; choose another",
        _not_ps,
        field=".name",
    ),
    Rule(
        "spec.workers[*].batch",
        "!has(self.max) || self.min <= self.max",
        "must be at most max of the same group",
        _min_to_max,
        field=".min",
    ),
    Rule(
        "spec.workers[*].batch",
        "!has(self.initial) || self.min <= self.initial",
        "must be at least min of the same group",
        _initial_from_min,
        field=".initial",
    ),
    Rule(
        "spec.workers[*].batch",
        "!has(self.initial) || !has(self.max) || self.initial <= self.max",
        "must be at most max of the same group",
        _initial_to_max,
        field=".initial",
    ),
    Rule(
        "spec.workers[*].tolerations[*]",
        "(has(self.key) && self.key != '') || (has(self.operator) && self.operator == 'Exists')",
        "must be given unless operator is Exists",
        _key_or_exists,
        field=".key",
    ),
    Rule(
        "spec.workers[*].tolerations[*]",
        "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
        "must be left out when operator is Exists",
        _exists_without_value,
        field=".value",
    ),
    Rule(
        "spec.workers[*].tolerations[*]",
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "must be left out unless effect is NoExecute",
        _seconds_for_no_execute,
        field=".tolerationSeconds",
    ),
    Rule(
        "spec",
        f"{_PODS} <= {MAX_PODS}",
        f"must come to at most {MAX_PODS} pods together with the parameter servers (one Secret holds the certificates "
        "of all): lower replicas",
        _pods_fit,
        field=".workers",
        figures=Figures("they are %d", (_PODS,), lambda spec: (_pods(spec),)),
    ),
    Rule(
        "spec",
        f"{_cel_sum('w.batch.min')} <= self.globalBatchSize",
        "must be at least the sum of replicas x batch.min over all groups: raise it, or lower batch.min or replicas",
        _minimum_fits,
        field=".globalBatchSize",
        figures=_SUM_OF_MIN,
    ),
    Rule(
        "spec",
        f"{_cel_sum(_LARGEST)} >= self.globalBatchSize",
        "must be at most the sum of replicas x batch.max over all groups (each batch.max counted down to the grain): "
        "lower it, or raise batch.max or replicas",
        _maximum_suffices,
        field=".globalBatchSize",
        figures=_sums("max", _LARGEST, largest_share),
    ),
    Rule(
        "spec",
        f"(self.globalBatchSize - {_cel_sum('w.batch.min')}) % self.batchGrain == 0",
        "must be the sum of replicas x batch.min over all groups plus a multiple of batchGrain (a share is batch.min "
        "plus a multiple of it): change globalBatchSize, batch.min or batchGrain",
        _on_grain,
        field=".globalBatchSize",
        figures=_SUM_OF_MIN,
    ),
    Rule(
        "spec",
        "self.workers.all(w, !has(w.batch.initial) || (w.batch.initial - w.batch.min) % self.batchGrain == 0)",
        "must have batch.initial equal to batch.min plus a multiple of batchGrain, in each group that gives it",
        _initial_on_grain,
        field=".workers",
    ),
    Rule(
        "spec",
        _at_creation(f"!{_ALL_INITIAL} || {_cel_sum('w.batch.initial')} == self.globalBatchSize"),
        "must have batch.initial such that the sum of replicas x batch.initial is globalBatchSize, since all groups "
        "give it: change batch.initial or globalBatchSize, or leave batch.initial out where the rest shall go",
        _all_initial_sum_up,
        at_creation=True,
        field=".workers",
        figures=_sums("initial", "w.batch.initial", lambda group, _: group.batch.initial or 0),
    ),
    Rule(
        "spec",
        _at_creation(
            f"{_ALL_INITIAL} || !self.workers.exists(w, has(w.batch.initial)) || "
            f"({_cel_sum(_START_LOW)} <= self.globalBatchSize && {_cel_sum(_START_HIGH)} >= self.globalBatchSize)"
        ),
        "must have batch.initial such that the groups without it can share what is left of globalBatchSize between "
        "their batch.min and batch.max",
        _some_initial_leave_room,
        at_creation=True,
        field=".workers",
        figures=_LEFT,
    ),
    _means_something_in("stalenessBound", "staleness_bound", SyncMode.SSP, SyncMode.DELAY),
    _means_something_in("adaptive", "adaptive", SyncMode.SSP, SyncMode.DELAY),
    _means_something_in("delayWindowMilliseconds", "delay_window_milliseconds", SyncMode.DELAY),
    _means_something_in("discount", "discount", *_ASYNCHRONOUS),
    _means_something_in("normalization", "normalization", *_ASYNCHRONOUS),
    _means_something_in("delayCompensation", "delay_compensation", *_ASYNCHRONOUS),
    _means_something_in("dssp", "dssp", SyncMode.DSSP),
    _means_something_in("backupWorkers", "backup_workers", SyncMode.BACKUP),
    Rule(
        "spec.synchronization",
        "!has(self.discountExponent) || (has(self.discount) && self.discount == 'Polynomial')",
        "must be left out unless discount is Polynomial",
        _exponent_of_polynomial,
        field=".discountExponent",
    ),
    Rule(
        "spec.adaptation",
        "!has(self.escalation) || self.escalation[0] == 'Rebalance'",
        "must begin with Rebalance: shares are the first means",
        _begins_with_rebalance,
        field=".escalation",
    ),
    Rule(
        "spec.adaptation",
        "!has(self.escalation) || self.escalation.all(s, self.escalation.exists_one(t, t == s))",
        "must name each step once at most",
        _each_step_once,
        field=".escalation",
    ),
    Rule(
        "spec",
        "!has(self.adaptation.escalation) || "
        "self.adaptation.escalation.exists(s, s == 'RelaxStaleness') == has(self.synchronization.adaptive)",
        "must name RelaxStaleness if synchronization.adaptive is given, and only then: it is the range for it",
        _relaxes_within_a_range,
        field=".adaptation.escalation",
    ),
    Rule(
        "spec.synchronization.adaptive",
        "self.min <= self.max",
        "must be at most max",
        _adaptive_min_to_max,
        field=".min",
    ),
    Rule(
        "spec.synchronization",
        f"!has(self.adaptive) || (has(self.stalenessBound) ? type(self.stalenessBound) == int && "
        "int(self.stalenessBound) >= self.adaptive.min && int(self.stalenessBound) <= self.adaptive.max : "
        f"{DEFAULT_BOUND} >= self.adaptive.min && {DEFAULT_BOUND} <= self.adaptive.max)",
        f"must be a number from adaptive.min to adaptive.max ({DEFAULT_BOUND} if not given): it is where the operator "
        "begins",
        _bound_in_range,
        field=".stalenessBound",
    ),
    Rule(
        "spec",
        f"self.synchronization.mode != 'Backup' || {_cel_sum('1')} > (has(self.synchronization.backupWorkers) ? "
        f"self.synchronization.backupWorkers : {DEFAULT_BACKUP})",
        f"must have fewer backupWorkers ({DEFAULT_BACKUP} if not given) than there are workers: somebody must be "
        "waited for",
        _somebody_is_waited_for,
        field=".synchronization",
    ),
    Rule(
        "spec.stop.target",
        "has(self.atLeast) != has(self.atMost)",
        "must have exactly one of atLeast and atMost",
        _has_one_bound,
    ),
)
