"""Makes the job's Secret: an authority and a certificate per process. The one place where keys are made."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from heterotrain_api.contract import CA_FILE, Annotation, Role
from heterotrain_api.names import PS_GROUP
from heterotrain_operator.job.certificates import CA_KEY, OPERATOR, certificate_key, private_key
from heterotrain_operator.job.decision import MakeCertificate, MakeSecret
from heterotrain_operator.job.names import job_labels, owner_reference
from heterotrain_rpc.certificates import Authority, Credentials, make_authority
from heterotrain_rpc.identity import Identity

VALID_FOR: Final = timedelta(days=3650)
"""Longer than any job: the Secret is never changed."""


class BrokenSecretError(ValueError):
    """The job's Secret lacks what the operator needs of it. The message names the key."""


def make_secret(make: MakeSecret, job: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """The whole manifest. Takes about half a millisecond per name, so it is called in a thread."""
    uid = job["metadata"]["uid"]
    authority = make_authority(uid, now, VALID_FOR)
    data = {CA_FILE: authority.certificate_pem, CA_KEY: authority.key_pem}
    identities = [Identity(uid, _role(process), process) for process in make.names]
    for identity in (*identities, Identity(uid, Role.OPERATOR, OPERATOR)):
        credentials = authority.issue(identity, now, VALID_FOR)
        data[certificate_key(identity.name)] = credentials.certificate_pem
        data[private_key(identity.name)] = credentials.key_pem
    manifest = _manifest(make.name, job, data)
    manifest["metadata"]["annotations"] = {Annotation.CERTIFIED: json.dumps(dict(make.replicas))}
    return manifest


def make_certificate(
    make: MakeCertificate, authority: Mapping[str, Any], job: Mapping[str, Any], now: datetime
) -> dict[str, Any]:
    """The Secret of a worker that was added later. `authority`: the job's. Raises `BrokenSecretError`."""
    data, uid = authority.get("data") or {}, job["metadata"]["uid"]
    try:
        signer = Authority.from_pem(uid, _content(data, CA_FILE), _content(data, CA_KEY))
    except ValueError as error:
        raise BrokenSecretError(f"the authority in Secret {make.authority} cannot be used: {error}") from None
    issued = signer.issue(Identity(uid, Role.WORKER, make.worker), now, VALID_FOR)
    content = {
        CA_FILE: signer.certificate_pem,
        certificate_key(make.worker): issued.certificate_pem,
        private_key(make.worker): issued.key_pem,
    }
    return _manifest(make.name, job, content)


def certified(metadata: Mapping[str, Any]) -> Mapping[str, int] | None:
    """For how many workers of each group a Secret of ours has certificates; `None`: one of an older release."""
    text = (metadata.get("annotations") or {}).get(Annotation.CERTIFIED)
    try:
        found = json.loads(text or "")
        return {str(group): int(count) for group, count in found.items()}
    except (ValueError, TypeError, AttributeError):
        return None


def _manifest(name: str, job: Mapping[str, Any], data: Mapping[str, bytes]) -> dict[str, Any]:
    job_name, namespace, uid = (job["metadata"][field] for field in ("name", "namespace", "uid"))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": job_labels(job_name, uid),
            "ownerReferences": [owner_reference(job_name, uid)],
        },
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(content).decode() for key, content in data.items()},
    }


def operator_credentials(secret: Mapping[str, Any]) -> Credentials:
    """The operator's own credentials in a job's Secret; raises `BrokenSecretError`."""
    data = secret.get("data") or {}
    return Credentials(
        ca_pem=_content(data, CA_FILE),
        certificate_pem=_content(data, certificate_key(OPERATOR)),
        key_pem=_content(data, private_key(OPERATOR)),
    )


def _content(data: Mapping[str, str], key: str) -> bytes:
    try:
        return base64.b64decode(data[key], validate=True)
    except (KeyError, ValueError):
        raise BrokenSecretError(f"{key} is missing in the Secret, or is no base64") from None


def _role(process: str) -> Role:
    # No worker group may be called so (`heterotrain_api.names`).
    return Role.PS if process.rpartition("-")[0] == PS_GROUP else Role.WORKER
