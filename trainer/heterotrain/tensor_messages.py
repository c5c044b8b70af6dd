"""Tensors of a manifest as messages: said by workers, passed on by the coordinator, read by shards. Pure."""

from __future__ import annotations

from heterotrain_core.layout import TensorKind, TensorSpec
from heterotrain_rpc import session_pb2


def tensor_message(spec: TensorSpec) -> session_pb2.Tensor:
    """The inverse of `tensor_of`."""
    return session_pb2.Tensor(
        name=spec.name,
        shape=spec.shape,
        dtype=spec.dtype,
        kind=session_pb2.TensorKind.ValueType(int(spec.kind)),
        group=spec.group,
        aliases=spec.aliases,
    )


def tensor_of(message: session_pb2.Tensor) -> TensorSpec:
    """A tensor as a message describes it; raises `ValueError` that names it for a kind that does not exist."""
    try:
        kind = TensorKind(int(message.kind))
    except ValueError as error:
        raise ValueError(f"tensor `{message.name}`: kind {message.kind} is unknown") from error
    return TensorSpec(
        message.name, tuple(message.shape), message.dtype, kind, message.group, aliases=tuple(message.aliases)
    )
