"""``checkpoint.json``: what a checkpoint consists of, sealed by a checksum of its own. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from heterotrain_core.progress import Progress, from_document, to_document

MANIFEST_FILE: Final = "checkpoint.json"
FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"version-(\d{10})-term-(\d{4,})-([0-9a-z]{1,8})")
_FILE: Final = re.compile(r"shard-\d{4,}\.safetensors")


class Name(NamedTuple):
    """A checkpoint's folder, as its name says. Ordered as a job's timeline: what follows a restore is newer."""

    term: int
    version: int
    job: str
    """Short form of the job's UID (`short_uid`)."""

    def __str__(self) -> str:
        return f"version-{self.version:010d}-term-{self.term:04d}-{self.job}"

    @classmethod
    def parse(cls, text: str) -> Name | None:
        """The inverse of `str`; `None` for any other name."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(int(match[2]), int(match[1]), match[3])


def short_uid(uid: str) -> str:
    """Eight characters of a job's UID: enough to tell the jobs of one folder apart at a glance."""
    return (re.sub(r"[^0-9a-z]", "", uid.lower()) or "0")[:8]


def shard_file(shard: int) -> str:
    """File of one shard's part."""
    return f"shard-{shard:04d}.safetensors"


@dataclass(frozen=True, slots=True)
class PartFile:
    """One file, as it was written."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole checkpoint."""

    job_name: str
    job_uid: str
    term: int
    files: tuple[PartFile, ...]
    """Of all shards, in their order."""
    progress: Progress

    @property
    def name(self) -> Name:
        """What its folder is called."""
        return Name(self.term, self.progress.version, short_uid(self.job_uid))


def encode(manifest: Manifest) -> bytes:
    """The file's content."""
    content = {
        "formatVersion": FORMAT_VERSION,
        "job": {"name": manifest.job_name, "uid": manifest.job_uid},
        "term": manifest.term,
        "files": [{"name": f.name, "bytes": f.num_bytes, "sha256": f.sha256} for f in manifest.files],
        "progress": to_document(manifest.progress),
    }
    return json.dumps({"sha256": _seal(content), "content": content}, indent=1).encode() + b"\n"


def decode(text: bytes) -> Manifest:
    """The inverse of `encode`; raises `ValueError` that says what is wrong."""
    try:
        document = json.loads(text)
        content = document["content"]
        if _seal(content) != document["sha256"]:
            raise ValueError("its checksum is wrong")
        if content["formatVersion"] != FORMAT_VERSION:
            raise ValueError(f"its format version is {content['formatVersion']}, known here is {FORMAT_VERSION}")
        files = tuple(PartFile(str(f["name"]), int(f["bytes"]), str(f["sha256"])) for f in content["files"])
        manifest = Manifest(
            job_name=str(content["job"]["name"]),
            job_uid=str(content["job"]["uid"]),
            term=int(content["term"]),
            files=files,
            progress=from_document(content["progress"]),
        )
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not the manifest of a checkpoint: {type(error).__name__} {error}") from error
    if not files or any(not _FILE.fullmatch(f.name) for f in files):
        raise ValueError("it names files that no checkpoint has")
    if len({f.name for f in files}) != len(files):
        raise ValueError("it names a file twice")
    return manifest


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
