"""Reading tensors where they lie in another process of this machine (Linux's ``process_vm_readv``), in one copy.

A socket copies twice, into the kernel and out of it, and each end pays for one of them with the processor time that it
may use. Here whoever needs the bytes copies them: a shard a gradient, a worker a version. The kernel allows it to
whoever may trace the other process (the same user, and no rule of the system against it); both ends find that out when
they meet, and send the bytes themselves where it is not so.

What is read is kept as it is by its owner until an answer has come, or until the connection is shut down, which every
end does *before* it uses the memory for anything else. So a copy is whole if the connection is still open after it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import socket
import struct
from collections.abc import Iterable
from typing import Final, Protocol

import numpy as np

PROBE_BYTES: Final = 16
STEP_BYTES: Final = 1 << 26
"""Of one call into the kernel."""
_ADDRESS: Final = struct.Struct("!Q")
_MEETING: Final = struct.Struct(f"!Q{PROBE_BYTES}s")
_CREDENTIALS: Final = struct.Struct("3i")
"""Process, user and group at the other end of a Unix socket."""


class _Range(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Talk(Protocol):
    """What two ends need of a stream to meet."""

    def send(self, piece: memoryview, until: float) -> None:
        """See `Stream.send`."""
        ...

    def receive_into(self, view: memoryview, until: float) -> None:
        """See `Stream.receive_into`."""
        ...


class PeerMemory:
    """The memory of another process. Raises `OSError` where it cannot be read."""

    def __init__(self, process: int) -> None:
        self._process = process
        try:
            self._read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        except AttributeError as error:
            raise OSError(errno.ENOSYS, "this system cannot read another process's memory") from error
        self._read.restype = ctypes.c_ssize_t
        ranges = (ctypes.POINTER(_Range), ctypes.c_ulong)
        self._read.argtypes = [ctypes.c_int, *ranges, *ranges, ctypes.c_ulong]

    def read_into(self, address: int, view: memoryview) -> None:
        """Fill `view` with what lies at `address` there."""
        own, done = _address(view), 0
        while done < view.nbytes:
            step = min(view.nbytes - done, STEP_BYTES)
            here, there = _Range(own + done, step), _Range(address + done, step)
            got = self._read(self._process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
            if got <= 0:
                code = ctypes.get_errno() or errno.EFAULT
                raise OSError(code, f"memory of process {self._process} cannot be read: {os.strerror(code)}")
            done += got


def meet(stream: Talk, sock: socket.socket, until: float, *, willing: bool = True) -> tuple[PeerMemory | None, bool]:
    """Find out, with the other end, who can read whose memory; both call this. Raises as `Stream.send`.

    Returns the other end's memory, if it can be read here, and whether the other end can read the memory of this one.
    Each tells where some random bytes lie, and looks whether it finds the other's. `willing`: false, neither is to.
    """
    probe = memoryview(bytearray(secrets.token_bytes(PROBE_BYTES)))
    stream.send(memoryview(_MEETING.pack(_address(probe) if willing else 0, bytes(probe))), until)
    address, content = _MEETING.unpack(_received(stream, _MEETING.size, until))
    memory = _found(sock, address, content) if willing and address else None
    stream.send(memoryview(bytes([memory is not None])), until)
    return memory, _received(stream, 1, until) == b"\1"


def addresses(buffers: Iterable[memoryview | bytes]) -> bytes:
    """Where buffers lie in this process, for the other end."""
    return b"".join(_ADDRESS.pack(_address(buffer)) for buffer in buffers)


def address_bytes(count: int) -> int:
    """Length of so many addresses."""
    return count * _ADDRESS.size


def decode_addresses(told: bytes | bytearray) -> list[int]:
    """The inverse of `addresses`."""
    return [address for (address,) in _ADDRESS.iter_unpack(told)]


def _address(buffer: memoryview | bytes) -> int:
    return int(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]) if len(buffer) else 0


def _received(stream: Talk, num_bytes: int, until: float) -> bytes:
    received = bytearray(num_bytes)
    stream.receive_into(memoryview(received), until)
    return bytes(received)


def _found(sock: socket.socket, address: int, content: bytes) -> PeerMemory | None:
    """The other end's memory, if `content` is found there."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, _, _ = _CREDENTIALS.unpack(credentials)
    seen = memoryview(bytearray(len(content)))
    try:
        memory = PeerMemory(process)
        memory.read_into(address, seen)
    except OSError:
        return None
    return memory if secrets.compare_digest(bytes(seen), content) else None
