"""An API server that answers reviews from tables, as `heterotrain_operator.rest.cluster_access.Reviews`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from heterotrain_operator.rest.access import AccessUnavailableError


class FakeReviews:
    """Knows tokens, and what their owners may, as (user, verb, resource, namespace); namespace `None`: in all."""

    def __init__(self, tokens: Mapping[str, str], allowed: set[tuple[str, str, str, str | None]]) -> None:
        self.tokens = dict(tokens)
        self.allowed = allowed
        self.asked: list[str] = []
        self.down = False

    async def review_token(self, body: dict[str, Any]) -> dict[str, Any]:
        await self._answer("token")
        name = self.tokens.get(body["spec"]["token"])
        if name is None:
            return {"status": {"authenticated": False, "error": "unknown"}}
        return {"status": {"authenticated": True, "user": {"username": name, "groups": ["all"]}}}

    async def review_access(self, body: dict[str, Any]) -> dict[str, Any]:
        attributes = body["spec"]["resourceAttributes"]
        await self._answer(f"{attributes['verb']} {attributes['resource']} {attributes.get('namespace')}")
        key = (body["spec"]["user"], attributes["verb"], attributes["resource"], attributes.get("namespace"))
        everywhere = (*key[:3], None)
        return {"status": {"allowed": key in self.allowed or everywhere in self.allowed}}

    async def _answer(self, question: str) -> None:
        self.asked.append(question)
        await asyncio.sleep(0)
        if self.down:
            raise AccessUnavailableError("down")
