"""Messages as plain values."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message


def given_fields(message: Message) -> dict[str, Any]:
    """The fields that are set, by name; what has its default and says no more is left out."""
    return {field.name: value for field, value in message.ListFields()}
