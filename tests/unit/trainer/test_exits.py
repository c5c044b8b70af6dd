"""The line that says why a script ended."""

from __future__ import annotations

import pytest

from heterotrain.exits import first_line


def noted(error: BaseException, note: str) -> BaseException:
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("error", "want"),
    [
        (ValueError("no such column"), "ValueError: no such column"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (RuntimeError("CUDA error: unknown\nFor debugging pass X=1."), "RuntimeError: CUDA error: unknown"),
        (noted(ValueError("no such column"), "in file a.csv"), "ValueError: no such column"),
        (SyntaxError("invalid syntax", ("a.py", 3, 1, "x = ", 3, 4)), "SyntaxError: invalid syntax"),
    ],
    ids=["one line", "no message", "more lines", "a note was added", "a place before the message"],
)
def test_a_reason_is_one_line_and_no_advice(error: BaseException, want: str) -> None:
    assert first_line(error) == want
