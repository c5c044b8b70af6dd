"""Text files that people name on the command line: read whole, unless they are something else by mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Final

MAX_BYTES: Final = 4 * 2**20
"""Of a manifest or of rules. Kubernetes takes no object of more than some 1.5 MiB."""


class TextError(ValueError):
    """A file that is no text, or too large; says so without its name."""


def read_text(path: Path, most_bytes: int = MAX_BYTES) -> str:
    """The content of a file in UTF-8; raises `OSError` and `TextError`. A device without end is too large, too."""
    with path.open("rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise TextError(f"has more than {most_bytes // 2**20} MiB; is it the right file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextError(f"is not a text in UTF-8 (byte {error.start + 1}); is it the right file?") from None
