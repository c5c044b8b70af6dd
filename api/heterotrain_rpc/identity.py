"""Who is calling: the identity in a certificate. It comes from the credential alone, never from a request's field.

A certificate of a job carries exactly one URI subject alternative name, ``heterotrain://<job uid>/<role>/<name>``, and
the DNS name ``<name>.heterotrain`` by which clients know the server, whatever address they reach it at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from cryptography import x509

from heterotrain_api.contract import Role

SCHEME: Final = "heterotrain"
_JOB_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_URI = re.compile(rf"{SCHEME}://([^/]+)/([^/]+)/([^/]+)")


class IdentityError(ValueError):
    """A peer has no identity, or one that cannot be read. The message says what is wrong with it."""


class ServerContext(Protocol):
    """What identities are read from in a call: contexts of `grpc` and `grpc.aio` servers alike."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Properties of the peer's connection."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """A process of a job. Raises `IdentityError` for values that a certificate could not carry unambiguously."""

    job_uid: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        if not _JOB_UID.fullmatch(self.job_uid):
            raise IdentityError(f"job UID must be 1 to 63 letters, digits or inner hyphens, not {self.job_uid!r}")
        if not _NAME.fullmatch(self.name):
            raise IdentityError(
                f"name must be 1 to 63 lower-case letters, digits or inner hyphens (a DNS label), not {self.name!r}"
            )

    @property
    def uri(self) -> str:
        """Subject alternative name: ``heterotrain://<job uid>/<role>/<name>``."""
        return f"{SCHEME}://{self.job_uid}/{self.role.value}/{self.name}"

    @property
    def dns_name(self) -> str:
        """The name that clients verify the server by."""
        return dns_name(self.name)

    @classmethod
    def from_uri(cls, uri: str) -> Identity:
        """The inverse of `uri`; raises `IdentityError` for anything else."""
        match = _URI.fullmatch(uri)
        if match is None:
            raise IdentityError(f"identity must be {SCHEME}://<job uid>/<role>/<name>, not {uri!r}")
        job_uid, role, name = match.groups()
        if role not in {r.value for r in Role}:
            raise IdentityError(f"role must be one of {', '.join(r.value for r in Role)}, not {role!r}")
        return cls(job_uid, Role(role), name)

    @classmethod
    def from_certificate(cls, certificate: x509.Certificate) -> Identity:
        """The identity that a (verified) certificate names; raises `IdentityError` unless there is exactly one."""
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            raise IdentityError("the certificate has no subject alternative names") from None
        except ValueError as error:
            raise IdentityError(f"the certificate's extensions cannot be read: {error}") from error
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        if len(uris) != 1:
            raise IdentityError(f"the certificate must have exactly one URI subject alternative name, not {len(uris)}")
        identity = cls.from_uri(uris[0])
        if identity.dns_name not in names.get_values_for_type(x509.DNSName):
            raise IdentityError(f"the certificate of {identity.uri} must have the DNS name {identity.dns_name}")
        return identity

    @classmethod
    def from_der(cls, certificate: bytes | None) -> Identity:
        """As `from_certificate`, of what `ssl.SSLSocket.getpeercert(binary_form=True)` gives."""
        if not certificate:
            raise IdentityError("the peer showed no certificate")
        return _from_der(certificate)

    @classmethod
    def from_pem(cls, certificate: bytes | str) -> Identity:
        """As `from_certificate`, of PEM text (its first certificate)."""
        return _from_pem(certificate.encode() if isinstance(certificate, str) else bytes(certificate))


def dns_name(name: str) -> str:
    """The DNS name in the certificate of the process `name`: ``ps-0.heterotrain``."""
    return f"{name}.heterotrain"


def peer_identity(context: ServerContext) -> Identity:
    """Who calls: read from the client certificate of a gRPC call. Raises `IdentityError` if there is none."""
    return identity_from_auth_context(context.auth_context())


def identity_from_auth_context(auth_context: Mapping[str, Iterable[bytes]]) -> Identity:
    """As `peer_identity`, of the context's properties."""
    certificates = list(auth_context.get("x509_pem_cert", ()))
    if len(certificates) != 1:
        raise IdentityError("the peer showed no certificate")
    return Identity.from_pem(certificates[0])


# A peer calls many times with one certificate; reading it takes longer than all other checks of a call.
@lru_cache(maxsize=1024)
def _from_pem(certificate: bytes) -> Identity:
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise IdentityError(f"the certificate cannot be read: {error}") from error
    return Identity.from_certificate(parsed)


@lru_cache(maxsize=1024)
def _from_der(certificate: bytes) -> Identity:
    try:
        parsed = x509.load_der_x509_certificate(certificate)
    except ValueError as error:
        raise IdentityError(f"the certificate cannot be read: {error}") from error
    return Identity.from_certificate(parsed)
