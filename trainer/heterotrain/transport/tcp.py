"""The tensor transport over TCP with TLS: what the rest of the trainer uses of it."""

from __future__ import annotations

from heterotrain.transport.frames import Hello
from heterotrain.transport.serving import Limits
from heterotrain.transport.tcp_client import TcpTensorClient
from heterotrain.transport.tcp_server import TcpTensorServer

__all__ = ["Hello", "Limits", "TcpTensorClient", "TcpTensorServer"]
