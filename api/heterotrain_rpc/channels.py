"""gRPC channels and servers of a job: mutual TLS, deadlines and limits.

Both ends refuse peers without a certificate of the job's authority in the handshake; what a peer may call is then
decided by `heterotrain_rpc.authorization`. Unary calls without a deadline raise `ValueError` at the caller, before
anything is sent; long streams have none: the protocol's leases guard those of workers, a time for each answer those of
commits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from heterotrain_rpc.authorization import Authorization
from heterotrain_rpc.certificates import Credentials
from heterotrain_rpc.guarded import GuardedChannel, require_deadline
from heterotrain_rpc.identity import dns_name

MESSAGE_LIMIT_BYTES: Final = 64 * 1024 * 1024
METADATA_LIMIT_BYTES: Final = 16 * 1024
CONCURRENT_STREAMS: Final = 256
"""Per connection; a worker needs one, the operator a few."""
KEEPALIVE_MILLISECONDS: Final = 10_000
KEEPALIVE_TIMEOUT_MILLISECONDS: Final = 5_000

Options = tuple[tuple[str, int | str], ...]

_SHARED_OPTIONS: Final[Options] = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ("grpc.max_metadata_size", METADATA_LIMIT_BYTES),
    # A peer whose node is gone sends no RST: without pings a stream would wait for it for ever.
    ("grpc.keepalive_time_ms", KEEPALIVE_MILLISECONDS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MILLISECONDS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

SERVER_OPTIONS: Final[Options] = (
    *_SHARED_OPTIONS,
    ("grpc.max_concurrent_streams", CONCURRENT_STREAMS),
    # Below the clients' keepalive, else the server would answer their pings with GOAWAY.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MILLISECONDS // 2),
    # A busy machine delivers pings in bursts: that must not end a session.
    ("grpc.http2.max_ping_strikes", 0),
    # Two servers on one port would share its connections at random instead of failing to start.
    ("grpc.so_reuseport", 0),
)


def client_options(server_name: str) -> Options:
    """Options of a channel to the process `server_name` of the job (``ps-0``), whatever its address."""
    return (
        *_SHARED_OPTIONS,
        ("grpc.ssl_target_name_override", dns_name(server_name)),
        ("grpc.initial_reconnect_backoff_ms", 200),
        # In spite of its name the least time that an attempt to connect may take: a handshake on a machine that is
        # short of processors takes seconds. A refused attempt is repeated after the back-off above.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        # A pod that comes back has another address: ask DNS again soon (the default is 30 s) …
        ("grpc.dns_min_time_between_resolutions_ms", 2_000),
        # … and do not inherit the back-off of another channel to the same address.
        ("grpc.use_local_subchannel_pool", 1),
    )


def channel_credentials(credentials: Credentials) -> grpc.ChannelCredentials:
    """Client side of mutual TLS."""
    return grpc.ssl_channel_credentials(credentials.ca_pem, credentials.key_pem, credentials.certificate_pem)


def server_credentials(credentials: Credentials) -> grpc.ServerCredentials:
    """Server side of mutual TLS: a client without a certificate of the same authority is refused."""
    return grpc.ssl_server_credentials(
        [(credentials.key_pem, credentials.certificate_pem)], credentials.ca_pem, require_client_auth=True
    )


def make_channel(address: str, server_name: str, credentials: Credentials) -> grpc.aio.Channel:
    """A channel to the process `server_name` of the job at `address` (``host:port``); connects at the first call."""
    return GuardedChannel(
        grpc.aio.secure_channel(address, channel_credentials(credentials), client_options(server_name))
    )


def make_sync_channel(address: str, server_name: str, credentials: Credentials) -> grpc.Channel:
    """As `make_channel`, for callers without an event loop, such as commands."""
    channel = grpc.secure_channel(address, channel_credentials(credentials), client_options(server_name))
    return grpc.intercept_channel(channel, SyncDeadlineGuard())


def make_server(authorization: Authorization, *, maximum_concurrent_rpcs: int | None = None) -> grpc.aio.Server:
    """A server that authorises every call; add services, then a port with `server_credentials`."""
    return grpc.aio.server(
        interceptors=[authorization], options=SERVER_OPTIONS, maximum_concurrent_rpcs=maximum_concurrent_rpcs
    )


class SyncDeadlineGuard(grpc.UnaryUnaryClientInterceptor):
    """Raises `ValueError` for a unary call of a synchronous channel that has no deadline."""

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        """Pass the call on if it has a deadline."""
        require_deadline(client_call_details.method, client_call_details.timeout)
        return continuation(client_call_details, request)


def rpc_error(code: grpc.StatusCode, details: str | None) -> grpc.aio.AioRpcError:
    """What a call ends with, for one whose end was seen in another way than by an error."""
    none = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, none, none, details=details)
