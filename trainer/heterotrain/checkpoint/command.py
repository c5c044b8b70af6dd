"""``heterotrain export``: the command that the trainer package adds to the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterotrain.checkpoint.export import export_model
from heterotrain.checkpoint.folder import UnusableError, find
from heterotrain_api.contract import ExitCode


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="Folder of a checkpoint, or of some (then the newest)."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: the model alone, as safetensors.")],
) -> None:
    """Write the model of a checkpoint, without optimizer state, for load_state_dict(load_file(OUT)).

    Every byte of the checkpoint is verified first. Exit code: 0 written, 1 not, with the reason.
    """
    try:
        found = find(checkpoint)
        for words in found.passed_over:
            typer.echo(f"passed over: {words}", err=True)
        if found.checkpoint is None:
            typer.echo(f"{checkpoint}: no checkpoint in it is whole", err=True)
            raise typer.Exit(ExitCode.FAILED)
        _check_out(out, found.checkpoint.path)
        size = export_model(found.checkpoint, out.absolute())
    except OSError as error:
        typer.echo(f"{error.filename or checkpoint}: {error.strerror}", err=True)
        raise typer.Exit(ExitCode.FAILED) from None
    except (UnusableError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.FAILED) from None
    version = found.checkpoint.manifest.progress.version
    typer.echo(f"{out}: version {version} of {found.checkpoint.manifest.job_name}, {size:,} bytes")


def _check_out(out: Path, checkpoint: Path) -> None:
    """The file takes the place of what has its name: that must not be a device, a folder, or the checkpoint's own."""
    if out.exists() and not out.is_file():
        raise ValueError(f"{out} is there and is no regular file: OUT must be a file that may be written anew")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"{out}: there is no folder {out.absolute().parent}: make it first")
    if out.resolve().is_relative_to(checkpoint.resolve()):
        raise ValueError(f"{out} lies in the checkpoint: writing it would damage that; name a file outside")
