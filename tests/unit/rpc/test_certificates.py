from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from heterotrain_api.contract import Role
from heterotrain_rpc.certificates import Authority, Credentials, make_authority
from heterotrain_rpc.identity import Identity

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORKER = Identity("job-1", Role.WORKER, "cpu-0")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return make_authority("job-1", NOW, timedelta(days=30))


def test_the_authority_may_sign_processes_and_nothing_else(authority: Authority) -> None:
    certificate = authority.certificate
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (constraints.critical, constraints.value) == (True, x509.BasicConstraints(ca=True, path_length=0))
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    assert (certificate.not_valid_before_utc, certificate.not_valid_after_utc) == (
        NOW - timedelta(minutes=5),
        NOW + timedelta(days=30),
    )


def test_a_process_is_server_and_client_under_its_own_names(authority: Authority) -> None:
    made = authority.issue(WORKER, NOW, timedelta(hours=1), ["10.1.2.3", "cpu-0.demo.svc"])
    certificate = x509.load_pem_x509_certificate(made.certificate_pem)
    certificate.verify_directly_issued_by(authority.certificate)
    extensions = certificate.extensions
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert extensions.get_extension_for_class(x509.BasicConstraints).value == x509.BasicConstraints(False, None)
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    assert extensions.get_extension_for_class(x509.ExtendedKeyUsage).value == x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    assert extensions.get_extension_for_class(x509.SubjectAlternativeName).value == x509.SubjectAlternativeName(
        [
            x509.UniformResourceIdentifier("heterotrain://job-1/worker/cpu-0"),
            x509.DNSName("cpu-0.heterotrain"),
            x509.IPAddress(ip_address("10.1.2.3")),
            x509.DNSName("cpu-0.demo.svc"),
        ]
    )
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "cpu-0"
    public_key = certificate.public_key()
    assert isinstance(public_key, ec.EllipticCurvePublicKey)
    assert public_key.curve.name == "secp256r1"
    assert certificate.not_valid_after_utc == NOW + timedelta(hours=1)


def test_no_certificate_outlives_its_authority(authority: Authority) -> None:
    made = authority.issue(WORKER, NOW, timedelta(days=400))
    certificate = x509.load_pem_x509_certificate(made.certificate_pem)
    assert certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_an_authority_issues_for_its_own_job_only(authority: Authority) -> None:
    with pytest.raises(ValueError, match="of job job-1, not of job-2"):
        authority.issue(Identity("job-2", Role.WORKER, "cpu-0"), NOW, timedelta(hours=1))


def test_times_must_be_aware_of_their_zone() -> None:
    with pytest.raises(ValueError, match="time zone"):
        make_authority("job-1", datetime(2026, 3, 1), timedelta(days=1))  # noqa: DTZ001


def test_an_authority_can_be_kept_and_taken_up_again(authority: Authority) -> None:
    again = Authority.from_pem("job-1", authority.certificate_pem, authority.key_pem)
    made = again.issue(WORKER, NOW, timedelta(hours=1))
    x509.load_pem_x509_certificate(made.certificate_pem).verify_directly_issued_by(authority.certificate)
    with pytest.raises(ValueError, match="does not belong"):
        Authority.from_pem("job-1", authority.certificate_pem, made.key_pem)


def test_a_long_job_uid_still_makes_an_authority() -> None:
    assert make_authority("u" * 63, NOW, timedelta(days=1)).job_uid == "u" * 63


def test_credentials_lie_in_a_folder_and_only_the_owner_reads_the_key(authority: Authority, tmp_path: Path) -> None:
    first = authority.issue(WORKER, NOW, timedelta(hours=1))
    second = authority.issue(WORKER, NOW, timedelta(hours=1))
    folder = tmp_path / "cpu-0"
    first.write(folder)
    second.write(folder)
    assert Credentials.read(folder) == second
    assert sorted(p.name for p in folder.iterdir()) == ["ca.crt", "tls.crt", "tls.key"]
    assert [stat.S_IMODE(p.stat().st_mode) for p in (folder, folder / "tls.key")] == [0o700, 0o600]


def test_keys_are_not_shown(authority: Authority) -> None:
    made = authority.issue(WORKER, NOW, timedelta(hours=1))
    assert "key_pem" not in repr(made)
    assert "key=" not in repr(authority)
