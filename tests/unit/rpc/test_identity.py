from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_api.contract import Role
from heterotrain_rpc.identity import Identity, IdentityError, identity_from_auth_context, peer_identity
from support.credentials import JOB_UID, credentials

LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)


@given(LABEL, st.sampled_from(Role), LABEL)
def test_the_uri_names_exactly_one_identity(job_uid: str, role: Role, name: str) -> None:
    identity = Identity(job_uid, role, name)
    assert Identity.from_uri(identity.uri) == identity


@pytest.mark.parametrize(
    ("uri", "want_message"),
    [
        pytest.param("spiffe://u/worker/w-0", "identity must be", id="another scheme"),
        pytest.param("heterotrain://u/worker", "identity must be", id="no name"),
        pytest.param("heterotrain://u/worker/w-0/x", "identity must be", id="a part too many"),
        pytest.param("heterotrain:///worker/w-0", "identity must be", id="empty job"),
        pytest.param("heterotrain://u/worker/w-0\n", "name must be", id="a line break at the end"),
        pytest.param("heterotrain://u/root/w-0", "role must be one of worker, ps, operator", id="a role not known"),
        pytest.param("heterotrain://u/Worker/w-0", "role must be one of", id="a role in capitals"),
        pytest.param("heterotrain://u/worker/W-0", "name must be", id="a name in capitals"),
        pytest.param("heterotrain://u/worker/w_0", "name must be", id="a name that is no DNS label"),
        pytest.param("heterotrain://u@v/worker/w-0", "job UID must be", id="a job with a user part"),
        pytest.param(f"heterotrain://{'u' * 64}/worker/w-0", "job UID must be", id="a job UID too long"),
        pytest.param("heterotrain://u/worker/w%2D0", "name must be", id="percent escapes"),
    ],
)
def test_other_uris_are_refused(uri: str, want_message: str) -> None:
    with pytest.raises(IdentityError, match=re.escape(want_message)):
        Identity.from_uri(uri)


def test_a_certificate_names_its_process_in_pem_der_and_auth_context() -> None:
    made = credentials(Role.WORKER, "cpu-0")
    der = x509.load_pem_x509_certificate(made.certificate_pem).public_bytes(serialization.Encoding.DER)
    want = Identity(JOB_UID, Role.WORKER, "cpu-0")
    context = {"x509_pem_cert": [made.certificate_pem], "x509_common_name": [b"gpu-7"]}
    assert [
        made.identity,
        Identity.from_pem(made.certificate_pem.decode()),
        Identity.from_der(der),
        identity_from_auth_context(context),
        peer_identity(_Context(context)),
    ] == [want] * 5


class _Context:
    def __init__(self, properties: dict[str, list[bytes]]) -> None:
        self._properties = properties

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._properties


def certificate(*names: x509.GeneralName) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 7, now, now + timedelta(days=1))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


URI = x509.UniformResourceIdentifier("heterotrain://u/worker/w-0")


@pytest.mark.parametrize(
    ("names", "want_message"),
    [
        pytest.param((), "no subject alternative names", id="no alternative names"),
        pytest.param((x509.DNSName("w-0.heterotrain"),), "exactly one URI", id="no URI"),
        pytest.param((URI, URI), "exactly one URI", id="two URIs"),
        pytest.param((URI, x509.DNSName("w-1.heterotrain")), "DNS name w-0.heterotrain", id="the DNS name of another"),
    ],
)
def test_ambiguous_certificates_are_refused(names: tuple[x509.GeneralName, ...], want_message: str) -> None:
    with pytest.raises(IdentityError, match=re.escape(want_message)):
        Identity.from_pem(certificate(*names))


@pytest.mark.parametrize("blob", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", b"\x80\x04."])
def test_what_is_no_certificate_is_refused(blob: bytes) -> None:
    for read in (Identity.from_pem, Identity.from_der):
        with pytest.raises(IdentityError):
            read(blob)


def test_a_connection_without_certificate_has_no_identity() -> None:
    with pytest.raises(IdentityError, match="showed no certificate"):
        identity_from_auth_context({"transport_security_type": [b"ssl"]})
