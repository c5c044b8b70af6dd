"""Building blocks of the resource's models: the common base and the bounded types that several fields share.

Every string has a greatest length, every list and map a greatest size and every number a range, so that the API server
can bound what the rules (`heterotrain_api.rules`) may cost. `heterotrain_api.crd` adds range and default to each
description.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

INT32_MAX: Final = 2**31 - 1
SAFE_INT_MAX: Final = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly."""

LIST_TYPE: Final = "x-kubernetes-list-type"
LIST_MAP_KEYS: Final = "x-kubernetes-list-map-keys"
WORDS: Final = "x-heterotrain-words"
"""What a pattern asks for, in words; in no CRD, where the pattern becomes a rule that says them."""
PRESERVE_UNKNOWN: Final = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"

ATOMIC: Final[dict[str, Any]] = {LIST_TYPE: "atomic"}
"""The list is one value: whoever applies it owns all of it."""


def keyed_by(*keys: str) -> dict[str, Any]:
    """Schema of a list whose items are told apart by `keys`; no two items may have the same."""
    return {LIST_TYPE: "map", LIST_MAP_KEYS: list(keys)}


def without_empty(document: dict[str, Any]) -> dict[str, Any]:
    """A document of JSON types without fields whose value is an empty text, list or object, at any depth."""
    bare = {name: _bare(value) for name, value in document.items()}
    return {name: value for name, value in bare.items() if value not in ("", [], {})}


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return without_empty(value)
    return [_bare(item) for item in value] if isinstance(value, list) else value


def said(words: str) -> dict[str, Any]:
    """What people are told who break a field's pattern: ``must be <words>, not …``."""
    return {WORDS: words}


class Resource(BaseModel):
    """Base of all models: frozen, camelCase outside, unknown fields ignored.

    Unknown fields are ignored because the API server has pruned already and a newer field must not break an older
    operator; `heterotrain_api.validation` refuses them in manifests.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        use_attribute_docstrings=True,
    )

    def to_document(self) -> dict[str, Any]:
        """The value as the API server and manifests have it: camelCase, JSON types, without what is not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


Count: TypeAlias = Annotated[int, Field(ge=0, le=SAFE_INT_MAX)]
"""Something counted, in a status; 64 bits."""

Argument: TypeAlias = Annotated[str, Field(max_length=4096)]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=253)]
"""Name of a Kubernetes object."""

LabelValue: TypeAlias = Annotated[
    str,
    Field(
        max_length=63,
        pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        json_schema_extra=said("letters, digits, -, _ and ., with a letter or digit at both ends"),
    ),
]
"""Value of a label."""

Message: TypeAlias = Annotated[str, Field(max_length=1024)]

Quantity: TypeAlias = Annotated[
    Annotated[int, Field(ge=0, le=SAFE_INT_MAX)]
    | Annotated[
        str,
        Field(
            max_length=64,
            pattern=r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
            json_schema_extra=said("a quantity such as 2, 500m or 1.5Gi"),
        ),
    ],
    Field(
        json_schema_extra={INT_OR_STRING: True}, description="An amount: an integer, or a string such as 500m or 2Gi."
    ),
]
"""A Kubernetes resource quantity that is not negative."""

Opaque: TypeAlias = Annotated[dict[str, Any], Field(max_length=64, json_schema_extra={PRESERVE_UNKNOWN: True})]
"""An object that is passed on as it is; its inside is checked by whoever creates the pod."""
