"""The command line: ``heterotrain``. Puts the subcommands together; each lives in `heterotrain_operator.commands`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import EntryPoint, version
from typing import Annotated, NoReturn

import typer

from heterotrain_api.contract import ExitCode
from heterotrain_operator.commands import compare as compare_command
from heterotrain_operator.commands import explain as explain_command
from heterotrain_operator.commands import info, jobs, plan, plugins, sync
from heterotrain_operator.commands import lab as lab_command
from heterotrain_operator.commands import run as run_commands
from heterotrain_operator.commands import scale as scale_command
from heterotrain_operator.commands import simulate as simulate_command
from heterotrain_operator.commands.errors import CommandError


def make_app(others: Iterable[EntryPoint] = ()) -> typer.Typer:
    """Return the application, with the given subcommands of other packages."""
    app = typer.Typer(
        name="heterotrain",
        help="Train one PyTorch model on machines that are not alike.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(options)
    app.command()(run_commands.run)
    app.command()(run_commands.validate)
    app.command(name="list")(jobs.list_jobs)
    app.add_typer(plan.app, name="plan")
    app.add_typer(sync.app, name="sync")
    app.add_typer(info.app, name="info")
    for function in (jobs.logs, jobs.stop, jobs.drain, jobs.checkpoint):
        app.command()(function)
    app.command()(scale_command.scale)
    app.command()(explain_command.explain)
    app.command()(compare_command.compare)
    app.command()(simulate_command.simulate)
    app.command()(lab_command.lab)
    app.command(name="version")(show_version)
    taken = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    taken |= {command.callback.__name__ for command in app.registered_commands if command.callback is not None}
    for plugin in others:
        if plugin.name not in taken:
            plugins.add_plugin(app, plugin)
    return app


def show_version() -> None:
    """Print the version."""
    typer.echo(f"heterotrain {version('heterotrain')}")


def _version_asked(asked: bool) -> None:
    if asked:
        show_version()
        raise typer.Exit


def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version_asked, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that go before a command."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line `arguments` (the process's own by default) and end the process."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        if not word.isprintable() and any("\udc80" <= character <= "\udcff" for character in word):
            encoding = sys.getfilesystemencoding()
            typer.echo(f"{word!r}: is no text in {encoding}: rename what is called so, or set a UTF-8 locale", err=True)
            sys.exit(ExitCode.INVALID)
    app = make_app(plugins.wanted(plugins.installed(), words))
    try:
        app(words)
    except CommandError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.code)
    except OSError as error:
        # What no command foresaw: a disk that is full, a file that may not be read. The system says which and why.
        what = f"{error.filename}: " if error.filename is not None else ""
        typer.echo(f"{what}{error.strerror or error}", err=True)
        sys.exit(ExitCode.FAILED)
    sys.exit(0)
