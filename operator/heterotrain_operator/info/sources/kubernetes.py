"""Objects of the Kubernetes API, and the metrics of every node's kubelet through it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote

from heterotrain_api.info_collection import CollectionRuleSpec, KubeletPath, KubernetesSource, ObjectKind
from heterotrain_operator.info.sources.base import Reason, Reply, Row, SourceError, off_the_loop
from heterotrain_operator.info.sources.documents import item_rows, load_json
from heterotrain_operator.info.sources.text_format import Rows, reading_text
from heterotrain_operator.info.turns import Turns

MAX_OBJECTS: Final = 50_000
PAGE: Final = 500
AT_ONCE: Final = 8
"""Kubelets that are asked at the same time."""
_KUBELET_PATHS: Final = {KubeletPath.CADVISOR: "metrics/cadvisor", KubeletPath.RESOURCE: "metrics/resource"}


class ApiReader(Protocol):
    """The API server, as far as collecting needs it."""

    async def read(self, path: str, parameters: Mapping[str, str]) -> bytes:
        """The body of a GET request; raises `SourceError`."""


class NoApi:
    """In place of the API server where there is none."""

    async def read(self, path: str, parameters: Mapping[str, str]) -> bytes:
        """Always raises `SourceError`."""
        raise SourceError(Reason.FORBIDDEN, "there is no cluster here: this source works in the operator only")


class ObjectReader:
    """Reads rules with a kubernetes source."""

    def __init__(self, api: ApiReader, namespaces: Sequence[str]) -> None:
        """`namespaces`: the only ones whose pods and events may be read; empty: all."""
        self._api = api
        self._namespaces = tuple(namespaces)

    async def read(self, spec: CollectionRuleSpec, now: float) -> Reply:
        """One row for each object and metric that has a value."""
        del now
        source = spec.source.kubernetes
        if source is None:
            raise TypeError("not a rule of kubernetes")
        objects = await self._list(source)
        return Reply(item_rows(objects, source.labels, spec.metrics, [object_labels(item) for item in objects]))

    async def _list(self, source: KubernetesSource) -> list[Any]:
        if source.objects is ObjectKind.NODES or not self._namespaces:
            return await self._pages(source, "", [])
        objects: list[Any] = []
        for namespace in self._namespaces:
            await self._pages(source, f"namespaces/{quote(namespace, safe='')}/", objects)
        return objects

    async def _pages(self, source: KubernetesSource, where: str, objects: list[Any]) -> list[Any]:
        """Adds to `objects`, and gives them."""
        parameters = {"limit": str(PAGE), "labelSelector": source.label_selector}
        while True:
            body = await self._api.read(f"/api/v1/{where}{source.objects.value}", parameters)
            page = await off_the_loop(len(body), load_json, body)
            if not isinstance(page, dict) or not isinstance(page.get("items"), list):
                raise SourceError(Reason.MALFORMED, "the answer is not a list of objects")
            objects += page["items"]
            if len(objects) > MAX_OBJECTS:
                raise SourceError(
                    Reason.TOO_LARGE, f"there are more than {MAX_OBJECTS} {source.objects.value}: select some"
                )
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return objects
            parameters["continue"] = str(following)


def object_labels(item: Any) -> Mapping[str, str]:
    """What every object says of itself: namespace, name, uid, node, and for events the object they are about."""
    if not isinstance(item, dict):
        return {}
    metadata, spec = item.get("metadata") or {}, item.get("spec") or {}
    about = item.get("involvedObject") or {}
    labels = {
        "namespace": metadata.get("namespace"),
        "name": metadata.get("name"),
        "uid": metadata.get("uid"),
        "node": spec.get("nodeName"),
        "involved_kind": about.get("kind"),
        "involved_namespace": about.get("namespace"),
        "involved_name": about.get("name"),
    }
    return {name: value for name, value in labels.items() if isinstance(value, str)}


class KubeletReader:
    """Reads rules with a kubelet source."""

    def __init__(self, api: ApiReader, turns: Turns) -> None:
        self._api = api
        self._turns = turns

    async def read(self, spec: CollectionRuleSpec, now: float) -> Reply:
        """The series of all kubelets, with the label ``node``; one that does not answer stops no other."""
        del now
        source = spec.source.kubelet
        if source is None:
            raise TypeError("not a rule of kubelet")
        page = load_json(await self._api.read("/api/v1/nodes", {"limit": str(PAGE * 20)}))
        items = page.get("items", []) if isinstance(page, dict) else []
        names = [name for item in items if (name := object_labels(item).get("name"))]
        gate = asyncio.Semaphore(AT_ONCE)
        answers = await asyncio.gather(*(self._one(name, spec, _KUBELET_PATHS[source.path], gate) for name in names))
        rows: dict[str, list[Row]] = {metric.name: [] for metric in spec.metrics}
        errors: dict[str, SourceError] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, SourceError):
                errors[f"node {name}"] = answer
                continue
            for metric, found in answer.items():
                rows[metric] += found
        if names and len(errors) == len(names):
            raise next(iter(errors.values()))
        return Reply(rows, None, errors)

    async def _one(
        self, node: str, spec: CollectionRuleSpec, path: str, gate: asyncio.Semaphore
    ) -> Mapping[str, Sequence[Row]] | SourceError:
        async with gate:
            try:
                body = await self._api.read(f"/api/v1/nodes/{quote(node, safe='')}/proxy/{path}", {})
                found: Rows = {}
                await self._turns.work(reading_text(body, spec.metrics, found))
            except SourceError as error:
                return error
        return {
            metric: [Row({**row.labels, "node": node}, row.value, row.timestamp) for row in rows]
            for metric, rows in found.items()
        }
