"""What both kinds of information rules share: bounded texts and numbers, and the status."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

from pydantic import Field

from heterotrain_api.fields import Count, Message, Resource, keyed_by, said
from heterotrain_api.status import Condition, ConditionStatus, Time

LARGEST: Final = 1e18
DAY: Final = 86400.0

MetricName: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^[A-Za-z_:][A-Za-z0-9_:]*$",
        json_schema_extra=said("letters, digits, _ and :, with no digit first"),
    ),
]
Seconds: TypeAlias = Annotated[float, Field(ge=0.001, le=30 * DAY)]
"""More than none."""
Number: TypeAlias = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Positive: TypeAlias = Annotated[float, Field(ge=1e-9, le=LARGEST)]
Template: TypeAlias = Annotated[str, Field(min_length=1, max_length=512)]
Globs: TypeAlias = Annotated[dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=16)]
"""Label names with what their values must be: ``*`` for anything, ``a|b``, ``!a|b``."""
Unit: TypeAlias = Annotated[str, Field(max_length=32)]
Cardinality: TypeAlias = Annotated[int, Field(ge=1, le=100_000)]


class MetricTypeName(StrEnum):
    """What a metric's values are."""

    GAUGE = "gauge"
    """A number that goes up and down."""
    COUNTER = "counter"
    """A number that only grows; smaller than before means that it began again at 0."""
    STATE = "state"
    """One of a few words."""
    TEXT = "text"


class RuleStatus(Resource):
    """How a rule does. Written by the operator only."""

    conditions: Annotated[tuple[Condition, ...], Field(max_length=8, json_schema_extra=keyed_by("type"))] = ()
    """Statements about the rule: Accepted and Ready, with their reasons."""
    ready: ConditionStatus = ConditionStatus.UNKNOWN
    """Whether the rule is obeyed and its last run gave samples."""
    samples_per_second: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    """Samples stored a second, over the last runs."""
    age_seconds: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """Age of the newest sample, in seconds, when the status was written."""
    error: Message = ""
    """What is wrong with the rule or went wrong in its last run, even if the rest went well. Empty if nothing."""
    last_run_time: Time | None = None
    """When the rule was applied last."""
    duration_milliseconds: Annotated[float, Field(ge=0, le=LARGEST)] | None = None
    """Duration of the last run, in milliseconds."""
    samples: Count = 0
    """Samples stored since the operator took up this version of the rule."""
    series: Count = 0
    """Series that the last run gave, or entities that the rule is applied to."""
    observed_generation: Count = 0
    """Generation of the rule that this status is about."""
