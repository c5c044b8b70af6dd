"""Checkpoints that somebody changed and sealed anew, and places that an export must not write to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from builders_checkpoint import make_checkpoint
from heterotrain.checkpoint.command import export
from heterotrain.checkpoint.folder import Checkpoint, CheckpointFolder, UnusableError, verify
from heterotrain.checkpoint.manifest import MANIFEST_FILE


def sealed_anew(checkpoint: Checkpoint, change: Callable[[dict[str, Any]], object]) -> None:
    path = checkpoint.path / MANIFEST_FILE
    content = json.loads(path.read_bytes())["content"]
    change(content)
    seal = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps({"sha256": seal, "content": content}))


def written(folder: Path) -> Checkpoint:
    return CheckpointFolder(folder).write(make_checkpoint(3), [[b"parts of a model"]])


@pytest.mark.parametrize(
    ("change", "want"),
    [
        (lambda c: c.update(term=float("inf")), "it is not the manifest of a checkpoint: OverflowError"),
        (lambda c: c["progress"].update(version=float("inf")), "OverflowError"),
        (lambda c: c["files"].append(c["files"][0]), "it names a file twice"),
    ],
    ids=["an endless term", "an endless version", "a file twice"],
)
def test_a_manifest_that_cannot_be_is_refused_by_its_file(
    change: Callable[[dict[str, Any]], object], want: str, tmp_path: Path
) -> None:
    checkpoint = written(tmp_path)
    sealed_anew(checkpoint, change)
    with pytest.raises(UnusableError, match=want) as refusal:
        verify(checkpoint.path)
    assert str(refusal.value).startswith(str(checkpoint.path / MANIFEST_FILE))


def test_an_export_replaces_neither_devices_nor_folders_nor_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = written(tmp_path / "checkpoints")
    pipe, folder, own = tmp_path / "pipe", tmp_path / "folder", checkpoint.files[0]
    os.mkfifo(pipe)
    folder.mkdir()
    before = own.read_bytes()
    places = {
        pipe: "is no regular file",
        folder: "is no regular file",
        own: "lies in the checkpoint",
        tmp_path / "none" / "model": "there is no folder",
    }
    for out, want in places.items():
        with pytest.raises(typer.Exit) as ended:
            export(checkpoint.path, out)
        said = capsys.readouterr().err
        assert ended.value.exit_code == 1
        assert said.startswith(str(out))
        assert want in said
    assert pipe.is_fifo()
    assert own.read_bytes() == before
