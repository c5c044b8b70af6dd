"""The door to rules with an API server of dicts behind it, for what needs no I/O. It answers as the real one."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from heterotrain_api.contract import API_VERSION
from heterotrain_operator.errors import ApiError
from heterotrain_operator.info.cluster.door import RuleKube
from heterotrain_operator.info.rule_state import KINDS, RuleKind

Json = dict[str, Any]


def make_document(kind: RuleKind, name: str, spec: Mapping[str, Any], **metadata: Any) -> Json:
    """A rule as the API server has it."""
    meta = {"name": name, "uid": f"uid-{name}", "generation": 1, "resourceVersion": "1", **metadata}
    return {"apiVersion": API_VERSION, "kind": KINDS[kind], "metadata": meta, "spec": dict(spec)}


class FakeRuleKube(RuleKube):
    """`rules` by kind and name. `before(verb, name)` may raise or change things, for faults on schedule."""

    def __init__(self) -> None:
        self.rules: dict[tuple[RuleKind, str], Json] = {}
        self.calls: list[str] = []
        self.watched: list[tuple[str, Json]] = []
        """What the next watch brings before it ends."""
        self.before: Callable[[str, str], None] = lambda _verb, _name: None
        self._version = 100

    def put(self, kind: RuleKind, document: Mapping[str, Any]) -> Json:
        """As somebody else would: no call is noted."""
        self._version += 1
        name = document["metadata"]["name"]
        stored, known = copy.deepcopy(dict(document)), self.rules.get((kind, name))
        generation = 1 if known is None else known["metadata"]["generation"] + (known["spec"] != stored["spec"])
        uid = f"uid-{self._version}" if known is None else known["metadata"]["uid"]
        versions = {"uid": uid, "generation": generation, "resourceVersion": str(self._version)}
        stored["metadata"] = {**stored["metadata"], **versions}
        self.rules[kind, name] = stored
        return copy.deepcopy(stored)

    async def list_rules(self, kind: RuleKind) -> tuple[list[Json], str]:
        self._note("list", kind)
        return [copy.deepcopy(rule) for (found, _), rule in self.rules.items() if found is kind], str(self._version)

    async def watch_rules(self, kind: RuleKind, version: str) -> AsyncIterator[tuple[str, Json]]:
        self._note("watch", kind)
        events, self.watched = self.watched, []
        for event in events:
            yield event

    async def get_rule(self, kind: RuleKind, name: str) -> Json | None:
        self.before("get", name)
        return copy.deepcopy(self.rules.get((kind, name)))

    async def create_rule(self, kind: RuleKind, manifest: Mapping[str, Any]) -> Json:
        name = manifest["metadata"]["name"]
        self._note("create", name)
        if (kind, name) in self.rules:
            raise ApiError(409, "AlreadyExists", f'"{name}" already exists')
        return self.put(kind, manifest)

    async def replace_rule(self, kind: RuleKind, rule: Mapping[str, Any]) -> Json:
        name = rule["metadata"]["name"]
        self._note("update", name)
        self._must_be(kind, rule)
        return self.put(kind, rule)

    async def apply_rule(self, kind: RuleKind, manifest: Mapping[str, Any]) -> Json:
        self._note("apply", manifest["metadata"]["name"])
        return self.put(kind, manifest)

    async def delete_rule(self, kind: RuleKind, name: str, seen: Mapping[str, Any] | None = None) -> None:
        self._note("delete", name)
        if (kind, name) not in self.rules:
            raise ApiError(404, "NotFound", f'"{name}" not found')
        if seen is not None:
            self._must_be(kind, seen)
        del self.rules[kind, name]

    async def write_status(self, kind: RuleKind, name: str, uid: str, status: Mapping[str, Any]) -> Json:
        self._note("status", name)
        stored = self.rules.get((kind, name))
        if stored is None:
            raise ApiError(404, "NotFound", f'"{name}" not found')
        if stored["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "uid mismatch")
        given = {key: value for key, value in status.items() if value is not None}
        return self.put(kind, {**stored, "status": given})

    def _must_be(self, kind: RuleKind, seen: Mapping[str, Any]) -> None:
        stored = self.rules[kind, seen["metadata"]["name"]]
        if stored["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")

    def _note(self, verb: str, name: str) -> None:
        self.calls.append(f"{verb} {name}")
        self.before(verb, name)
