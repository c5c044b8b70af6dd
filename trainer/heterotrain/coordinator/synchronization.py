"""Modes of synchronisation as files and messages have them ↔ values of the state machine. Pure.

Raises `ValueError` for what cannot be; the text names the setting.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from heterotrain_api.trainer_config import SynchronizationConfig
from heterotrain_core.run_state import SynchronizationView
from heterotrain_core.sync_settings import SyncSettings, settings_of
from heterotrain_core.synchronization import DiscountKind, Normalization, Synchronization, SyncMode
from heterotrain_rpc import control_pb2

E = TypeVar("E", bound=StrEnum)


def of_config(config: SynchronizationConfig) -> Synchronization:
    """As the coordinator's file has it."""
    return SyncSettings(
        mode=_choice(SyncMode, "mode", config.mode),
        staleness_bound=config.staleness_bound,
        delay_window_seconds=config.delay_window_seconds,
        discount=None if config.discount is None else _choice(DiscountKind, "discount", config.discount),
        discount_exponent=config.discount_exponent,
        normalization=_choice(Normalization, "normalization", config.normalization),
        delay_compensation=config.delay_compensation,
        dssp_lower=config.dssp_lower,
        dssp_range=config.dssp_range,
        backup_workers=config.backup_workers,
    ).synchronization()


def of_message(message: control_pb2.Synchronization) -> Synchronization:
    """As a plan carries it."""
    return SyncSettings(
        mode=_choice(SyncMode, "mode", message.mode),
        staleness_bound=message.staleness_bound if message.HasField("staleness_bound") else None,
        delay_window_seconds=message.delay_window_seconds if message.HasField("delay_window_seconds") else None,
        discount=_choice(DiscountKind, "discount", message.discount) if message.discount else None,
        discount_exponent=message.discount_exponent,
        normalization=_choice(Normalization, "normalization", message.normalization or Normalization.TARGET),
        delay_compensation=message.delay_compensation,
        dssp_lower=message.dssp_lower,
        dssp_range=message.dssp_range,
        backup_workers=message.backup_workers,
    ).synchronization()


def message_of(value: Synchronization) -> control_pb2.Synchronization:
    """The inverse of `of_message`."""
    settings = settings_of(value)
    return control_pb2.Synchronization(
        mode=settings.mode,
        staleness_bound=settings.staleness_bound,
        delay_window_seconds=settings.delay_window_seconds,
        discount=settings.discount or "",
        discount_exponent=settings.discount_exponent,
        normalization=settings.normalization,
        delay_compensation=settings.delay_compensation,
        dssp_lower=settings.dssp_lower,
        dssp_range=settings.dssp_range,
        backup_workers=settings.backup_workers,
    )


def state_of(view: SynchronizationView) -> control_pb2.SynchronizationState:
    """For whoever watches."""
    return control_pb2.SynchronizationState(
        wanted=message_of(view.wanted),
        mode=view.mode,
        bound_in_force=view.bound_in_force,
        largest_staleness=view.largest_staleness,
        staleness=view.staleness,
    )


def _choice(choices: type[E], setting: str, text: str) -> E:
    try:
        return choices(text)
    except ValueError:
        raise ValueError(f"{setting} must be one of {', '.join(choices)}, not {text[:40]!r}") from None
