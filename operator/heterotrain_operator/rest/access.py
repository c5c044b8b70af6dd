"""Who calls and what the caller may do, behind one interface. On one machine: whoever has the token may do all."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from heterotrain_core.info.values import Entity
from heterotrain_operator.info.rule_state import RuleKind

MAX_TOKEN: Final = 16_384
"""Characters; a service account's has some 1,200."""
_TOKEN: Final = re.compile(r"[!-~]+")


class UnauthenticatedError(Exception):
    """Nobody knows the caller; the message says what to send."""


class AccessUnavailableError(Exception):
    """Whoever decides does not answer: nothing is allowed meanwhile."""


class Verb(StrEnum):
    """What is done, in the API server's words."""

    GET = "get"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Subject(StrEnum):
    """What it is done to."""

    INFORMATION = "information"
    """Of an entity in a namespace."""
    CLUSTER_INFORMATION = "clusterinformation"
    """Of nodes, links and all else that lies in no namespace."""
    COLLECTION_RULES = "collectionrules"
    PROCESSING_RULES = "processingrules"


@dataclass(frozen=True, slots=True)
class Ask:
    """One question whether a caller may do something."""

    verb: Verb
    subject: Subject
    namespace: str | None = None
    """Of `Subject.INFORMATION`; `None`: in every namespace."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the cluster knows them."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict, hash=False)


class Access(Protocol):
    """Asked for every request; answers may be remembered for ten seconds at most."""

    async def identify(self, token: str | None) -> Caller:
        """The caller with this bearer token. Raises `UnauthenticatedError` or `AccessUnavailableError`."""

    async def allows(self, caller: Caller, ask: Ask) -> bool:
        """Whether the caller may. Raises `AccessUnavailableError`."""


def about(verb: Verb, entity: Entity) -> Ask:
    """Whether something may be done to an entity's information."""
    if entity.namespace is None:
        return Ask(verb, Subject.CLUSTER_INFORMATION)
    return Ask(verb, Subject.INFORMATION, entity.namespace)


def about_rules(verb: Verb, kind: RuleKind) -> Ask:
    """Whether something may be done to the rules of a kind."""
    return Ask(verb, Subject.COLLECTION_RULES if kind is RuleKind.COLLECT else Subject.PROCESSING_RULES)


def token_fault(token: str) -> str | None:
    """What is wrong with a token that is to be given out; `None` if it can be sent in a header."""
    if not _TOKEN.fullmatch(token) or len(token) > MAX_TOKEN:
        return f"must have 1 to {MAX_TOKEN} characters, letters, digits and signs without blanks"
    return None


def bearer_token(authorization: str | None) -> str | None:
    """The token of an ``Authorization`` header; `None` if there is none of the scheme Bearer."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    usable = scheme.lower() == "bearer" and 0 < len(token) <= MAX_TOKEN
    return token if usable else None


class LocalAccess:
    """One token that opens everything; for a server on the loopback interface."""

    def __init__(self, token: str) -> None:
        """Raises `ValueError` for a token that no header can carry."""
        fault = token_fault(token)
        if fault is not None:
            raise ValueError(f"token {fault}")
        self._token: Final = token.encode()

    async def identify(self, token: str | None) -> Caller:
        """The one caller there is. The comparison takes the same time wherever the tokens differ."""
        if token is None or not hmac.compare_digest(token.encode(), self._token):
            raise UnauthenticatedError("send the header Authorization: Bearer TOKEN with the token of this server")
        return Caller("local")

    async def allows(self, caller: Caller, ask: Ask) -> bool:
        """Everything."""
        return True
