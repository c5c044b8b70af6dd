"""The adaptation loop of a local job: states in, plans out by `Apply`, every decision on a line of `decisions.jsonl`.

What to do is `heterotrain_core.adaptation`; here is only its clock, its channel and its record.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from heterotrain_api.contract import ps_name
from heterotrain_core.adaptation.loop import State, step
from heterotrain_core.adaptation.values import Action, Answer, Decision, Mode, NodeFact, Proposal, Settings
from heterotrain_operator.adaptation import (
    answer_document,
    answer_of,
    answer_words,
    decision_document,
    gist,
    is_told,
    observation_of,
    plan_of,
    unanswered,
)
from heterotrain_rpc import control_pb2
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.channels import make_channel
from heterotrain_rpc.control_pb2_grpc import CoordinatorStub

APPLY_SECONDS: Final = 30.0
"""Deadline of a proposal: agreed or refused well before."""


class LocalLoop:
    """One job's loop. Used on the runner's event loop; `take` never waits."""

    def __init__(
        self,
        settings: Settings,
        start_shares: Mapping[str, int],
        record: Path,
        *,
        say: Callable[[str], None],
        clock: Callable[[], float],
        nodes: Callable[[], Mapping[str, NodeFact]] = dict,
    ) -> None:
        self._state = State(settings)
        self._start_shares = start_shares
        self._record = record
        self._say = say
        self._clock = clock
        self._nodes = nodes
        self._answer: Answer | None = None
        self._gist = ""
        self._coordinator: tuple[str, Credentials] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._told: list[Mapping[str, Any]] = []

    @property
    def decisions(self) -> tuple[Mapping[str, Any], ...]:
        """What was decided and answered so far, as recorded."""
        return tuple(self._told)

    def connect(self, address: str, credentials: Credentials) -> None:
        """From now on plans can be proposed."""
        self._coordinator = (address, credentials)

    def take(self, state: control_pb2.JobState) -> None:
        """A state of the coordinator has come."""
        if self._state.settings.mode is Mode.OFF or self._coordinator is None:
            return
        answer, self._answer = self._answer, None
        seconds = state.training_seconds
        if answer is not None:
            self._tell(answer_document(answer, seconds=seconds), answer_words(answer))
        seen = observation_of(state, self._start_shares, answer=answer, nodes=self._nodes())
        self._state, decision = step(self._state, seen, self._clock())
        if is_told(decision, self._gist):
            self._gist = gist(decision)
            self._tell(decision_document(decision, seconds=seconds), _line(decision))
        if decision.proposal is not None:
            self._asking = asyncio.create_task(self._apply(decision.proposal, *self._coordinator))

    async def settle(self) -> None:
        """Wait for the answer to what was proposed; at once if nothing was."""
        if self._asking is not None:
            await self._asking

    async def close(self) -> None:
        """Give up what was asked."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _apply(self, proposal: Proposal, address: str, credentials: Credentials) -> None:
        try:
            async with make_channel(address, ps_name(0), credentials) as channel:
                verdict = await CoordinatorStub(channel).Apply(plan_of(proposal), timeout=APPLY_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._answer = unanswered(proposal, f"{error.code().name}: {error.details()}")
        else:
            self._answer = answer_of(verdict)

    def _tell(self, document: dict[str, Any], line: str) -> None:
        self._told.append(document)
        with self._record.open("a") as file:
            file.write(json.dumps(document) + "\n")
        if line:
            self._say(line)


def _line(decision: Decision) -> str:
    """What is shown while the job runs; empty for what only `heterotrain explain` tells."""
    if decision.action is Action.KEEP and decision.verified is None:
        return ""
    number = f"plan {decision.proposal.generation}: " if decision.proposal is not None else ""
    return f"adaptation: {number}{decision.reason}"
