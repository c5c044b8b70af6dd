"""A job's manifest: read from its file, changed by overrides, checked. What is wrong is told field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterotrain_api.v1alpha1 import HeteroTrainJob, HeteroTrainJobSpec, PodTemplate, Resources, WorkerGroup
from heterotrain_api.validation import Fault, InvalidManifestError, parse
from heterotrain_operator.local.overrides import OverrideError, apply_overrides, parse_override
from heterotrain_operator.text_file import TextError, read_text
from heterotrain_operator.yaml_documents import YamlError, load_documents


class ManifestError(ValueError):
    """A manifest that cannot be run; `faults` has every reason."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(map(str, faults)))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A valid job, and the document that it was read from (with overrides)."""

    job: HeteroTrainJob
    document: Mapping[str, Any]


def load_job(path: Path, overrides: Sequence[str] = ()) -> LoadedJob:
    """Read, change and check a manifest; raises `ManifestError`."""
    document = read_document(path)
    try:
        changes = [parse_override(text) for text in overrides]
        document = apply_overrides(document, changes, HeteroTrainJob.model_json_schema(by_alias=True))
    except OverrideError as error:
        raise ManifestError([Fault("--set", str(error).removeprefix("--set "))]) from None
    try:
        return LoadedJob(parse(document), document)
    except InvalidManifestError as error:
        raise ManifestError(error.faults) from None


def read_document(path: Path) -> dict[str, Any]:
    """Return the one mapping in a YAML file; raises `ManifestError`, with the file as the field."""
    field = str(path)
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise ManifestError([Fault(field, "there is no such file")]) from None
    except OSError as error:
        raise ManifestError([Fault(field, f"cannot be read: {error.strerror}")]) from None
    except TextError as error:
        raise ManifestError([Fault(field, str(error))]) from None
    try:
        documents = load_documents(text)
    except YamlError as error:
        raise ManifestError([Fault(field, f"is not YAML that can be taken: {error}")]) from None
    if len(documents) != 1:
        what = "holds no document" if not documents else f"holds {len(documents)} documents (separated by ---)"
        raise ManifestError([Fault(field, f"{what}; give a file with one HeteroTrainJob")])
    if not isinstance(documents[0], dict):
        raise ManifestError([Fault(field, "must be a mapping with apiVersion, kind, metadata and spec")])
    return documents[0]


def without_meaning_here(spec: HeteroTrainJobSpec) -> tuple[str, ...]:
    """Return the paths of the settings that a cluster would obey and one machine does not. Pure."""
    return tuple(_cluster_settings(spec))


def _cluster_settings(spec: HeteroTrainJobSpec) -> Iterator[str]:
    yield "image"
    if spec.image_pull_policy is not None:
        yield "imagePullPolicy"
    if spec.image_pull_secrets:
        yield "imagePullSecrets"
    servers = spec.parameter_servers
    yield from (f"parameterServers.{setting}" for setting in _pod_settings(servers.resources, servers.template))
    by_group = [tuple(_group_settings(group)) for group in spec.workers]
    for group, settings in zip(spec.workers, by_group, strict=True):
        shared = [setting for setting in settings if all(setting in others for others in by_group)]
        if group is spec.workers[0]:
            yield from (f"workers.*.{setting}" for setting in shared)
        yield from (f"workers.{group.name}.{setting}" for setting in settings if setting not in shared)
    if spec.output.volume is not None:
        yield "output.volume"


def _group_settings(group: WorkerGroup) -> Iterator[str]:
    if group.node_selector:
        yield "nodeSelector"
    if group.tolerations:
        yield "tolerations"
    yield from _pod_settings(group.resources, group.template)


def _pod_settings(resources: Resources, template: PodTemplate | None) -> Iterator[str]:
    if resources.requests:
        yield "resources.requests"
    yield from (f"resources.limits.{name}" for name in resources.limits if name != "memory")
    if template is not None:
        yield "template"
