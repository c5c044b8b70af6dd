"""``heterotrain compare``: the reports of some runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markdown import Markdown

from heterotrain_api.contract import ExitCode
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.local import compare as comparing
from heterotrain_operator.local.job_folder import REPORT_FILE
from heterotrain_operator.local.plots import NO_PLOTS, can_draw, draw_comparison
from heterotrain_operator.text_file import TextError, read_text

MAX_REPORT_BYTES: Final = 256 * 2**20


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER…", help="Report folders of two or more runs; the first is the base.")
    ],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write comparison.md and comparison.png there too.")
    ] = None,
) -> None:
    """Hold runs side by side: shares, samples/s, share of ideal, time for the same samples, reported values."""
    if len(folders) < 2:
        raise CommandError("FOLDER: give the report folders of two or more runs", ExitCode.INVALID)
    runs = [comparing.Run(name, _read(folder)) for name, folder in zip(_names(folders), folders, strict=True)]
    comparison = comparing.compare(runs)
    Console().print(Markdown(comparing.markdown(comparison)))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        pictures = draw_comparison(runs, output)
        (output / "comparison.md").write_text(comparing.markdown(comparison, pictures))
        if not can_draw():
            typer.echo(f"plots: {NO_PLOTS}")


def _names(folders: Sequence[Path]) -> list[str]:
    """Their last parts, unless two of them are alike."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _read(folder: Path) -> comparing.RunReport:
    path = folder / REPORT_FILE
    try:
        return comparing.read_report(read_text(path, MAX_REPORT_BYTES))
    except TextError as error:
        raise CommandError(f"{path}: {error}", ExitCode.INVALID) from None
    except comparing.CompareError as error:
        raise CommandError(f"{path}: is no report of a run that trained: {error}", ExitCode.INVALID) from None
