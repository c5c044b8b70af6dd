"""The words of the information service: entities, metrics, samples, events.

A value that is not there is `ABSENT`, never a number that stands for it: whoever reads decides what absence means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

Value: TypeAlias = float | str | None
"""A number (gauge, counter), a text (state, text), or `ABSENT`."""

ABSENT: Final = None

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "node": ("NAME",),
    "pod": ("NAMESPACE", "NAME"),
    "container": ("NAMESPACE", "POD", "NAME"),
    "worker": ("NAMESPACE", "JOB", "NAME"),
    "job": ("NAMESPACE", "NAME"),
    "link": ("FROM", "TO"),
    "accelerator": ("NODE", "ID"),
}
"""Kinds whose names have a fixed form; any other kind has one to `MAX_PARTS` parts."""

NAMESPACED: Final = frozenset(["pod", "container", "worker", "job"])
"""Kinds whose first part is a Kubernetes namespace."""

MAX_PARTS: Final = 5
MAX_ENTITY_LENGTH: Final = 512

_KIND: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PART: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@-]{0,251}[A-Za-z0-9])?")
_METRIC: Final = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]{0,127}")


class Entity(str):
    """Something information is about, as text: ``node/NAME``, ``pod/NS/NAME``, ``link/A/B``.

    Equal texts are equal entities. Raises `ValueError`, with the form that is allowed, for any other text.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Entity:
        """The entity that `text` names; checked."""
        if not isinstance(text, Entity):
            _check_entity(text)
        return super().__new__(cls, text)

    @property
    def kind(self) -> str:
        """``node`` of ``node/a``."""
        return self.partition("/")[0]

    @property
    def name(self) -> str:
        """All after the kind: ``ns/a`` of ``pod/ns/a``."""
        return self.partition("/")[2]

    @property
    def parts(self) -> tuple[str, ...]:
        """The name's parts: ``("ns", "a")`` of ``pod/ns/a``."""
        return tuple(self.split("/")[1:])

    @property
    def namespace(self) -> str | None:
        """Kubernetes namespace that the entity lies in; `None` for nodes, links and kinds that are not known."""
        return self.parts[0] if self.kind in NAMESPACED else None


def _check_entity(text: str) -> None:
    kind, *parts = text.split("/")
    form = "/".join((kind, *PARTS.get(kind, ("NAME",))))
    if len(text) > MAX_ENTITY_LENGTH or not _KIND.fullmatch(kind) or not parts:
        raise ValueError(f"not an entity: {text[:80]!r}; write kind/name, such as node/a or pod/namespace/name")
    wrong = len(parts) != len(PARTS[kind]) if kind in PARTS else len(parts) > MAX_PARTS
    if wrong or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError(
            f"not an entity: {text[:80]!r}; write {form}, each part of letters, digits and . _ : @ -, "
            "beginning and ending with a letter or digit"
        )


def is_metric_name(text: str) -> bool:
    """Whether `text` may name a metric: letters, digits, ``_`` and ``:``, at most 128, no digit first."""
    return _METRIC.fullmatch(text) is not None


class MetricType(StrEnum):
    """What a metric's values are."""

    GAUGE = "gauge"
    """A number that goes up and down."""
    COUNTER = "counter"
    """A number that only grows; smaller than before means that it began again at 0."""
    STATE = "state"
    """One of a few words: ``OK``, ``HOT``."""
    TEXT = "text"

    @property
    def numeric(self) -> bool:
        """Whether values are numbers."""
        return self in (MetricType.GAUGE, MetricType.COUNTER)


@dataclass(frozen=True, slots=True)
class Metric:
    """What is known of a metric before any sample."""

    name: str
    type: MetricType = MetricType.GAUGE
    unit: str = ""
    """Of the values, as UCUM writes it: ``s``, ``By``, ``By/s``, ``1``; empty: not given."""
    ttl: float = 60.0
    """Seconds after which a value is absent."""
    description: str = ""


class Sample(NamedTuple):
    """One value of one metric of one entity."""

    entity: Entity
    metric: str
    time: float
    """Seconds since the epoch, on the receiver's clock."""
    value: float | str


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, as a processing rule tells it."""

    rule: str
    entity: Entity
    metric: str
    time: float
    value: float | str
    previous: float | str | None
    """Value before; `None` if there was none."""
    message: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """JSON object of the event."""
        return {
            "rule": self.rule,
            "entity": str(self.entity),
            "metric": self.metric,
            "time": self.time,
            "value": self.value,
            "previous": self.previous,
            "message": self.message,
        }
