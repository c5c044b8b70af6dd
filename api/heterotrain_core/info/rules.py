"""Processing rules as values, as the machine takes them. `heterotrain_api.info_rules` has them as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from heterotrain_core.info.values import Metric, MetricType

DEFAULT_TTL: Final = 60.0
"""Seconds that a value is fresh where nobody said."""
MAIN: Final = "value"
"""Name of a chain's result, in expressions after the first operator and among named outputs."""


class Trigger(StrEnum):
    """When a rule is applied."""

    EACH_SAMPLE = "each sample"
    PERIOD = "period"


class Emit(StrEnum):
    """What a rule's result becomes."""

    VALUE = "value"
    """A sample of the output metric."""
    EVENT = "event"
    """An event when a state changes, or a number becomes other than 0."""
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Where one input of a rule comes from.

    Without `of` every entity that `entity` and `labels` mean is a target of the rule: it is applied to each on its own.
    With `of` the value is looked up for each target: of one other entity, or aggregated over several.
    """

    metric: str
    entity: str = "*"
    labels: Mapping[str, str] = field(default_factory=dict)
    """Globs of labels of the entities read; with `of` templates over the target too: ``node: {1}``."""
    of: str | None = None
    """Template over the target: ``job/{1}/{2}``, ``worker/{1}/{2}/*``."""
    aggregate: str | None = None
    """One of `heterotrain_core.info.stats.AGGREGATES`; needed if `of` means several entities."""
    ttl: float | None = None
    """Seconds; `None`: the metric's."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator of a chain, with its parameters by name."""

    operator: str
    parameters: Mapping[str, float | str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a result is stored as."""

    metric: str
    type: MetricType | None = None
    """`None`: ``state`` if the chain ends in threshold, else gauge."""
    unit: str = ""
    ttl: float | None = None
    """Seconds; `None`: until the first of the inputs it was made from is stale."""
    entity: str | None = None
    """Template over the target; `None`: the target itself."""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessingRule:
    """A rule that makes new values from values. `check_rule` says whether it can be obeyed."""

    name: str
    inputs: Mapping[str, Input]
    chain: tuple[Step, ...]
    outputs: Mapping[str, Output]
    """By the name of the result's part: `MAIN`, or ``delta`` and ``bandwidth`` of alpha_beta and the like."""
    window: float | None = None
    """Seconds; `None`: all of the last `window_samples`."""
    window_samples: int = 256
    trigger: Trigger = Trigger.EACH_SAMPLE
    period: float | None = None
    hold: float = 0.0
    """Seconds that a changed state must last before it is told."""
    emit: Emit = Emit.VALUE
    message: str = ""
    """Template of an event's message, over the target, ``{value}`` and ``{previous}``; empty: a plain sentence."""
    cardinality: int = 1000
    """Most targets."""
    generation: int = 1

    def metrics(self) -> tuple[Metric, ...]:
        """What the rule's outputs are declared as."""
        return tuple(
            Metric(
                output.metric,
                self.output_type(output),
                output.unit,
                self.default_ttl() if output.ttl is None else output.ttl,
                output.description,
            )
            for output in self.outputs.values()
        )

    def output_type(self, output: Output) -> MetricType:
        """Type of an output: as given, else by the last operator."""
        if output.type is not None:
            return output.type
        return MetricType.STATE if self.chain and self.chain[-1].operator == "threshold" else MetricType.GAUGE

    def default_ttl(self) -> float:
        """Freshness of outputs that give none: the shortest that an input gives itself, at least two periods."""
        given = [item.ttl for item in self.inputs.values() if item.ttl is not None]
        return max(min(given, default=DEFAULT_TTL), 2 * (self.period or 0.0))
