"""GET requests that cannot hurt: no redirects, no proxies, a cap on the body, credentials read anew, errors by kind.

Connections are kept while they work and thrown away with the first failure, so that a server that moved, or that has
new certificates, is reached again at the next run. The caller sets the deadline (`asyncio.timeout`).
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

import httpx

from heterotrain_core.info.selectors import label_matches
from heterotrain_operator.info.sources.base import Reason, SourceError

MAX_TOKEN_BYTES: Final = 16_384
MAX_SECONDS: Final = 300.0
"""For any step of a request, should a caller have no deadline."""
_BROKEN: Final = (Reason.CONNECT, Reason.TLS, Reason.TIMEOUT, Reason.TOO_LARGE)
"""After these a connection is not used again."""
_METADATA: Final = (
    ipaddress.ip_network("169.254.0.0/16"),
    ipaddress.ip_network("fe80::/10"),
    ipaddress.ip_network("fd00:ec2::/32"),
)
_METADATA_NAMES: Final = frozenset(["metadata", "metadata.google.internal", "instance-data"])
_FILES: Final = ("token", "ca.crt", "tls.crt", "tls.key")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What requests may do; the admin's, not the rule's."""

    max_bytes: int = 16 * 2**20
    """Of an answer."""
    allowed_hosts: Sequence[str] = ("*",)
    """Hosts that rules may name; ``*`` for anything. Metadata services of clouds are never allowed."""
    credentials_folder: Path = field(default=Path("/etc/heterotrain/credentials"))
    """Has a folder for each name that a rule may give as its credentials."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A body with status 200."""

    body: bytes
    server_time: float | None
    """The Date header; seconds since the epoch."""
    content_type: str


@lru_cache(maxsize=4096)
def parsed(url: str) -> httpx.URL:
    """A URL of a rule; raises `httpx.InvalidURL`."""
    return httpx.URL(url)


def refused_host(url: str, settings: WebSettings) -> str | None:
    """Why a URL's host may not be asked; `None` if it may. Pure."""
    host = parsed(url).host.rstrip(".").lower()
    if host in _METADATA_NAMES or _is_metadata(host):
        return f"{host} is a metadata service or link-local, which rules must not ask"
    if not any(label_matches(allowed, host) for allowed in settings.allowed_hosts):
        return f"{host} is not among the hosts that the settings allow"
    return None


def _is_metadata(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in _METADATA if network.version == address.version)


@dataclass(slots=True)
class _Pool:
    key: tuple[str, str | None]
    client: httpx.AsyncClient
    stamp: object
    """What its certificates were made from."""
    users: int = 0
    retired: bool = False


class Web:
    """All connections of the collector. Used on one event loop."""

    def __init__(self, settings: WebSettings, transport: Callable[[], httpx.AsyncBaseTransport] | None = None) -> None:
        """`transport` takes the network's place in tests."""
        self._settings = settings
        self._transport = transport
        self._pools: dict[tuple[str, str | None], _Pool] = {}

    async def get(
        self,
        url: str,
        *,
        parameters: Mapping[str, str] | None = None,
        credentials: str | None = None,
        accept: str = "*/*",
    ) -> Answer:
        """The answer to one request; raises `SourceError` for anything but a whole body with status 200."""
        refusal = refused_host(url, self._settings)
        if refusal is not None:
            raise SourceError(Reason.FORBIDDEN, refusal)
        target = parsed(url)
        headers = {"Accept": accept, "Accept-Encoding": "identity", **self._authorization(credentials)}
        async with self._connections(target, credentials) as client:
            try:
                async with client.stream("GET", target, params=parameters, headers=headers) as response:
                    return await self._checked(response)
            except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError) as error:
                raise _source_error(error, target) from error

    async def close(self) -> None:
        """Close all connections."""
        for pool in tuple(self._pools.values()):
            await self._retire(pool)

    @asynccontextmanager
    async def _connections(self, target: httpx.URL, credentials: str | None) -> AsyncIterator[httpx.AsyncClient]:
        """The connections to a target; after a failure below HTTP the next request has new ones."""
        pool = await self._pool((f"{target.scheme}://{target.netloc.decode()}", credentials))
        pool.users += 1
        try:
            yield pool.client
        except SourceError as error:
            if error.reason in _BROKEN:
                await self._retire(pool)
            raise
        except BaseException:  # the deadline, mostly: the rest of the answer may still come
            await self._retire(pool)
            raise
        finally:
            pool.users -= 1
            if pool.retired and not pool.users:
                await pool.client.aclose()

    async def _retire(self, pool: _Pool) -> None:
        """Give it to no further request; those on their way keep it."""
        pool.retired = True
        if self._pools.get(pool.key) is pool:
            del self._pools[pool.key]
        if not pool.users:
            await pool.client.aclose()

    async def _pool(self, key: tuple[str, str | None]) -> _Pool:
        stamp = self._stamp(key[1])
        pool = self._pools.get(key)
        if pool is not None and pool.stamp != stamp:
            await self._retire(pool)
            pool = None
        if pool is None:
            client = httpx.AsyncClient(
                transport=self._transport() if self._transport else None,
                verify=self._context(key[1]) if key[0].startswith("https:") else True,
                follow_redirects=False,
                trust_env=False,
                timeout=httpx.Timeout(MAX_SECONDS),
                limits=httpx.Limits(max_connections=8, max_keepalive_connections=2),
            )
            pool = self._pools[key] = _Pool(key, client, stamp)
        return pool

    def _stamp(self, credentials: str | None) -> object:
        """Changes when a certificate's file does."""
        if credentials is None:
            return None
        folder = self._settings.credentials_folder / credentials
        return tuple(_modified(folder / name) for name in _FILES[1:])

    def _context(self, credentials: str | None) -> ssl.SSLContext:
        folder = self._settings.credentials_folder / (credentials or "")
        authority = folder / "ca.crt"
        try:
            own = credentials is not None
            context = ssl.create_default_context(cafile=authority if own and authority.exists() else None)
            if own and (folder / "tls.crt").exists():
                context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        except (OSError, ssl.SSLError) as error:
            raise SourceError(Reason.CREDENTIALS, f"certificates of {credentials}: {error}") from error
        return context

    def _authorization(self, credentials: str | None) -> dict[str, str]:
        if credentials is None:
            return {}
        folder = self._settings.credentials_folder / credentials
        if not folder.is_dir():
            raise SourceError(Reason.CREDENTIALS, f"there are no credentials {credentials!r}: the folder is missing")
        try:
            token = (folder / "token").read_bytes()[:MAX_TOKEN_BYTES].decode("ascii").strip()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(Reason.CREDENTIALS, f"token of {credentials}: {error}") from error
        return {"Authorization": f"Bearer {token}"}

    async def _checked(self, response: httpx.Response) -> Answer:
        status = response.status_code
        if 300 <= status < 400:
            raise SourceError(Reason.REDIRECT, f"status {status}: redirects are not followed; name the final address")
        body = await self._body(response)
        if status in (401, 403):
            raise SourceError(Reason.DENIED, f"status {status}: wrong credentials or rights")
        if status != 200:
            head = body[:120].decode(errors="replace").strip()
            raise StatusError(status, f"status {status}{f': {head}' if head else ''}", body)
        content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type == "text/html":
            raise SourceError(Reason.NOT_METRICS, "the answer is an HTML page")
        return Answer(body, _server_time(response.headers.get("date")), content_type)

    async def _body(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise SourceError(Reason.NOT_METRICS, "the answer is compressed although that was not asked for")
        chunks, size = [], 0
        async for chunk in response.aiter_raw():
            size += len(chunk)
            if size > self._settings.max_bytes:
                raise SourceError(Reason.TOO_LARGE, f"the answer has more than {self._settings.max_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)


class StatusError(SourceError):
    """An answer with a status that means failure; its body may say more."""

    def __init__(self, status: int, message: str, body: bytes) -> None:
        super().__init__(Reason.HTTP_STATUS, message)
        self.status = status
        self.body = body


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _server_time(header: str | None) -> float | None:
    try:
        return None if header is None else parsedate_to_datetime(header).timestamp()
    except ValueError:
        return None


def _source_error(error: BaseException, target: httpx.URL) -> SourceError:
    text = str(error) or type(error).__name__
    where = f"{target.host}:{target.port or target.scheme}"
    if isinstance(error, httpx.TimeoutException):
        return SourceError(Reason.TIMEOUT, f"{where}: {text}")
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return SourceError(Reason.TLS, f"{where}: {text}")
        cause = cause.__cause__ or cause.__context__
    return SourceError(Reason.CONNECT, f"{where}: {text}")
