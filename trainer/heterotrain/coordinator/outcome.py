"""The coordinator's last word: a JSON object for whoever started it, and an exit code."""

from __future__ import annotations

import json
import os
from pathlib import Path

from heterotrain_api.contract import ExitCode
from heterotrain_core.run_values import Outcome, Phase

TERMINATION_LIMIT_BYTES = 4096
"""What a kubelet reads of a termination message; a longer one is cut in the middle of the JSON."""
_MESSAGE_LIMIT = 1000

_EXIT_CODES = {Phase.SUCCEEDED: ExitCode.SUCCEEDED, Phase.STOPPED: ExitCode.STOPPED}


def exit_code(outcome: Outcome) -> ExitCode:
    """What the process exits with."""
    return _EXIT_CODES.get(outcome.phase, ExitCode.FAILED)


def outcome_json(outcome: Outcome) -> str:
    """One JSON object of at most `TERMINATION_LIMIT_BYTES`; if need be, last reported values and words are left out."""
    reported, message = dict(outcome.reported), outcome.message[:_MESSAGE_LIMIT]
    while True:
        text = json.dumps(
            {
                "state": outcome.phase.value,
                "reason": outcome.reason.value,
                "message": message,
                "rounds": outcome.rounds,
                "samples": outcome.samples,
                "reported": reported,
                "model": outcome.model,
            },
            allow_nan=False,
            ensure_ascii=False,
        )
        if len(text.encode()) <= TERMINATION_LIMIT_BYTES or not (reported or message):
            return text
        if reported:
            reported.popitem()
        else:
            message = message[: len(message) // 2]


def write_outcome(outcome: Outcome, path: Path) -> None:
    """Leave the outcome in `path`, whole or not at all.

    A kubelet mounts a termination log as a single file, which cannot be replaced; then it is written in place.
    """
    text = outcome_json(outcome)
    temporary = path.with_name(f".{path.name}.part")
    if path.exists():
        path.write_text(text, encoding="utf-8")
        return
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)  # noqa: PTH105  # the same, and says what it does
