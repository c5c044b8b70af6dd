"""What a condition of a job says, as a value."""

from __future__ import annotations

from typing import NamedTuple

from heterotrain_api.status import ConditionStatus


class Statement(NamedTuple):
    """What a condition says."""

    status: ConditionStatus
    reason: str
    message: str
