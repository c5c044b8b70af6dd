"""The output of a program on this machine, where the settings allow that."""

from __future__ import annotations

from heterotrain_api.info_collection import CollectionRuleSpec
from heterotrain_operator.info.sources.base import Reason, Reply, SourceError
from heterotrain_operator.info.sources.documents import read_document
from heterotrain_operator.info.sources.process import output_of


class CommandReader:
    """Reads rules with a command source."""

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed

    async def read(self, spec: CollectionRuleSpec, now: float) -> Reply:
        """One run of the program."""
        del now
        source = spec.source.command
        if source is None:
            raise TypeError("not a rule of command")
        if not self._allowed:
            raise SourceError(
                Reason.FORBIDDEN, "commands are not allowed here: serve with --allow-commands, never in a cluster"
            )
        return Reply(read_document(await output_of(source.argv), source, spec.metrics))
