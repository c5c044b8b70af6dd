"""The files of a local job: what its processes are given, each only its own, and where its results go."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from heterotrain_api.contract import MODEL_FILE, MODEL_MANIFEST_FILE, Role, ps_name
from heterotrain_api.trainer_config import TrainerConfig
from heterotrain_rpc.certificates import Authority, Credentials, make_authority
from heterotrain_rpc.identity import Identity

OPERATOR: Final = "operator"
"""Name in the certificate of runner and commands."""
CERTIFICATE_LIFETIME: Final = timedelta(days=30)
PICTURES: Final = ("throughput.png", "shares.png", "reported.png")
DECISIONS_FILE: Final = "decisions.jsonl"
REPORT_FILE: Final = "report.json"
RECORDING_FILE: Final = Path("logs") / "recording.jsonl"
_REPORT_FILES: Final = (REPORT_FILE, "report.md", DECISIONS_FILE, MODEL_FILE, MODEL_MANIFEST_FILE, *PICTURES)


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Paths below the job's own folder (`root`, private) and its report folder."""

    root: Path
    report: Path

    @property
    def manifest(self) -> Path:
        """The manifest as run, with overrides."""
        return self.root / "job.yaml"

    @property
    def config(self) -> Path:
        """The `TrainerConfig`."""
        return self.root / "config.json"

    @property
    def outcome(self) -> Path:
        """The coordinator's last word."""
        return self.root / "outcome.json"

    def certificates(self, name: str) -> Path:
        """Folder with the credentials of one process (`OPERATOR`: of runner and commands)."""
        return self.root / "certificates" / name

    @property
    def decisions(self) -> Path:
        """What the adaptation loop decided, a JSON object a line."""
        return self.report / DECISIONS_FILE

    def log(self, name: str) -> Path:
        """Standard output and error of one process."""
        return self.report / "logs" / f"{name}.log"

    def sample_log(self, name: str) -> Path:
        """The samples that one worker committed, if asked for."""
        return self.report / "logs" / f"{name}.samples"

    @property
    def recording(self) -> Path:
        """What the coordinator's policy was told, if asked for."""
        return self.report / RECORDING_FILE

    def prepare(self, document: Mapping[str, Any]) -> None:
        """Clear what an earlier job of this name left, and write the manifest.

        In the report folder, which is the user's, only files of names that we write are removed: a failed job must not
        show the figures or the model of the one before.
        """
        self.forget_credentials()
        for path in (self.config, self.outcome, *(self.report / name for name in _REPORT_FILES)):
            path.unlink(missing_ok=True)
        logs = self.report / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        for path in (*logs.glob("*.log"), *logs.glob("*.samples")):
            path.unlink()
        self.recording.unlink(missing_ok=True)
        self.manifest.write_text(yaml.safe_dump(dict(document), sort_keys=False))

    def write_credentials(self, uid: str, num_shards: int, workers: Iterable[str], now: datetime) -> Authority:
        """Make the job's authority and a certificate for each process. The authority's key is never written."""
        authority = make_authority(uid, now, CERTIFICATE_LIFETIME)
        members = [
            *((Role.PS, ps_name(index)) for index in range(num_shards)),
            *((Role.WORKER, name) for name in workers),
            (Role.OPERATOR, OPERATOR),
        ]
        for role, name in members:
            authority.issue(Identity(uid, role, name), now, CERTIFICATE_LIFETIME).write(self.certificates(name))
        return authority

    def issue(self, authority: Authority, uid: str, now: datetime, worker: str) -> None:
        """A certificate for one more worker."""
        identity = Identity(uid, Role.WORKER, worker)
        authority.issue(identity, now, CERTIFICATE_LIFETIME).write(self.certificates(worker))

    def operator_credentials(self) -> Credentials:
        """The credentials of runner and commands."""
        return Credentials.read(self.certificates(OPERATOR))

    def forget_credentials(self) -> None:
        """Remove all keys: the job is over, nobody needs them."""
        shutil.rmtree(self.root / "certificates", ignore_errors=True)

    def write_config(self, config: TrainerConfig) -> None:
        """Leave the coordinator's configuration."""
        self.config.write_text(config.model_dump_json(indent=2))
