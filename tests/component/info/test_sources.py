"""Sources over real sockets and processes: certificates and tokens that change, servers that move, hostile answers."""

from __future__ import annotations

import asyncio
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from heterotrain_api.info_collection import CollectionRuleSpec
from heterotrain_operator.info.readers import ReaderSettings, make_readers
from heterotrain_operator.info.sources.base import Reason, SourceError
from heterotrain_operator.info.sources.web import Web, WebSettings
from heterotrain_operator.info.turns import Turns
from support.info_world import make_collection

Talk = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n\r\nload 1\n"


@asynccontextmanager
async def serve(talk: Talk, context: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[int]:
    """A server that reads a request's head and lets `talk` answer; gives its port."""

    talking: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await talk(await reader.readuntil(b"\r\n\r\n"), writer)
                await writer.drain()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(handle(reader, writer))
        talking.add(task)
        task.add_done_callback(lambda _: writer.close())

    server = await asyncio.start_server(accept, "127.0.0.1", port, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)


def make_certificate(folder: Path) -> ssl.SSLContext:
    """A self-signed certificate of 127.0.0.1 in `folder` as ca.crt; the server's side of it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = folder.parent / "server.key"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", private)
    return context


async def reason_of(awaitable: Awaitable[object]) -> Reason:
    with pytest.raises(SourceError) as raised:
        await awaitable
    return raised.value.reason


async def test_new_certificates_and_tokens_are_taken_up_without_a_restart(tmp_path: Path) -> None:
    heads: list[bytes] = []

    async def talk(head: bytes, writer: asyncio.StreamWriter) -> None:
        heads.append(head)
        writer.write(OK)

    web = Web(WebSettings(credentials_folder=tmp_path))
    folder = tmp_path / "prom"
    context = make_certificate(folder)
    (folder / "token").write_text("first\n")
    async with serve(talk, context) as port:
        url = f"https://127.0.0.1:{port}/"
        assert (await web.get(url, credentials="prom")).body == b"load 1\n"
        (folder / "token").write_text("second\n")
        await web.get(url, credentials="prom")
        assert await reason_of(web.get(url)) is Reason.TLS
    assert [b"Bearer first" in heads[0], b"Bearer second" in heads[1]] == [True, True]
    assert await reason_of(web.get(url, credentials="prom")) is Reason.CONNECT
    old = (folder / "ca.crt").read_bytes()
    context = make_certificate(folder)
    new = (folder / "ca.crt").read_bytes()
    (folder / "ca.crt").write_bytes(old)
    async with serve(talk, context, port):
        assert await reason_of(web.get(url, credentials="prom")) is Reason.TLS
        (folder / "ca.crt").write_bytes(new)
        assert (await web.get(url, credentials="prom")).body == b"load 1\n"
    assert await reason_of(web.get(url, credentials="other")) is Reason.CREDENTIALS
    await web.close()


def make_answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers))
    return head.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(make_answer("302 Found", "Location: http://127.0.0.1:1/"), Reason.REDIRECT, id="a redirect"),
        pytest.param(make_answer("200 OK", body=b"x" * 70000), Reason.TOO_LARGE, id="more than the cap"),
        pytest.param(b"no HTTP at all\r\n\r\n", Reason.CONNECT, id="another protocol"),
        pytest.param(
            make_answer("200 OK", "Content-Encoding: gzip", body=b"\x1f\x8b"),
            Reason.NOT_METRICS,
            id="compressed unasked",
        ),
    ],
)
async def test_hostile_answers_over_sockets_have_a_name_and_the_next_request_works(
    answer: bytes, reason: Reason
) -> None:
    bodies = [answer, OK]

    async def talk(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(bodies.pop(0))

    web = Web(WebSettings(max_bytes=60_000))
    async with serve(talk) as port:
        assert await reason_of(web.get(f"http://127.0.0.1:{port}/")) is reason
        assert (await web.get(f"http://127.0.0.1:{port}/")).body == b"load 1\n"
    await web.close()


async def test_a_trickle_is_cut_off_at_the_deadline_and_hurts_no_other_request() -> None:
    async def talk(head: bytes, writer: asyncio.StreamWriter) -> None:
        if b"GET /slow" not in head:
            await asyncio.sleep(0.3)
            writer.write(OK)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(1000):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def slow(web: Web, port: int) -> None:
        async with asyncio.timeout(0.2):
            await web.get(f"http://127.0.0.1:{port}/slow")

    web = Web(WebSettings())
    async with serve(talk) as port:
        other = asyncio.create_task(web.get(f"http://127.0.0.1:{port}/"))
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await slow(web, port)
        assert (await other).body == b"load 1\n"
        assert (await web.get(f"http://127.0.0.1:{port}/")).body == b"load 1\n"
    await web.close()


def command_spec(*argv: str) -> CollectionRuleSpec:
    return make_collection(source={"command": {"argv": list(argv)}}, entity=[{"name": "node/a"}]).spec


async def test_commands_run_only_where_they_are_allowed_and_end_with_the_deadline() -> None:
    readers, _ = make_readers(ReaderSettings(allow_commands=True), Turns())
    forbidden, _ = make_readers(ReaderSettings(), Turns())
    program = command_spec(sys.executable, "-c", "print('load 7')")
    assert (await readers["command"].read(program, 0)).rows["load"][0].value == 7
    assert await reason_of(forbidden["command"].read(program, 0)) is Reason.FORBIDDEN
    assert await reason_of(readers["command"].read(command_spec("/no/such/program"), 0)) is Reason.COMMAND
    failing = command_spec(sys.executable, "-c", "raise SystemExit(3)")
    assert await reason_of(readers["command"].read(failing, 0)) is Reason.COMMAND
    endless = command_spec(sys.executable, "-c", "while True: print('x' * 9999)")
    assert await reason_of(readers["command"].read(endless, 0)) is Reason.TOO_LARGE
    sleeping = command_spec(sys.executable, "-c", "import time; time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await readers["command"].read(sleeping, 0)
    assert time.monotonic() - began < 30


async def test_this_machine_is_read() -> None:
    readers, _ = make_readers(ReaderSettings(node="here"), Turns())
    spec = make_collection(
        source={"local": {"reader": "psutil"}},
        entity=[{"name": "node/{node}"}],
        metrics=[{"name": "cores", "from": "cpu_count"}, {"name": "memory", "from": "memory_total_bytes"}],
    ).spec
    rows = (await readers["local"].read(spec, 0)).rows
    assert [rows[name][0].labels for name in ("cores", "memory")] == [{"node": "here"}] * 2
    assert all(float(rows[name][0].value) >= 1 for name in ("cores", "memory"))
