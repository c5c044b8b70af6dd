"""Rules as the API server has them: the door for both kinds, in one namespace.

`RULES` says all that the operator's role must allow here, and a test holds the chart to it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import ApiClient

from heterotrain_api.contract import GROUP, VERSION
from heterotrain_api.info_collection import COLLECTION_PLURAL
from heterotrain_api.info_rules import PROCESSING_PLURAL
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.kube import FIELD_MANAGER, Json, Kube, _error, _parse, _Request
from heterotrain_operator.metrics import Metrics

PACKS_MANAGER: Final = "heterotrain-packs"
"""Field manager of rules that come with the operator: what others change stays theirs."""
PLURALS: Final[Mapping[RuleKind, str]] = {
    RuleKind.COLLECT: COLLECTION_PLURAL,
    RuleKind.PROCESS: PROCESSING_PLURAL,
}
WATCH_SECONDS: Final = 60
"""A watch ends after that, and a list follows: what a watch withholds is seen by then."""
MAX_EVENT_BYTES: Final = 4 * 2**20
"""Of one event; an object has at most 1.5 MiB."""

RULES: Final[tuple[Mapping[str, Sequence[str]], ...]] = (
    {
        "apiGroups": [GROUP],
        "resources": [COLLECTION_PLURAL, PROCESSING_PLURAL],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    },
    {
        "apiGroups": [GROUP],
        "resources": [f"{COLLECTION_PLURAL}/status", f"{PROCESSING_PLURAL}/status"],
        "verbs": ["patch"],
    },
)
"""Rights on rules, in the operator's own namespace. To write them is for packs and the REST API."""


class RuleKube(Kube):
    """Rules of one namespace. Raises `ApiError` and `ApiUnreachableError`."""

    def __init__(self, client: ApiClient, metrics: Metrics, timeout_seconds: float, namespace: str) -> None:
        super().__init__(client, metrics, timeout_seconds)
        self.namespace: Final = namespace

    async def list_rules(self, kind: RuleKind) -> tuple[list[Json], str]:
        """All rules of a kind, and the version that a watch goes on from."""
        items: list[Json] = []
        version = ""
        async for page in self._pages(PLURALS[kind], self._path(kind)):
            said = {"apiVersion": page["apiVersion"], "kind": page["kind"].removesuffix("List")}
            items += [{**said, **item} for item in page.get("items") or []]
            version = page["metadata"]["resourceVersion"]
        return items, version

    async def watch_rules(self, kind: RuleKind, version: str) -> AsyncIterator[tuple[str, Json]]:
        """What happens to the rules after `version`: ``ADDED``, ``MODIFIED`` or ``DELETED``, and the rule.

        Ends by itself after `WATCH_SECONDS`; raises `ApiError` if the version is too old (410) among others.
        """
        try:
            async for line in self._lines(kind, version):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(status.get("code", 0), status.get("reason", ""), status.get("message", ""))
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiUnreachableError(f"watch of {PLURALS[kind]}: {type(error).__name__}: {error}") from error

    async def get_rule(self, kind: RuleKind, name: str) -> Json | None:
        """A rule, or `None` if there is none."""
        return await self._get(PLURALS[kind], self._path(kind, name))

    async def create_rule(self, kind: RuleKind, manifest: Mapping[str, Any]) -> Json:
        """POST; 409 if the name is taken."""
        query = (("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"))
        return await self._send(_Request("create", PLURALS[kind], self._path(kind), query, manifest))

    async def replace_rule(self, kind: RuleKind, rule: Mapping[str, Any]) -> Json:
        """PUT of a rule that was read; 409 if it has been changed since."""
        query = (("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"))
        return await self._send(
            _Request("update", PLURALS[kind], self._path(kind, rule["metadata"]["name"]), query, rule)
        )

    async def apply_rule(self, kind: RuleKind, manifest: Mapping[str, Any]) -> Json:
        """Server-side apply of a rule that comes with the operator; 409 if somebody else set a field otherwise."""
        path = self._path(kind, manifest["metadata"]["name"])
        query = (("fieldManager", PACKS_MANAGER), ("fieldValidation", "Strict"))
        request = _Request("patch", PLURALS[kind], path, query, manifest, content_type="application/apply-patch+yaml")
        return await self._send(request)

    async def delete_rule(self, kind: RuleKind, name: str, seen: Mapping[str, Any] | None = None) -> None:
        """Delete a rule; `seen`: only if it is still as it was read, else 409."""
        body: Json = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if seen is not None:
            meta = seen["metadata"]
            body["preconditions"] = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
        await self._send(_Request("delete", PLURALS[kind], self._path(kind, name), body=body))

    async def write_status(self, kind: RuleKind, name: str, uid: str, status: Mapping[str, Any]) -> Json:
        """Merge into the status of just this rule; 404 or 409 if it is gone or another one by now."""
        body = {"metadata": {"uid": uid}, "status": dict(status)}
        path, query = f"{self._path(kind, name)}/status", (("fieldManager", FIELD_MANAGER),)
        resource = f"{PLURALS[kind]}/status"
        request = _Request("patch", resource, path, query, body, content_type="application/merge-patch+json")
        return await self._send(request)

    def _path(self, kind: RuleKind, name: str = "") -> str:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{quote(self.namespace)}/{PLURALS[kind]}"
        return f"{path}/{quote(name)}" if name else path

    async def _lines(self, kind: RuleKind, version: str) -> AsyncIterator[bytes]:
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_SECONDS}
        method, url, headers, body, _ = await self._client.param_serialize(
            "GET",
            self._path(kind),
            query_params=[*query.items(), ("resourceVersion", version)],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        # The server ends the watch; one that does not is half open.
        timeout = aiohttp.ClientTimeout(total=WATCH_SECONDS + self._timeout_seconds, connect=self._timeout_seconds)
        answer = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
        self._metrics.requests.labels("watch", PLURALS[kind], str(answer.status)).inc()
        response = answer.response
        try:
            if answer.status >= 300:
                text = await response.content.read(MAX_EVENT_BYTES)
                raise _error(answer.status, _parse(text), text)
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > MAX_EVENT_BYTES:
                    raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        finally:
            response.close()
