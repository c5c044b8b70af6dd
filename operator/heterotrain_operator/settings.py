"""The operator's settings: read once from the environment at the entry point, frozen afterwards.

Every field can be set by the variable ``HETEROTRAIN_OPERATOR_<FIELD>``; the defaults are meant for production, shorter
ones for tests. Which namespaces are served is read from the variable that kopf reads too, so that it has one home.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

PREFIX: Final = "HETEROTRAIN_OPERATOR_"
NAMESPACES: Final = "KOPF_RUN_NAMESPACES"
"""Namespaces to serve, separated by spaces. Empty: all (then kopf wants ``--all-namespaces``)."""


class SettingsError(ValueError):
    """A variable that cannot be taken; the message names it and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Raises `SettingsError` for values that are not above zero."""

    namespaces: tuple[str, ...] = ()
    """Empty: all."""

    full_pass_seconds: float = 60.0
    """Every job gets a pass at least this often, whatever the watch delivered."""
    pass_spacing_seconds: float = 0.5
    """Least time between two passes of a job: a burst of events becomes one pass."""
    pass_timeout_seconds: float = 120.0
    """A pass that takes longer is given up and tried again: no job is ever stuck in one."""
    concurrent_passes: int = 20
    concurrent_creates: int = 10
    """Pods of one job that are created at the same time."""
    request_timeout_seconds: float = 10.0
    """Of each request to the API server."""

    watch_inactivity_seconds: float = 70.0
    """A watch without an event or bookmark for this long is opened again; the API server sends bookmarks each 60 s."""
    watch_stale_seconds: float = 240.0
    """Liveness fails once the watch has withheld for this long what a list has shown."""
    loop_stuck_seconds: float = 180.0
    """Liveness fails once the supervisor has not come round for this long."""
    metrics_port: int = 0
    """Port of ``/metrics`` and ``/readyz``; 0: not served."""

    status_interval_seconds: float = 15.0
    """Progress alone is written at most this often; conditions, plans and answers at once."""
    event_repeat_seconds: float = 600.0
    """An event that repeats within this time raises the count of the first."""
    leftover_seconds: float = 30.0
    """Pods that still run this long after the end of their job are deleted."""

    link_interval_seconds: float = 2.0
    """Least time between two states that a coordinator sends."""
    link_wake_seconds: float = 15.0
    """Progress alone wakes a job at most this often."""
    link_backoff_seconds: float = 15.0
    """Longest wait before a coordinator that did not answer is called again."""
    coordinator_timeout_seconds: float = 30.0
    """Of each request to a coordinator; a plan is answered once all live workers have."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "metrics_port" else 1e-9
            if field.name != "namespaces" and value < least:
                raise SettingsError(f"{PREFIX}{field.name.upper()} must be above 0, not {value}")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> OperatorSettings:
        """Read the environment; unknown variables with our prefix are refused, so that a typing error is seen."""
        known = {f"{PREFIX}{field.name.upper()}": field for field in fields(cls) if field.name != "namespaces"}
        unknown = sorted(name for name in env if name.startswith(PREFIX) and name not in known)
        if unknown:
            raise SettingsError(f"{unknown[0]} is not a setting; there are: {', '.join(sorted(known))}")
        values: dict[str, Any] = {"namespaces": tuple(env.get(NAMESPACES, "").split())}
        for name, field in known.items():
            if name in env:
                values[field.name] = _number(name, env[name], whole=isinstance(field.default, int))
        return cls(**values)


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise SettingsError(f"{name} must be a {'whole ' if whole else ''}number, not {text!r}") from None
