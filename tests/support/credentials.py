"""Credentials for tests: one authority per job UID, made once per run, since making keys takes time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache

from heterotrain_api.contract import Role
from heterotrain_rpc.certificates import Authority, Credentials, make_authority
from heterotrain_rpc.identity import Identity

JOB_UID = "6d0f3c1e-0000-4000-8000-000000000001"
OTHER_JOB_UID = "6d0f3c1e-0000-4000-8000-000000000002"


@cache
def authority(job_uid: str) -> Authority:
    """The authority of the job."""
    return make_authority(job_uid, datetime.now(UTC), timedelta(days=1))


@cache
def credentials(role: Role, name: str, job_uid: str = JOB_UID) -> Credentials:
    """Credentials of a process of the job, valid now."""
    return authority(job_uid).issue(Identity(job_uid, role, name), datetime.now(UTC), timedelta(hours=1))


@cache
def expired_credentials(role: Role, name: str) -> Credentials:
    """Credentials of the right job, valid until an hour ago."""
    return authority(JOB_UID).issue(
        Identity(JOB_UID, role, name), datetime.now(UTC) - timedelta(hours=2), timedelta(hours=1)
    )


@cache
def forged_credentials(role: Role, name: str) -> Credentials:
    """Credentials that name the right job, signed by another authority; `ca_pem` is the right one."""
    forger = make_authority(JOB_UID, datetime.now(UTC), timedelta(days=1))
    forged = forger.issue(Identity(JOB_UID, role, name), datetime.now(UTC), timedelta(hours=1))
    return Credentials(authority(JOB_UID).certificate_pem, forged.certificate_pem, forged.key_pem)


@cache
def strayed_credentials(role: Role, name: str) -> Credentials:
    """Credentials signed by the right authority that name another job."""
    own = authority(JOB_UID)
    misled = Authority(OTHER_JOB_UID, own.certificate, own.key)
    return misled.issue(Identity(OTHER_JOB_UID, role, name), datetime.now(UTC), timedelta(hours=1))
