"""A user's change of mode or bounds: named as in ``spec.synchronization``, over what is in force. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from heterotrain_api.crd import JOB, kind_schema
from heterotrain_api.rules import RULES
from heterotrain_api.schema_check import Schema, check, normalize, unknown_fields
from heterotrain_api.v1alpha1 import Synchronization as Wanted
from heterotrain_core.sync_settings import SyncSettings, from_fields, to_fields
from heterotrain_core.synchronization import SyncMode, describe
from heterotrain_operator.job.trainer_config import synchronization_settings

_FIELD: Final = "synchronization"
_PATH: Final = f"spec.{_FIELD}"
_KEPT: Final = ("adaptive", "leaseSeconds")
"""What is no part of a plan, and so stays as the job began with it."""


def read_change(value: object) -> Mapping[str, Any]:
    """The change as asked for, its fields checked one by one. Raises `ValueError` that names the field."""
    if not isinstance(value, dict) or not value:
        raise ValueError(f'{_FIELD} must be an object with what is to change, as {{"stalenessBound": 1}}')
    schema = _schema()
    change = normalize(value, schema)
    faults = [*unknown_fields(change, schema, _FIELD), *check(change, schema, _FIELD)]
    if faults:
        raise ValueError("; ".join(map(str, faults)))
    return change  # type: ignore[no-any-return]  # an object stays one


def changed(now: SyncSettings, change: Mapping[str, Any]) -> SyncSettings:
    """The settings after `change` (read by `read_change`): what is not given stays, or has the default of another mode.

    Raises `ValueError` for what means nothing in the mode, and for numbers that cannot be.
    """
    wanted = Wanted.model_validate({"mode": now.mode.value, **change})
    for rule in RULES:
        if rule.path == _PATH and not rule.holds(wanted):
            raise ValueError(f"{_FIELD}{rule.field}: {rule.message}; the mode is {wanted.mode}")
    base = now if wanted.mode == now.mode.value else SyncSettings(mode=SyncMode(wanted.mode.value))
    given = synchronization_settings(wanted)
    if "discount" in given:
        given = {"discount_exponent": 1.0, **given}
    result = from_fields({**to_fields(base), **given})
    result.synchronization()  # its numbers are looked at
    return result


def words_of(settings: SyncSettings) -> str:
    """What is asked for: ``SSP, at most 3 iterations ahead``."""
    return describe(settings.synchronization())


def manifest_settings(wanted: Wanted) -> SyncSettings:
    """What a job begins with, by its manifest."""
    return from_fields({**to_fields(SyncSettings()), **synchronization_settings(wanted)})


@cache
def _schema() -> Schema:
    whole = kind_schema(JOB)["properties"]["spec"]["properties"][_FIELD]
    return {
        "type": "object",
        "properties": {name: field for name, field in whole["properties"].items() if name not in _KEPT},
    }
