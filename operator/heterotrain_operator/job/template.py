"""A user's pod template: what in it would break a job is refused with its field, the rest is taken as it is. Pure.

The schema leaves the inside of a template open (see `heterotrain_api.v1alpha1.PodTemplate`), so this is where it is
first looked at. What is merely wrong for Kubernetes is left to the API server, whose words go into the status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from heterotrain_api.contract import GROUP, Container, MountPath, Role
from heterotrain_api.rules import RESERVED_ENV_PREFIX
from heterotrain_api.schema_check import Fault, join
from heterotrain_api.v1alpha1 import HeteroTrainJobSpec, PodTemplate
from heterotrain_operator.job.merge import KEYS, without_nulls
from heterotrain_operator.job.names import OWN_LABELS

VOLUME_PREFIX: Final = "heterotrain-"
"""Names of our own volumes."""

_LEFT_OUT: Final[Mapping[str, str]] = {
    "hostname": "must be left out: pods have their name in the job, by which the others find them",
    "subdomain": "must be left out: it is the job's own Service",
    "hostNetwork": "must be false or left out: the ports of a job's pods are fixed, on a node they would clash",
    "restartPolicy": "must be Never or left out: a process that starts again would not be the one that joined",
}
_HARMLESS: Final[Mapping[str, Any]] = {"hostNetwork": False, "restartPolicy": "Never"}

_LISTS: Final = ("containers", "initContainers", "volumes", "imagePullSecrets", "tolerations")
_OBJECTS: Final = ("securityContext", "nodeSelector", "affinity")
_CONTAINER_LISTS: Final = ("env", "volumeMounts")
_CONTAINER_OBJECTS: Final = ("securityContext", "resources")
_RESERVED_PATHS: Final = (MountPath.OURS, MountPath.OURS.removeprefix("/var"), "/dev/termination-log")


def pod_parts(template: PodTemplate | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata and spec of a template, without nulls; mount paths without a slash at their end."""
    if template is None:
        return {}, {}
    metadata, spec = without_nulls(template.metadata or {}), without_nulls(template.spec or {})
    for container in (*_maps(spec.get("containers")), *_maps(spec.get("initContainers"))):
        for mount in _maps(container.get("volumeMounts")):
            if isinstance(mount.get("mountPath"), str):
                mount["mountPath"] = mount["mountPath"].rstrip("/") or "/"
    return metadata, spec


def spec_faults(spec: HeteroTrainJobSpec) -> list[Fault]:
    """Everything in the job's templates that cannot be taken."""
    faults = list(template_faults(spec.parameter_servers.template, "spec.parameterServers.template", Role.PS))
    for index, group in enumerate(spec.workers):
        faults += template_faults(group.template, f"spec.workers[{index}].template", Role.WORKER)
    return faults


def template_faults(template: PodTemplate | None, path: str, role: Role) -> Iterator[Fault]:
    """What in one template cannot be taken."""
    metadata, spec = pod_parts(template)
    yield from _metadata_faults(metadata, join(path, "metadata"))
    where = join(path, "spec")
    shapes = list(_shape_faults(spec, where, _LISTS, _OBJECTS))
    if shapes:  # what follows relies on them
        yield from shapes
        return
    for field, message in _LEFT_OUT.items():
        if field in spec and spec[field] != _HARMLESS.get(field):
            yield Fault(join(where, field), message)
    for index, volume in enumerate(spec.get("volumes", ())):
        if str(volume["name"]).startswith(VOLUME_PREFIX):
            message = f"must not begin with {VOLUME_PREFIX}: such volumes are the operator's own"
            yield Fault(f"{where}.volumes[{index}].name", message)
    yield from _containers_faults(spec, where, role)


def _metadata_faults(metadata: Mapping[str, Any], path: str) -> Iterator[Fault]:
    for field, value in metadata.items():
        if field not in ("labels", "annotations"):
            yield Fault(join(path, field), "must be left out: only labels and annotations can be given")
        elif not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
            yield Fault(join(path, field), "must be an object of strings (key: value)")
        else:
            for key in value:
                if key.startswith(f"{GROUP}/") or (field == "labels" and key in OWN_LABELS):
                    yield Fault(f"{path}.{field}.{key}", "must be left out: it is set by the operator")


def _containers_faults(spec: Mapping[str, Any], path: str, role: Role) -> Iterator[Fault]:
    own = {Container.TRAINER} if role is Role.WORKER else {Container.TRAINER, Container.COORDINATOR}
    for field in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(field, ())):
            where, name = f"{path}.{field}[{index}]", container["name"]
            ours = field == "containers" and name in own
            shapes = list(_shape_faults(container, where, _CONTAINER_LISTS, _CONTAINER_OBJECTS))
            yield from shapes
            if name in (Container.TRAINER, Container.COORDINATOR) and not ours:
                yield Fault(f"{where}.name", f"must not be {name} here: a container of that name is the operator's own")
            if not shapes:
                yield from _mount_faults(container, where)
            if ours and not shapes:
                yield from _own_container_faults(container, where, role)


def _own_container_faults(container: Mapping[str, Any], path: str, role: Role) -> Iterator[Fault]:
    """What cannot be changed of the containers that train."""
    if role is Role.WORKER:
        fixed = {"command": "spec.command", "args": "spec.args", "image": "spec.image"}
        for field, instead in fixed.items():
            if field in container:
                yield Fault(join(path, field), f"must be left out: {instead} says it, for all workers")
    else:
        for field in ("command", "args"):
            if field in container:
                yield Fault(join(path, field), "must be left out: parameter servers run the operator's own program")
    if "terminationMessagePath" in container:
        yield Fault(join(path, "terminationMessagePath"), "must be left out: the operator reads the outcome there")
    for index, variable in enumerate(container.get("env", ())):
        if str(variable["name"]).startswith(RESERVED_ENV_PREFIX):
            message = f"must not begin with {RESERVED_ENV_PREFIX}: such variables are the job's own settings"
            yield Fault(f"{path}.env[{index}].name", message)
    resources = container.get("resources", {})
    for field in ("limits", "requests"):
        if not isinstance(resources.get(field, {}), Mapping):
            yield Fault(f"{path}.resources.{field}", "must be an object (resource: amount)")


def _mount_faults(container: Mapping[str, Any], path: str) -> Iterator[Fault]:
    for index, mount in enumerate(container.get("volumeMounts", ())):
        where = str(mount["mountPath"])
        reserved = any(_overlap(where, ours) for ours in _RESERVED_PATHS)
        if reserved or (where == MountPath.OUTPUT and container["name"] == Container.TRAINER):
            message = f"must not be {where}: the operator's own files are there; choose another folder"
            yield Fault(f"{path}.volumeMounts[{index}].mountPath", message)
        if str(mount.get("name", "")).startswith(VOLUME_PREFIX):
            message = f"must not be {mount['name']}: the volume is the operator's own"
            yield Fault(f"{path}.volumeMounts[{index}].name", message)


def _overlap(one: str, other: str) -> bool:
    """Whether one path is, or lies below, the other: a mount hides what is below it."""
    return f"{one}/".replace("//", "/").startswith(f"{other}/") or f"{other}/".startswith(f"{one}/".replace("//", "/"))


def _shape_faults(
    value: Mapping[str, Any], path: str, lists: tuple[str, ...], objects: tuple[str, ...]
) -> Iterator[Fault]:
    """Fields that are merged must be lists of objects with their key, or objects."""
    for field in objects:
        if not isinstance(value.get(field, {}), Mapping):
            yield Fault(join(path, field), "must be an object (key: value)")
    for field in lists:
        entries = value.get(field, [])
        if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
            yield Fault(join(path, field), "must be a list of objects")
            continue
        key = KEYS.get(field)
        if key is None:
            continue
        seen: set[str] = set()
        for index, entry in enumerate(entries):
            name = entry.get(key)
            if not isinstance(name, str) or not name:
                yield Fault(f"{path}.{field}[{index}].{key}", "is required, as a string")
            elif name in seen:
                yield Fault(f"{path}.{field}[{index}].{key}", f"must be unique in the list, but {name} is there twice")
            else:
                seen.add(name)


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    """The entries of a list that are objects; nothing if it is no list."""
    yield from (entry for entry in value if isinstance(entry, dict)) if isinstance(value, list) else ()
