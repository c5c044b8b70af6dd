"""Who may call which gRPC service: by role and job of the certificate, everything else refused and counted."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from heterotrain_api.contract import Role
from heterotrain_rpc.identity import Identity, IdentityError, ServerContext, peer_identity

CALLERS: Final[Mapping[str, frozenset[Role]]] = MappingProxyType(
    {
        "heterotrain.v1.Coordinator": frozenset({Role.OPERATOR}),
        "heterotrain.v1.Session": frozenset({Role.WORKER}),
        "heterotrain.v1.Shard": frozenset({Role.PS}),
        "grpc.health.v1.Health": frozenset(Role),
    }
)
"""Roles that may call a service. A service that is not named here is refused to everybody."""

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class RefusalCause(StrEnum):
    """Why a call was refused. Peers that fail the TLS handshake do not get this far."""

    NO_IDENTITY = "NoIdentity"
    OTHER_JOB = "OtherJob"
    ROLE = "Role"


@dataclass(frozen=True, slots=True)
class CallRefusal:
    """A refused call: cause, gRPC status and text for the caller."""

    cause: RefusalCause
    code: grpc.StatusCode
    message: str


def judge(
    identity: Identity | IdentityError, service: str, job_uid: str, callers: Mapping[str, frozenset[Role]] = CALLERS
) -> CallRefusal | None:
    """Whether `identity` may call `service` of the job `job_uid`; `None`: it may."""
    if isinstance(identity, IdentityError):
        return CallRefusal(RefusalCause.NO_IDENTITY, grpc.StatusCode.UNAUTHENTICATED, str(identity))
    if identity.job_uid != job_uid:
        message = f"{identity.uri} is of another job than {job_uid}"
        return CallRefusal(RefusalCause.OTHER_JOB, grpc.StatusCode.UNAUTHENTICATED, message)
    allowed = callers.get(service, frozenset())
    if identity.role not in allowed:
        roles = ", ".join(sorted(allowed)) or "nobody"
        message = f"{identity.role.value} {identity.name} may not call {service}; allowed: {roles}"
        return CallRefusal(RefusalCause.ROLE, grpc.StatusCode.PERMISSION_DENIED, message)
    return None


class Authorization(grpc.aio.ServerInterceptor):
    """Interceptor of a `grpc.aio` server; handlers must be coroutines or async generators."""

    def __init__(self, job_uid: str, callers: Mapping[str, frozenset[Role]] = CALLERS) -> None:
        self.refusals: Counter[RefusalCause] = Counter()
        """Refused calls since the start, by cause. Read it for metrics."""
        self._job_uid = job_uid
        self._callers = callers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Put the check before the method's handler."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        service = handler_call_details.method.strip("/").rpartition("/")[0]
        return self._guarded(handler, service)

    def _guarded(
        self, handler: grpc.RpcMethodHandler[_Request, _Response], service: str
    ) -> grpc.RpcMethodHandler[_Request, _Response]:
        behaviour: Any
        if handler.request_streaming and handler.response_streaming:
            make, behaviour = grpc.stream_stream_rpc_method_handler, handler.stream_stream
        elif handler.request_streaming:
            make, behaviour = grpc.stream_unary_rpc_method_handler, handler.stream_unary
        elif handler.response_streaming:
            make, behaviour = grpc.unary_stream_rpc_method_handler, handler.unary_stream
        else:
            make, behaviour = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        guarded: Any = self._wrap(behaviour, service)
        return make(guarded, handler.request_deserializer, handler.response_serializer)

    def _wrap(self, behaviour: Any, service: str) -> Any:
        if inspect.isasyncgenfunction(behaviour):

            async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
                await self._check(context, service)
                async for response in behaviour(request, context):
                    yield response

            return generate
        if not inspect.iscoroutinefunction(behaviour):
            raise TypeError(f"handlers of {service} must be coroutines or async generators")

        async def call(request: Any, context: Any) -> Any:
            await self._check(context, service)
            return await behaviour(request, context)

        return call

    async def _check(self, context: Any, service: str) -> None:
        refusal = judge(_identity_or_error(context), service, self._job_uid, self._callers)
        if refusal is not None:
            self.refusals[refusal.cause] += 1
            await context.abort(refusal.code, refusal.message)


def _identity_or_error(context: ServerContext) -> Identity | IdentityError:
    try:
        return peer_identity(context)
    except IdentityError as error:
        return error
