"""Which of its rights the operator lacks, in words that name verb, resource and namespace, and what to do about it.

kopf's watches meet their 403s by themselves and only repeat; other rights are missed late, by one job or another. So
all of `heterotrain_operator.kube.RULES` are asked for when the operator starts, and again while one is missing or the
API server refuses something. The operator goes on meanwhile: jobs that train do not need it, those in other namespaces
are attended, and a right that is given later is used without a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.kube import RULES

logger = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Questions to the API server at the same time."""
REMEDY: Final = (
    "give its service account the chart's role (rbac.create=true; docs/installation.md, Rights of the operator). "
    "It goes on with what it may do, and asks again"
)


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One verb on one resource, as a Role would give it."""

    namespace: str | None
    """`None`: all namespaces."""
    group: str
    resource: str
    """Plural, with its subresource: ``heterotrainjobs/status``."""
    verb: str


def needed(namespaces: Sequence[str]) -> tuple[Right, ...]:
    """All rights of the operator in the namespaces that it serves; none named: in all. Pure."""
    return tuple(
        Right(namespace, group, resource, verb)
        for namespace in namespaces or (None,)
        for rule in RULES
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def in_words(missing: Iterable[Right]) -> str:
    """``list, watch pods and create secrets in namespace ml``. Pure."""
    places = []
    for namespace, there in groupby(sorted(missing, key=_order), key=lambda right: right.namespace):
        verbs = [
            f"{', '.join(right.verb for right in alike)} {resource}"
            for resource, alike in groupby(there, key=lambda right: right.resource)
        ]
        places.append(f"{' and '.join(verbs)} in {'all namespaces' if namespace is None else f'namespace {namespace}'}")
    return "; ".join(places)


def _order(right: Right) -> tuple[str, str, str]:
    return right.namespace or "", right.resource, right.verb


class Rights:
    """What is known of the operator's rights. Used on one event loop; `missing` and `settled` are read anywhere."""

    def __init__(
        self,
        may: Callable[[Right], Awaitable[bool]],
        namespaces: Sequence[str],
        refusals: Callable[[], int],
    ) -> None:
        self._may = may
        self._needed: Final = needed(namespaces)
        self._refusals = refusals
        self._refused = 0
        self.missing: tuple[Right, ...] = ()
        self.settled = False
        """The question has been put once, whatever came of it."""

    def lacks(self, verb: str, resource: str) -> bool:
        """Whether this right is missing in some namespace."""
        return any((right.verb, right.resource) == (verb, resource) for right in self.missing)

    async def look(self, *, anew: bool = False) -> None:
        """Ask, unless nothing has been refused since all was well. `anew`: ask anyway. Says what has changed."""
        refused = self._refusals()
        if self.settled and not anew and not self.missing and refused == self._refused:
            return
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(right: Right) -> bool:
            async with slots:
                return await self._may(right)

        try:
            allowed = await asyncio.gather(*map(one, self._needed))
        except ApiUnreachableError:
            return  # asked again the next time
        except ApiError as error:
            if not error.is_refusal:
                return
            logger.debug("The API server does not say what the operator may do: %s", error)
            allowed = [True] * len(self._needed)
        self._refused, self.settled = refused, True
        self._say(tuple(right for right, may in zip(self._needed, allowed, strict=True) if not may))

    def _say(self, missing: tuple[Right, ...]) -> None:
        if missing and missing != self.missing:
            logger.error("The operator may not %s; %s.", in_words(missing), REMEDY)
        elif self.missing and not missing:
            logger.info("The operator has all its rights now.")
        self.missing = missing
