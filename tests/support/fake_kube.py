"""The door to Kubernetes with an API server of dicts behind it, for passes without I/O. It answers as the real one."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from typing import Any

from heterotrain_operator.errors import ApiError
from heterotrain_operator.kube import Kube

Json = dict[str, Any]


class FakeKube(Kube):
    """`objects` by (resource, name). `before(verb, resource, name)` may raise, for faults on schedule."""

    def __init__(self, *jobs: Json) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.calls: list[str] = []
        self.before: Callable[[str, str, str], None] = lambda _verb, _resource, _name: None
        self.after: Callable[[str, str, str], None] = lambda _verb, _resource, _name: None
        self.creating = self.most_creating = 0
        self._version = 100
        for job in jobs:
            self.objects["heterotrainjobs", job["metadata"]["name"]] = job

    def names(self, resource: str) -> list[str]:
        return sorted(name for kind, name in self.objects if kind == resource)

    def put(self, resource: str, document: Mapping[str, Any]) -> Json:
        """As somebody else would: no call is noted."""
        self._version += 1
        stored = copy.deepcopy(dict(document))
        meta = stored["metadata"]
        meta.setdefault("uid", f"uid-{self._version}")
        meta.setdefault("creationTimestamp", "2026-01-01T12:00:00Z")
        meta["resourceVersion"] = str(self._version)
        self.objects[resource, meta["name"]] = stored
        return stored

    async def list_job_metadata(self, namespace: str | None) -> list[Json]:
        return [{"metadata": document["metadata"]} for (kind, _), document in self.objects.items() if "jobs" in kind]

    async def get_job(self, namespace: str, name: str) -> Json | None:
        return self._read("heterotrainjobs", name)

    async def replace_status(self, job: Mapping[str, Any], status: Mapping[str, Any]) -> Json:
        name = job["metadata"]["name"]
        self._note("update", "heterotrainjobs/status", name)
        stored = self.objects.get(("heterotrainjobs", name))
        if stored is None:
            raise ApiError(404, "NotFound", f"{name} not found")
        if stored["metadata"]["resourceVersion"] != job["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        written = self.put("heterotrainjobs", {**stored, "status": dict(status)})
        self.after("update", "heterotrainjobs/status", name)
        return written

    async def list_pods(self, namespace: str, selector: str) -> list[Json]:
        key, _, value = selector.partition("=")
        pods = [document for (kind, _), document in sorted(self.objects.items()) if kind == "pods"]
        return copy.deepcopy([pod for pod in pods if pod["metadata"].get("labels", {}).get(key) == value])

    async def get_pod_metadata(self, namespace: str, name: str) -> Json | None:
        return self._read("pods", name)

    async def create_pod(self, namespace: str, manifest: Mapping[str, Any]) -> Json:
        self.creating += 1
        self.most_creating = max(self.most_creating, self.creating)
        await asyncio.sleep(0)
        try:
            return self._make("pods", manifest)
        finally:
            self.creating -= 1

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        self._note("delete", "pods", name)
        if self.objects.get(("pods", name), {}).get("metadata", {}).get("uid") == uid:
            del self.objects["pods", name]

    async def get_service(self, namespace: str, name: str) -> Json | None:
        return self._read("services", name)

    async def create_service(self, namespace: str, manifest: Mapping[str, Any]) -> Json:
        return self._make("services", manifest)

    async def apply_service(self, namespace: str, manifest: Mapping[str, Any], uid: str) -> Json:
        name = manifest["metadata"]["name"]
        self._note("patch", "services", name)
        if self.objects["services", name]["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "uid mismatch")
        return self.put("services", {**manifest, "metadata": {**manifest["metadata"], "uid": uid}})

    async def get_secret_metadata(self, namespace: str, name: str) -> Json | None:
        return self._read("secrets", name)

    async def get_secret(self, namespace: str, name: str) -> Json | None:
        return self._read("secrets", name)

    async def create_secret(self, namespace: str, manifest: Mapping[str, Any]) -> Json:
        return self._make("secrets", manifest)

    async def list_pod_events(self, namespace: str, pod_uid: str) -> list[Json]:
        self.before("list", "events", pod_uid)
        events = [document for (kind, _), document in self.objects.items() if kind == "events"]
        return [event for event in events if event["involvedObject"]["uid"] == pod_uid]

    async def create_event(self, namespace: str, manifest: Mapping[str, Any]) -> Json:
        return self._make("events", manifest)

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Json:
        self._note("patch", "events", name)
        if ("events", name) not in self.objects:
            raise ApiError(404, "NotFound", f"{name} not found")
        return self.put("events", {**self.objects["events", name], **patch})

    def _read(self, resource: str, name: str) -> Json | None:
        self.before("get", resource, name)
        return copy.deepcopy(self.objects.get((resource, name)))

    def _make(self, resource: str, manifest: Mapping[str, Any]) -> Json:
        name = manifest["metadata"]["name"]
        self._note("create", resource, name)
        if (resource, name) in self.objects:
            raise ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists')
        stored = self.put(resource, manifest)
        self.after("create", resource, name)
        return stored

    def _note(self, verb: str, resource: str, name: str) -> None:
        self.calls.append(f"{verb} {resource}/{name}")
        self.before(verb, resource, name)
