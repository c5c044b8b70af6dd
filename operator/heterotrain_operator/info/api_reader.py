"""Reads objects and kubelets' metrics through the API server, with the operator's own rights.

Apart from `heterotrain_operator.kube`, whose rights every installation has: what collection rules read needs rights of
its own, which an installation may leave out; then only those rules fail.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import Final

import aiohttp
from kubernetes.aio.client import ApiClient

from heterotrain_operator.info.sources.base import Reason, SourceError
from heterotrain_operator.info.sources.web import MAX_SECONDS

MAX_BYTES: Final = 64 * 2**20
"""Of one answer; cAdvisor's of a full node has some megabytes."""

NODE_RULES: Final[tuple[Mapping[str, Sequence[str]], ...]] = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
)
"""Rights that the source kubernetes needs for nodes; only in a ClusterRole. Pods and events of the namespaces that are
served may be listed anyway (`heterotrain_operator.kube.RULES`)."""
KUBELET_RULES: Final[tuple[Mapping[str, Sequence[str]], ...]] = (
    {"apiGroups": [""], "resources": ["nodes/proxy"], "verbs": ["get"]},
)
"""Rights that the source kubelet needs beside `NODE_RULES`; only in a ClusterRole. Whoever has them can do on every
node what its kubelet can, so they are not given unless asked for."""


class KubeReader:
    """The API server as `heterotrain_operator.info.sources.kubernetes` needs it."""

    def __init__(self, client: ApiClient) -> None:
        """`client` renews its own credentials (`heterotrain_operator.kube.load_configuration`)."""
        self._client = client

    async def read(self, path: str, parameters: Mapping[str, str]) -> bytes:
        """The body of a GET request; raises `SourceError`. The caller has the deadline."""
        try:
            return await self._get(path, parameters)
        except (ssl.SSLError, aiohttp.ClientSSLError) as error:
            raise SourceError(Reason.TLS, f"the API server: {error}") from error
        except TimeoutError as error:
            raise SourceError(Reason.TIMEOUT, "the API server does not answer") from error
        except (aiohttp.ClientError, OSError) as error:
            raise SourceError(Reason.CONNECT, f"the API server: {type(error).__name__}: {error}") from error

    async def _get(self, path: str, parameters: Mapping[str, str]) -> bytes:
        method, url, headers, _, _ = await self._client.param_serialize(
            "GET",
            path,
            query_params=[(name, value) for name, value in parameters.items() if value],
            header_params={"Accept": "application/json, text/plain;q=0.9"},
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(
            method, url, headers, None, _request_timeout=aiohttp.ClientTimeout(total=MAX_SECONDS)
        )
        response = answer.response
        try:
            chunks, size = [], 0
            async for chunk in response.content.iter_chunked(65536):
                size += len(chunk)
                if size > MAX_BYTES:
                    raise SourceError(Reason.TOO_LARGE, f"{path} has more than {MAX_BYTES} bytes")
                chunks.append(chunk)
        finally:
            response.close()
        if answer.status in (401, 403):
            raise SourceError(
                Reason.DENIED, f"status {answer.status} for {path}: the operator's role does not allow it"
            )
        if answer.status != 200:
            raise SourceError(Reason.HTTP_STATUS, f"status {answer.status} for {path}")
        return b"".join(chunks)
