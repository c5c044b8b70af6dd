from __future__ import annotations

from pathlib import Path

import pytest

from heterotrain_operator.text_file import MAX_BYTES, TextError, read_text


def test_a_file_that_is_no_text_or_too_large_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_text(file) == "a: 1\n", "a mark of the byte order is no part of the text"
    file.write_bytes(b"a: \xe9\n")
    with pytest.raises(TextError, match=r"is not a text in UTF-8 \(byte 4\)"):
        read_text(file)
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(TextError, match="has more than 4 MiB"):
        read_text(file)


def test_a_device_without_end_is_too_large() -> None:
    with pytest.raises(TextError, match="has more than 0 MiB; is it the right file"):
        read_text(Path("/dev/zero"), 10)
