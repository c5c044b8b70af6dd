"""The user's door to the Kubernetes API: that of the operator, with the few verbs that only commands need.

They are here and not in `heterotrain_operator.kube`, because they are rights of the user, not of the operator.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.incluster_config import SERVICE_TOKEN_FILENAME

from heterotrain_operator.errors import ApiError
from heterotrain_operator.kube import Json, Kube, _core, _error, _jobs, _parse, _Request
from heterotrain_operator.metrics import Metrics
from heterotrain_operator.text_file import TextError, read_text
from heterotrain_operator.yaml_documents import YamlError, load_documents

FIELD_MANAGER: Final = "heterotrain-cli"
CALL_SECONDS: Final = 20.0
"""Deadline of one request."""
DEFAULT_NAMESPACE: Final = "default"
ACCOUNT: Final = Path(SERVICE_TOKEN_FILENAME).parent
"""Where a pod finds the token, the authority and the namespace of its service account."""


class UserKube(Kube):
    """`Kube` for commands: lists whole jobs, writes a job's annotations, reads logs."""

    async def list_jobs(self, namespace: str | None) -> list[Json]:
        """Jobs with their status, of a namespace or of all."""
        return await self._list("heterotrainjobs", _jobs(namespace), (), "application/json")

    async def annotate_job(self, namespace: str, name: str, uid: str, annotations: dict[str, str]) -> Json:
        """Merge annotations into just this job; 404 if it is gone, 409 if another one has its name by now."""
        body: dict[str, Any] = {"metadata": {"uid": uid, "annotations": annotations}}
        query = (("fieldManager", FIELD_MANAGER),)
        path = f"{_jobs(namespace)}/{quote(name)}"
        return await self._send(
            _Request("patch", "heterotrainjobs", path, query, body, content_type="application/merge-patch+json")
        )

    async def change_workers(self, metadata: Mapping[str, Any], workers: list[dict[str, Any]]) -> Json:
        """Replace ``spec.workers`` of a job as it was read; 409 if it has changed since."""
        known = {key: metadata[key] for key in ("uid", "resourceVersion")}
        body: dict[str, Any] = {"metadata": known, "spec": {"workers": workers}}
        path = f"{_jobs(metadata['namespace'])}/{quote(metadata['name'])}"
        query = (("fieldManager", FIELD_MANAGER),)
        return await self._send(
            _Request("patch", "heterotrainjobs", path, query, body, content_type="application/merge-patch+json")
        )

    async def read_log(self, namespace: str, pod: str, container: str, since: str = "") -> str:
        """Lines that a container has written, each after the time it was written at.

        `since`: only lines from that second on (RFC 3339). Raises `ApiError`, 400 while the container has not started.
        """
        query: tuple[tuple[str, str], ...] = (("container", container), ("timestamps", "true"))
        query += (("sinceTime", since),) if since else ()
        path = f"{_core(namespace)}/pods/{quote(pod)}/log"
        code, text = await self._receive(_Request("get", "pods/log", path, query, accept="*/*"))
        if code >= 300:
            raise _error(code, _parse(text), text)
        return text.decode(errors="replace")


@asynccontextmanager
async def connect_user(context: str | None, timeout_seconds: float = CALL_SECONDS) -> AsyncIterator[UserKube]:
    """A door that is closed on leaving. Raises `config.ConfigException` if no credentials are found."""
    configuration = Configuration()
    kubeconfig = _kubeconfig(context)
    if kubeconfig is None:
        config.load_incluster_config(client_configuration=configuration)
    else:
        _check_readable(kubeconfig)
        await config.load_kube_config(config_file=kubeconfig, context=context, client_configuration=configuration)
    client = ApiClient(configuration)
    client.user_agent = FIELD_MANAGER
    try:
        yield UserKube(client, Metrics(), timeout_seconds)
    finally:
        await client.close()


def _check_readable(kubeconfig: str) -> None:
    """Raise `config.ConfigException` for a file that the Kubernetes client would break on."""
    for place in filter(None, kubeconfig.split(os.pathsep)):
        try:
            documents = load_documents(read_text(Path(place)))
        except FileNotFoundError:
            continue  # as kubectl does
        except (TextError, YamlError) as error:
            raise config.ConfigException(f"{place} is no kubeconfig: {error}") from None
        if len(documents) != 1 or not isinstance(documents[0], dict):
            raise config.ConfigException(f"{place} is no kubeconfig: it must be one object")


def own_namespace(context: str | None) -> str:
    """The namespace of the context, or of the service account inside a cluster; ``default`` if none is set."""
    kubeconfig = _kubeconfig(context)
    if kubeconfig is None:
        file = ACCOUNT / "namespace"
        return file.read_text().strip() if file.exists() else DEFAULT_NAMESPACE
    contexts, current = config.list_kube_config_contexts(kubeconfig)
    wanted = current if context is None else next((c for c in contexts if c["name"] == context), None)
    if wanted is None:
        names = ", ".join(c["name"] for c in contexts)
        raise config.ConfigException(f"no context is named {context}; there are: {names}")
    return str(wanted["context"].get("namespace") or DEFAULT_NAMESPACE)


def _kubeconfig(context: str | None) -> str | None:
    there = {place for place in _places(os.environ) if Path(place).exists()}
    return choose_kubeconfig(context, os.environ, there, account=(ACCOUNT / "token").exists())


def choose_kubeconfig(
    context: str | None, environment: Mapping[str, str], there: Collection[str], *, account: bool
) -> str | None:
    """The kubeconfig to use, as kubectl does; `None`: the credentials of the pod's service account. Pure.

    A kubeconfig that was named, by KUBECONFIG or with a context of it, must exist. Else the default one is taken if it
    exists, then the service account. `there`: files that exist. `account`: whether a token is mounted. Raises
    `config.ConfigException` with what was looked for.
    """
    places = _places(environment)
    if any(place in there for place in places):
        return os.pathsep.join(places)
    looked = f"the kubeconfig {os.pathsep.join(places)} does not exist"
    if environment.get("KUBECONFIG") or context is not None:
        raise config.ConfigException(looked)
    if "KUBERNETES_SERVICE_HOST" not in environment:
        raise config.ConfigException(looked)
    if not account:
        raise config.ConfigException(f"{looked}, and no service account's token is mounted at {ACCOUNT / 'token'}")
    return None


def _places(environment: Mapping[str, str]) -> list[str]:
    named = [place for place in environment.get("KUBECONFIG", "").split(os.pathsep) if place]
    return named or [str(Path(environment.get("HOME", "~"), ".kube", "config").expanduser())]


def api_words(error: ApiError) -> str:
    """What a refusal of the API server means for the user. Pure."""
    match error.status:
        case 401:
            return f"the cluster does not accept your credentials; log in again: {error.message}"
        case 403:
            return f"a right is missing, ask whoever runs the cluster for it: {error.message}"
        case 404 if error.message.startswith("the server could not find"):
            return "the cluster does not know HeteroTrainJobs; install the chart first (docs/installation.md)"
        case 409:
            return f"the job was replaced by another one of its name meanwhile: {error.message}"
        case _:
            return f"the API server refused: {error}"
