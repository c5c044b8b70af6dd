"""The one door to the Kubernetes API: raw JSON in and out, a deadline for every request, two kinds of error.

The verbs here are all that the operator's role must allow; `RULES` says them, and a test holds the chart to it.
Nothing is retried here: the supervisor decides that, for whole passes (`heterotrain_operator.errors`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from heterotrain_api.contract import GROUP, VERSION
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.metrics import Metrics

Json = dict[str, Any]

FIELD_MANAGER: Final = "heterotrain-operator"
PAGE: Final = 500
_METADATA_ONLY: Final = "application/json;as={};g=meta.k8s.io;v=v1,application/json"

RULES: Final[tuple[Mapping[str, Sequence[str]], ...]] = (
    {"apiGroups": [GROUP], "resources": ["heterotrainjobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [GROUP], "resources": ["heterotrainjobs/status"], "verbs": ["update"]},
    # Only where the API server guards owner references that block a deletion; it writes no finalizer.
    {"apiGroups": [GROUP], "resources": ["heterotrainjobs/finalizers"], "verbs": ["update"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "create", "patch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create"]},
    # Read of one pod at a time: why its node does not start it, where the pod's status has no words for it (volumes).
    {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "create", "patch"]},
)
"""The rights of the operator, as the rules of a Role."""


@dataclass(frozen=True, slots=True)
class _Request:
    """One request as a value."""

    verb: str
    resource: str
    """Plural, as in `RULES`, for the metric."""
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: object = None
    content_type: str = "application/json"
    accept: str = "application/json"


_METHODS: Final = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}


async def load_configuration() -> Configuration:
    """The service account's credentials inside a cluster (its token is read again each minute), else the kubeconfig."""
    configuration = Configuration()
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        config.load_incluster_config(client_configuration=configuration)
    else:
        await config.load_kube_config(client_configuration=configuration)
    return configuration


@asynccontextmanager
async def connect(metrics: Metrics, timeout_seconds: float) -> AsyncIterator[Kube]:
    """A door that is closed on leaving. Connects at the first request."""
    client = ApiClient(await load_configuration())
    client.user_agent = FIELD_MANAGER
    try:
        yield Kube(client, metrics, timeout_seconds)
    finally:
        await client.close()


class Kube:
    """Raises `ApiError` for the API server's refusals and `ApiUnreachableError` where it did not answer (in time)."""

    def __init__(self, client: ApiClient, metrics: Metrics, timeout_seconds: float) -> None:
        self._client = client
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds

    # Jobs

    async def list_job_metadata(self, namespace: str | None) -> list[Json]:
        """Metadata of all jobs of a namespace, or of all namespaces."""
        path = _jobs(namespace)
        return await self._list("heterotrainjobs", path, (), _METADATA_ONLY.format("PartialObjectMetadataList"))

    async def get_job(self, namespace: str, name: str) -> Json | None:
        """The job, or `None` if there is none."""
        return await self._get("heterotrainjobs", f"{_jobs(namespace)}/{quote(name)}")

    async def replace_status(self, job: Mapping[str, Any], status: Mapping[str, Any]) -> Json:
        """Write the status; 409 if the job is not the one that was read any more (its resourceVersion)."""
        meta = job["metadata"]
        path = f"{_jobs(meta['namespace'])}/{quote(meta['name'])}/status"
        query = (("fieldManager", FIELD_MANAGER),)
        return await self._send(
            _Request("update", "heterotrainjobs/status", path, query, {**job, "status": dict(status)})
        )

    # Pods

    async def list_pods(self, namespace: str, selector: str) -> list[Json]:
        """All pods that the label selector matches, as the API server has them now."""
        return await self._list("pods", f"{_core(namespace)}/pods", (("labelSelector", selector),), "application/json")

    async def get_pod_metadata(self, namespace: str, name: str) -> Json | None:
        """The pod without spec and status, or `None` if there is none."""
        return await self._get("pods", f"{_core(namespace)}/pods/{quote(name)}", metadata_only=True)

    async def create_pod(self, namespace: str, manifest: Mapping[str, Any]) -> Json:
        """POST; 409 if the name is taken, whoever has it."""
        return await self._create("pods", namespace, manifest)

    async def delete_pod(self, namespace: str, name: str, uid: str) -> None:
        """Delete just this pod; gone or another one of that name (409) is as good."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        try:
            await self._send(_Request("delete", "pods", f"{_core(namespace)}/pods/{quote(name)}", body=body))
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    # Service, Secret

    async def get_service(self, namespace: str, name: str) -> Json | None:
        """The Service, or `None` if there is none."""
        return await self._get("services", f"{_core(namespace)}/services/{quote(name)}")

    async def create_service(self, namespace: str, manifest: Mapping[str, Any]) -> Json:
        """POST; 409 if the name is taken."""
        return await self._create("services", namespace, manifest)

    async def apply_service(self, namespace: str, manifest: Mapping[str, Any], uid: str) -> Json:
        """Server-side apply on just this Service; 409 if it is another one by now."""
        name = manifest["metadata"]["name"]
        body = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
        query = (("fieldManager", FIELD_MANAGER), ("force", "true"))
        return await self._send(
            _Request(
                "patch",
                "services",
                f"{_core(namespace)}/services/{quote(name)}",
                query,
                body,
                content_type="application/apply-patch+yaml",  # JSON is YAML
            )
        )

    async def get_secret_metadata(self, namespace: str, name: str) -> Json | None:
        """The Secret without its content, or `None` if there is none."""
        return await self._get("secrets", f"{_core(namespace)}/secrets/{quote(name)}", metadata_only=True)

    async def get_secret(self, namespace: str, name: str) -> Json | None:
        """The Secret with its content, or `None` if there is none."""
        return await self._get("secrets", f"{_core(namespace)}/secrets/{quote(name)}")

    async def create_secret(self, namespace: str, manifest: Mapping[str, Any]) -> Json:
        """POST; 409 if the name is taken."""
        return await self._create("secrets", namespace, manifest)

    # Events

    async def list_pod_events(self, namespace: str, pod_uid: str) -> list[Json]:
        """All events on the pod that the API server still has."""
        query = (("fieldSelector", f"involvedObject.uid={pod_uid}"),)
        return await self._list("events", f"{_core(namespace)}/events", query, "application/json")

    async def create_event(self, namespace: str, manifest: Mapping[str, Any]) -> Json:
        """POST; 409 if it was sent before."""
        return await self._create("events", namespace, manifest)

    async def patch_event(self, namespace: str, name: str, patch: Mapping[str, Any]) -> Json:
        """Merge into an event; 404 if it has expired."""
        path = f"{_core(namespace)}/events/{quote(name)}"
        return await self._send(
            _Request("patch", "events", path, body=patch, content_type="application/merge-patch+json")
        )

    # Rights

    async def may(self, verb: str, group: str, resource: str, namespace: str | None) -> bool:
        """Whether the operator has a right; `resource` with its subresource. Anybody may ask this for themselves."""
        plural, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
        attributes |= {} if namespace is None else {"namespace": namespace}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = await self._send(_Request("create", "selfsubjectaccessreviews", path, body=body))
        return (answer.get("status") or {}).get("allowed") is True

    # The rest is HTTP.

    async def _create(self, resource: str, namespace: str, manifest: Mapping[str, Any]) -> Json:
        query = (("fieldManager", FIELD_MANAGER),)
        return await self._send(_Request("create", resource, f"{_core(namespace)}/{resource}", query, manifest))

    async def _get(self, resource: str, path: str, *, metadata_only: bool = False) -> Json | None:
        accept = _METADATA_ONLY.format("PartialObjectMetadata") if metadata_only else "application/json"
        try:
            return await self._send(_Request("get", resource, path, accept=accept))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _list(self, resource: str, path: str, query: tuple[tuple[str, str], ...], accept: str) -> list[Json]:
        pages = self._pages(resource, path, query, accept)
        return [item async for page in pages for item in page.get("items") or []]

    async def _pages(
        self, resource: str, path: str, query: tuple[tuple[str, str], ...] = (), accept: str = "application/json"
    ) -> AsyncIterator[Json]:
        """All pages of one list: the API server answers as of the first."""
        page: tuple[tuple[str, str], ...] = (("limit", str(PAGE)),)
        while True:
            answer = await self._send(_Request("list", resource, path, query + page, accept=accept))
            yield answer
            token = answer["metadata"].get("continue")
            if not token:
                return
            page = (("limit", str(PAGE)), ("continue", token))

    async def _send(self, request: _Request) -> Json:
        code, text = await self._receive(request)
        answer = _parse(text)
        if code >= 300 or answer is None:
            raise _error(code, answer, text)
        return answer

    async def _receive(self, request: _Request) -> tuple[int, bytes]:
        code = 0
        try:
            async with asyncio.timeout(self._timeout_seconds):
                code, text = await self._exchange(request)
                return code, text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachableError(f"{request.verb} {request.path}: {type(error).__name__}: {error}") from error
        finally:
            self._metrics.requests.labels(request.verb, request.resource, str(code)).inc()

    async def _exchange(self, request: _Request) -> tuple[int, bytes]:
        headers = {"Accept": request.accept, "Content-Type": request.content_type}
        method, url, header_params, body, _ = await self._client.param_serialize(
            _METHODS[request.verb],
            request.path,
            query_params=list(request.query),
            header_params=headers,
            body=request.body,
            auth_settings=["BearerToken"],
        )
        response = await self._client.call_api(
            method, url, header_params, body, _request_timeout=aiohttp.ClientTimeout(total=self._timeout_seconds)
        )
        return response.status, await response.read()


def _jobs(namespace: str | None) -> str:
    where = "" if namespace is None else f"/namespaces/{quote(namespace)}"
    return f"/apis/{GROUP}/{VERSION}{where}/heterotrainjobs"


def _core(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}"


def _parse(text: bytes) -> Json | None:
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _error(code: int, answer: Json | None, text: bytes) -> ApiError:
    if answer is None or answer.get("kind") != "Status":
        # A proxy or load balancer answered; a success that is no JSON is a broken one.
        status = code if code >= 300 else 502
        words = "".join(c if c.isprintable() else " " for c in text[:200].decode(errors="replace")).strip()
        return ApiError(status, "NotKubernetes", words or "no text")
    after = (answer.get("details") or {}).get("retryAfterSeconds")
    return ApiError(code, answer.get("reason") or "Unknown", answer.get("message") or "", after)
