"""A certificate authority per job, and the credentials that it gives to the job's processes.

EC keys on P-256: small, fast handshakes, and understood by every TLS library in the job (OpenSSL, BoringSSL in gRPC).
Profiles after RFC 5280: the authority may sign end-entity certificates only (path length 0); a process's certificate
serves as server and as client, since shards are both.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from heterotrain_api.contract import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from heterotrain_rpc.identity import Identity

CLOCK_SKEW = timedelta(minutes=5)
"""Certificates are valid from this much before they are made: nodes' clocks differ."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a process needs to prove who it is and to verify others. PEM; `key_pem` is a secret and not shown."""

    ca_pem: bytes
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    @property
    def identity(self) -> Identity:
        """Whom the certificate names; raises `IdentityError`."""
        return Identity.from_pem(self.certificate_pem)

    def write(self, folder: Path) -> None:
        """Leave the three files in `folder` (made if absent, 0700); each is replaced whole, the key has mode 0600."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(folder / CA_FILE, self.ca_pem, 0o644)
        _replace(folder / CERTIFICATE_FILE, self.certificate_pem, 0o644)
        _replace(folder / KEY_FILE, self.key_pem, 0o600)

    @classmethod
    def read(cls, folder: Path) -> Credentials:
        """Read what `write` left; raises `FileNotFoundError` that names the absent file."""
        return cls(
            ca_pem=(folder / CA_FILE).read_bytes(),
            certificate_pem=(folder / CERTIFICATE_FILE).read_bytes(),
            key_pem=(folder / KEY_FILE).read_bytes(),
        )


@dataclass(frozen=True, slots=True)
class Authority:
    """A job's certificate authority. Whoever holds `key` can become any process of the job."""

    job_uid: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def certificate_pem(self) -> bytes:
        """The authority's own certificate: ``ca.crt``."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The authority's key, unencrypted, for whoever keeps it in a Secret."""
        return _key_pem(self.key)

    @classmethod
    def from_pem(cls, job_uid: str, certificate_pem: bytes, key_pem: bytes) -> Authority:
        """Take up an authority that was kept; raises `ValueError` if the two do not belong together."""
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        key = serialization.load_pem_private_key(key_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ValueError("the authority's key does not belong to its certificate")
        return cls(job_uid, certificate, key)

    def issue(
        self, identity: Identity, now: datetime, valid_for: timedelta, addresses: Sequence[str] = ()
    ) -> Credentials:
        """Credentials of one process, with a new key.

        `now` is aware of its time zone. `addresses`: host names or IP addresses as further subject alternative names,
        for clients that verify by address. Never valid longer than the authority. Raises `ValueError` for an identity
        of another job.
        """
        if identity.job_uid != self.job_uid:
            raise ValueError(f"this authority is of job {self.job_uid}, not of {identity.job_uid}")
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri), x509.DNSName(identity.dns_name)]
        names += [_general_name(address) for address in addresses if address != identity.dns_name]
        expiry = min(now + valid_for, self.certificate.not_valid_after_utc)
        builder = (
            _builder(identity.name, key.public_key(), now, expiry)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        certificate = builder.sign(self.key, hashes.SHA256())
        return Credentials(
            ca_pem=self.certificate_pem,
            certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
            key_pem=_key_pem(key),
        )


def make_authority(job_uid: str, now: datetime, valid_for: timedelta) -> Authority:
    """A new authority for one job. `now` is aware of its time zone."""
    key = ec.generate_private_key(ec.SECP256R1())
    # A common name holds at most 64 characters (RFC 5280, ub-common-name); the UID may have 63.
    common_name = f"heterotrain {job_uid}"[:64]
    builder = (
        _builder(common_name, key.public_key(), now, now + valid_for)
        .issuer_name(_name(common_name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
    )
    return Authority(job_uid, builder.sign(key, hashes.SHA256()), key)


def _builder(
    common_name: str, key: ec.EllipticCurvePublicKey, now: datetime, expiry: datetime
) -> x509.CertificateBuilder:
    if now.tzinfo is None:
        raise ValueError("`now` must be aware of its time zone")
    return (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(expiry)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _replace(path: Path, content: bytes, mode: int) -> None:
    # Made with mode 0600 by mkstemp: a key is never readable by others, not even for a moment.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
