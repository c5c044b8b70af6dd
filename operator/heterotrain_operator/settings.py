"""The operator's settings: read once from the environment at the entry point, frozen afterwards.

Every field, and every field of `InfoSettings` and `JobSettings`, can be set by the variable
``HETEROTRAIN_OPERATOR_<FIELD>``; the defaults are meant for production, tests take shorter ones. Which namespaces are
served is read from the variable that kopf reads too, so that it has one home.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final, TypeVar

from heterotrain_operator.info.packs import pack_names
from heterotrain_operator.job.settings import JobSettings

PREFIX: Final = "HETEROTRAIN_OPERATOR_"
NAMESPACES: Final = "KOPF_RUN_NAMESPACES"
"""Namespaces to serve, separated by spaces. Empty: all (then kopf wants ``--all-namespaces``)."""


class SettingsError(ValueError):
    """A variable that cannot be taken; the message names it and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """How the shell around the decisions behaves. Raises `SettingsError` for numbers that are not above zero."""

    namespaces: tuple[str, ...] = ()
    """Empty: all."""

    full_pass_seconds: float = 60.0
    """Every job gets a pass at least this often, whatever the watch delivered."""
    pass_spacing_seconds: float = 0.5
    """Least time between two passes of a job: a burst of events becomes one pass."""
    pass_timeout_seconds: float = 120.0
    """A pass that takes longer is given up and tried again: no job is ever stuck in one."""
    retry_seconds: float = 20.0
    """Longest wait, before jitter, until a pass that failed is tried again: half a minute at most with it."""
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
    event_repeat_seconds: float = 600.0
    """An event that repeats within this time raises the count of the first."""

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
            if field.name == "metrics_port":
                if not 0 <= value <= 65535:
                    raise SettingsError(f"{variable(field)} must be a port or 0, not {value}")
            elif field.name != "namespaces" and value <= 0:
                raise SettingsError(f"{variable(field)} must be above 0, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InfoSettings:
    """The information service of the operator. Raises `SettingsError`."""

    rules_namespace: str = ""
    """The operator's own namespace: rules are obeyed there and nowhere else. Empty: there is no information service."""
    rule_packs: tuple[str, ...] = ()
    """Packs whose rules are kept as resources (`heterotrain_operator.info.packs`)."""
    without_rules: tuple[str, ...] = ()
    """Names of rules of these packs that are left out."""

    prometheus_url: str = ""
    """Of the Prometheus that rules mean which name none, without /api/v1."""
    prometheus_credentials: str = ""
    """Name of its credentials, as rules give it."""
    allowed_hosts: tuple[str, ...] = ("*",)
    """Hosts that rules may ask; ``*`` for anything. Metadata services of clouds are never allowed."""
    credentials_folder: str = "/etc/heterotrain/credentials"
    """Has a folder for each name that a rule may give as its credentials."""

    history_file: str = ""
    """SQLite file of the retention window; empty: a restart begins with nothing."""
    retention_seconds: float = 3600.0
    """For how long samples are kept."""
    samples_per_series: int = 1024
    stored_series: int = 60_000
    """Series in memory; samples of others are refused and counted."""
    exported_series: int = 10_000
    """Series of derived values that ``/metrics`` shows at most."""

    rest_port: int = 0
    """Port of the REST API; 0: not served."""
    rest_certificates: str = ""
    """Folder with tls.crt and tls.key of the REST API, read again when they change; empty: plain HTTP."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.rule_packs) - set(pack_names()))
        if unknown:
            raise SettingsError(
                f"{PREFIX}RULE_PACKS: there is no pack {unknown[0]!r}; there are {', '.join(pack_names())}"
            )
        if not 0 <= self.rest_port <= 65535:
            raise SettingsError(f"{PREFIX}REST_PORT must be a port or 0, not {self.rest_port}")
        if self.prometheus_url and not self.prometheus_url.startswith(("http://", "https://")):
            raise SettingsError(
                f"{PREFIX}PROMETHEUS_URL must begin with http:// or https://, not {self.prometheus_url!r}"
            )
        for name in ("retention_seconds", "samples_per_series", "stored_series", "exported_series"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{PREFIX}{name.upper()} must be above 0, not {getattr(self, name)}")


def read_settings(env: Mapping[str, str]) -> tuple[OperatorSettings, JobSettings, InfoSettings]:
    """All parts' settings. Unknown variables with our prefix are refused, so that a typing error is seen."""
    shell = {variable(f): f for f in fields(OperatorSettings) if f.name != "namespaces"}
    job = {variable(f): f for f in fields(JobSettings)}
    info = {variable(f): f for f in fields(InfoSettings)}
    known = shell | job | info
    unknown = sorted(name for name in env if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise SettingsError(f"{unknown[0]} is not a setting; there are: {', '.join(sorted(known))}")
    for name, field in job.items():
        if field.default is MISSING and field.default_factory is MISSING and not env.get(name):
            raise SettingsError(f"{name} must be set")
    namespaces = tuple(env.get(NAMESPACES, "").split())
    return (
        _read(OperatorSettings, shell, env, {"namespaces": namespaces}),
        _read(JobSettings, job, env, {}),
        _read(InfoSettings, info, env, {}),
    )


def variable(field: Field[Any]) -> str:
    """The environment variable of a field."""
    return PREFIX + field.name.upper()


T = TypeVar("T")


def _read(kind: type[T], known: Mapping[str, Field[Any]], env: Mapping[str, str], values: dict[str, Any]) -> T:
    given = {field.name: _value(name, field, env[name]) for name, field in known.items() if name in env}
    return kind(**values, **given)


def _value(name: str, field: Field[Any], text: str) -> Any:
    # Annotations are text here; they are few, and a test reads every field of both classes.
    match str(field.type):
        case "str":
            return text
        case "tuple[str, ...]":
            return tuple(text.split())
        case "int | None":
            return _number(name, text, whole=True) if text else None
        case "int":
            return _number(name, text, whole=True)
        case "float":
            return _number(name, text, whole=False)
        case "Mapping[str, str]":
            return _mapping(name, text)
        case other:
            raise AssertionError(f"setting {field.name} has a type that cannot be read: {other}")


def _number(name: str, text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise SettingsError(f"{name} must be a {'whole ' if whole else ''}number, not {text!r}") from None


def _mapping(name: str, text: str) -> dict[str, str]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise SettingsError(f'{name} must be a JSON object of texts, as {{"cpu": "50m"}}, not {text!r}')
    return value
