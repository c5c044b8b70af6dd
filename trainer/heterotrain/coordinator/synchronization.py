"""Modes of synchronisation as files and messages have them ↔ values of the state machine. Pure.

Raises `ValueError` for what cannot be; the text names the setting.
"""

from __future__ import annotations

from heterotrain_api.trainer_config import SynchronizationConfig
from heterotrain_core.run_state import SynchronizationView
from heterotrain_core.sync_settings import from_fields, settings_of, to_fields
from heterotrain_core.synchronization import Synchronization
from heterotrain_rpc import control_pb2
from heterotrain_rpc.fields import given_fields
from heterotrain_rpc.plans import synchronization_message


def of_config(config: SynchronizationConfig) -> Synchronization:
    """As the coordinator's file has it: the same names as in messages."""
    return from_fields(config.model_dump()).synchronization()


def of_message(message: control_pb2.Synchronization) -> Synchronization:
    """As a plan carries it."""
    return from_fields(given_fields(message)).synchronization()


def message_of(value: Synchronization) -> control_pb2.Synchronization:
    """The inverse of `of_message`."""
    return synchronization_message(to_fields(settings_of(value)))


def state_of(view: SynchronizationView) -> control_pb2.SynchronizationState:
    """For whoever watches."""
    return control_pb2.SynchronizationState(
        wanted=message_of(view.wanted),
        mode=view.mode,
        bound_in_force=view.bound_in_force,
        largest_staleness=view.largest_staleness,
        staleness=view.staleness,
    )
