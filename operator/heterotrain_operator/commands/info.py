"""``heterotrain info serve``: collect and derive information by rules, and serve it, without a cluster."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import secrets
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from heterotrain_api.contract import ExitCode
from heterotrain_api.info_collection import URL, URL_WORDS
from heterotrain_api.schema_check import matches
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.local.registry import home

if TYPE_CHECKING:
    from heterotrain_operator.rest.desk import Rule
    from heterotrain_operator.rest.local import LocalSettings

TOKEN_VARIABLE: Final = "HETEROTRAIN_INFO_TOKEN"  # noqa: S105  # a name, no secret

app = typer.Typer(help="The information service: rules to collect and to process, one REST API.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep ``serve`` a word of its own although it is the only one."""


@app.command()
def serve(  # noqa: PLR0917  # a command: its options are given by name
    rules: Annotated[
        list[Path] | None,
        typer.Option("--rules", metavar="FILE", help="YAML file of CollectionRules and ProcessingRules; repeatable."),
    ] = None,
    pack: Annotated[
        list[str] | None,
        typer.Option("--pack", metavar="NAME", help="Rules that come with the program: local, derived-node, …"),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port to listen on; 0: any free one.")] = 0,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Loopback address to listen on.")] = "127.0.0.1",
    token: Annotated[
        str | None,
        typer.Option(
            envvar=TOKEN_VARIABLE,
            show_envvar=True,
            metavar="T",
            help="Token that requests must have. Without it one is made and written to a file that only you can read.",
        ),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the last hour in this file, over restarts.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Prometheus server of rules that name none.")
    ] = None,
    allow_commands: Annotated[
        bool, typer.Option("--allow-commands", help="Rules that come by the API may run commands; those of FILE may.")
    ] = False,
) -> None:
    """Collect by the rules and serve what they give, on this machine only, until Ctrl-C."""
    if not _is_loopback(host):
        raise CommandError(f"--host must be a loopback address such as 127.0.0.1 or ::1, not {host}", ExitCode.INVALID)
    if token is not None and not token:
        raise CommandError(
            f"--token must not be empty; without --token and {TOKEN_VARIABLE} one is made", ExitCode.INVALID
        )
    _check_places(history, prometheus)
    if token is None:
        _make_home(home(os.environ))
    try:
        read = read_rules(rules or (), pack or ())
        settings = _settings(host, port, token, history, prometheus, allow_commands=allow_commands)
    except ModuleNotFoundError as error:
        message = f"the information service needs the package {error.name}: pip install 'heterotrain[operator]'"
        raise CommandError(message) from error
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    asyncio.run(_serve(settings, read, made_token=token is None))


def _check_places(history: Path | None, prometheus: str | None) -> None:
    if history is not None and history.is_dir():
        raise CommandError(f"--history {history}: must be a file, new or of an earlier run", ExitCode.INVALID)
    if prometheus is not None and not matches(URL, prometheus):
        raise CommandError(f"--prometheus {prometheus}: must be {URL_WORDS}", ExitCode.INVALID)


def _make_home(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"{folder}: the token cannot be kept there: {error.strerror}; give --token, or name another folder in "
        )
        raise CommandError(f"{message}HETEROTRAIN_HOME", ExitCode.INVALID) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_rules(files: Sequence[Path], packs: Sequence[str]) -> list[Rule]:
    """The rules of all files and packs together; raises `CommandError`, one line per fault."""
    rules, faults = _load(files, packs)
    faults += _together(rules) if not faults else []
    if faults:
        raise CommandError("\n".join(faults), ExitCode.INVALID)
    return rules


def _load(files: Sequence[Path], packs: Sequence[str]) -> tuple[list[Rule], list[str]]:
    from heterotrain_api.validation import InvalidManifestError
    from heterotrain_operator.info.packs import load_packs
    from heterotrain_operator.info.rules import load_rules
    from heterotrain_operator.text_file import TextError, read_text

    rules: list[Rule] = []
    faults: list[str] = []
    for file in files:
        try:
            rules += load_rules(read_text(file))
        except InvalidManifestError as error:
            faults += [f"{file}: {str(fault).removeprefix('manifest: ')}" for fault in error.faults]
        except OSError as error:
            faults.append(f"{file}: cannot be read: {error.strerror}")
        except TextError as error:
            faults.append(f"{file}: {error}")
    try:
        rules += load_packs(packs)
    except ValueError as error:
        faults.append(f"--pack: {error}")
    return rules, faults


def _together(rules: Sequence[Rule]) -> list[str]:
    """What is wrong with rules that are right each by itself: names that are there twice, outputs, rings."""
    from heterotrain_api.info_rules import ProcessingRule
    from heterotrain_core.info.dryrun import check_rules
    from heterotrain_operator.info.rules import compile_processing

    names = [(rule.kind, rule.metadata.name) for rule in rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        return [f"{kind} {name}: is there twice in the files and packs: names must differ" for kind, name in twice]
    try:
        check_rules([compile_processing(rule) for rule in rules if isinstance(rule, ProcessingRule)])
    except ValueError as error:
        return [str(error)]
    return []


def _settings(
    host: str, port: int, token: str | None, history: Path | None, prometheus: str | None, *, allow_commands: bool
) -> LocalSettings:
    from heterotrain_operator.info.readers import ReaderSettings
    from heterotrain_operator.rest.access import token_fault
    from heterotrain_operator.rest.local import LocalSettings

    fault = None if token is None else token_fault(token)
    if fault is not None:
        raise CommandError(f"--token {fault}", ExitCode.INVALID)
    return LocalSettings(
        host=host,
        port=port,
        token=token or secrets.token_urlsafe(32),
        readers=ReaderSettings(prometheus_url=prometheus, allow_commands=True),
        allow_commands=allow_commands,
        history=history,
    )


async def _serve(settings: LocalSettings, rules: Sequence[Rule], *, made_token: bool) -> None:
    """Serve until SIGTERM or SIGINT."""
    from heterotrain_operator.info.pauses import shorten_pauses
    from heterotrain_operator.rest.local import serve_local

    written: list[Path] = []

    def ready(port: int) -> None:
        if made_token:
            written.append(home(os.environ) / f"information-{port}.token")
            write_secret(written[0], settings.token)
        where = f"[{settings.host}]" if ":" in settings.host else settings.host
        hint = f"; its token is in {written[0]}" if written else ""
        shorten_pauses()
        typer.echo(f"{len(rules)} rules, served at http://{where}:{port}/v1{hint}")

    serving = asyncio.create_task(serve_local(settings, rules, ready), name="information service")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        typer.echo("stopped")
    except (OSError, sqlite3.Error) as error:
        raise CommandError(f"cannot serve on {settings.host} port {settings.port}: {error}") from error
    finally:
        for file in written:
            # Where the file could not be made there is none; what is raised says why.
            with suppress(FileNotFoundError, NotADirectoryError):
                file.unlink()


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in a folder that only its owner can enter if it is new."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{text}\n")
