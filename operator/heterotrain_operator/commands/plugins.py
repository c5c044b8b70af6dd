"""Subcommands from other packages: entry points of the group ``heterotrain.commands``, each a `typer.Typer` or a
function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import typer

from heterotrain_operator.commands.errors import CommandError

GROUP: Final = "heterotrain.commands"


def installed() -> tuple[EntryPoint, ...]:
    """All plugins of this environment; nothing of theirs is imported."""
    return tuple(entry_points(group=GROUP))


def wanted(plugins: Iterable[EntryPoint], arguments: Iterable[str]) -> tuple[EntryPoint, ...]:
    """Return the plugins to load for a command line: the one it names; all if it names no command (help)."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    return tuple(plugin for plugin in plugins if not words or plugin.name == words[0])


def add_plugin(app: typer.Typer, plugin: EntryPoint) -> None:
    """Add a plugin's command. One that cannot be loaded becomes a command that says so; the others are not affected."""
    try:
        loaded = plugin.load()
    except Exception as error:  # noqa: BLE001  # foreign code may raise anything; the failure is kept and shown
        fault = f"the command {plugin.name} of {_origin(plugin)} cannot be loaded: {type(error).__name__}: {error}"
        app.command(name=plugin.name, help=fault, context_settings=_ANY_ARGUMENTS)(_failing(fault))
        return
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=plugin.name)
    else:
        app.command(name=plugin.name)(loaded)


_ANY_ARGUMENTS: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def _failing(fault: str) -> Callable[[], None]:
    def fail() -> None:
        raise CommandError(fault)

    return fail


def _origin(plugin: EntryPoint) -> str:
    return plugin.dist.name if plugin.dist is not None else plugin.value
