"""TLS of the tensor transport: both ends show a certificate of the job's authority, TLS 1.2 or newer.

Read from the folder each time: renewed files count from the next connection on, without a restart.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from heterotrain_api.contract import CA_FILE, CERTIFICATE_FILE, KEY_FILE


def server_context(folder: Path) -> ssl.SSLContext:
    """Context of a server that demands a client certificate. Raises `OSError` (`ssl.SSLError`) for unreadable files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Clients keep one connection; tickets would only be bytes that arrive unasked.
    context.num_tickets = 0
    return _configured(context, folder)


def client_context(folder: Path) -> ssl.SSLContext:
    """Context of a client that verifies the server's name."""
    return _configured(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), folder)


def _configured(context: ssl.SSLContext, folder: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # For TLS 1.2; 1.3 has only such ciphers. Sizes of AES make no difference beside copies and system calls.
    context.set_ciphers("ECDHE+AESGCM")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(folder / CA_FILE)
    context.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    return context
