"""What is inside a pod: our containers, and the user's template merged field by field. Pure.

Three layers, each over the one before: our defaults, the user's template, the typed fields of the job's spec. What a
job cannot do without (names, commands, identity, certificates) is set last; `heterotrain_operator.job.template` has
refused templates that want it otherwise. Defaults are those of Pod Security `restricted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from heterotrain_api.contract import CONFIG_FILE, Annotation, Container, MountPath, Port, Role
from heterotrain_api.v1alpha1 import Device, HeteroTrainJobSpec, PodTemplate, Resources, WorkerGroup
from heterotrain_operator.job import certificates
from heterotrain_operator.job.merge import Document, merge, merge_lists
from heterotrain_operator.job.names import coordinator_address, secret_name, service_name
from heterotrain_operator.job.quantity import whole_cpus
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.slots import COORDINATOR_SLOT, Slot
from heterotrain_operator.job.template import VOLUME_PREFIX, pod_parts
from heterotrain_operator.job.trainer_config import (
    THREAD_VARIABLES,
    Membership,
    coordinator_environment,
    ps_environment,
    user_environment,
    worker_identity,
)

GPU: Final = "nvidia.com/gpu"
_GPU_VENDOR: Final = "nvidia.com/"
"""Slices of a GPU are resources of the same vendor: with one of them no whole GPU is asked for."""
TERMINATION_LOG: Final = "/dev/termination-log"

_CERTIFICATES: Final = f"{VOLUME_PREFIX}certificates"
_CONFIG: Final = f"{VOLUME_PREFIX}config"
_OUTPUT: Final = f"{VOLUME_PREFIX}output"
_SHARED_MEMORY: Final = f"{VOLUME_PREFIX}shm"
_TEMPORARY: Final = f"{VOLUME_PREFIX}tmp"

_CONTAINER_SECURITY: Final[Document] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """What is the same for all pods of a job. The spec has passed validation and `template.spec_faults`."""

    job: str
    namespace: str
    uid: str
    spec: HeteroTrainJobSpec
    settings: JobSettings

    @property
    def service(self) -> str:
        """Name of the headless Service."""
        return service_name(self.job, self.uid)

    def member(self, name: str) -> Membership:
        """What the process `name` is told about itself."""
        return Membership(job_name=self.job, job_uid=self.uid, name=name, certificates=MountPath.CERTIFICATES)

    def group(self, slot: Slot) -> WorkerGroup:
        """The group of a worker's slot."""
        return next(group for group in self.spec.workers if group.name == slot.group)

    def template(self, slot: Slot) -> PodTemplate | None:
        """The user's template for the pod of `slot`."""
        return self.spec.parameter_servers.template if slot.role is Role.PS else self.group(slot).template


def pod_spec(context: PodContext, slot: Slot) -> Document:
    """The spec of the pod that fills `slot`."""
    _, template = pod_parts(context.template(slot))
    given = {name: entry for entry in template.pop("containers", []) for name in [entry["name"]]}
    if slot.role is Role.WORKER:
        ours = [worker_container(context, slot, given.pop(Container.TRAINER, {}))]
    else:
        ours = [ps_container(context, slot, given.pop(Container.TRAINER, {}))]
        coordinator = given.pop(Container.COORDINATOR, {})
        if slot == COORDINATOR_SLOT:
            ours.append(coordinator_container(context, coordinator))
    spec = merge(_defaults(context.settings), template)
    spec["containers"] = ours + [_hardened(entry) for entry in given.values()]
    if "initContainers" in spec:
        spec["initContainers"] = [_hardened(entry) for entry in spec["initContainers"]]
    mounted = {mount["name"] for entry in ours for mount in entry["volumeMounts"]}
    own = [volume for volume in _volumes(context, slot) if volume["name"] in mounted]
    spec["volumes"] = own + spec.get("volumes", [])
    _add_placement(spec, context, slot)
    return spec | {"hostname": slot.name, "subdomain": context.service, "restartPolicy": "Never"}


def worker_container(context: PodContext, slot: Slot, given: Mapping[str, Any]) -> Document:
    """The container that runs the user's script; `given`: what the template says of it."""
    spec, group = context.spec, context.group(slot)
    coordinator = coordinator_address(context.job, context.uid, context.namespace)
    identity = _variables(worker_identity(context.member(slot.name), group, coordinator=coordinator))
    defaults: Document = {
        **_container_defaults(Container.TRAINER),
        "env": identity + _ENVIRONMENT,
        "volumeMounts": [
            _mount(_CERTIFICATES, MountPath.CERTIFICATES, read_only=True),
            _mount(_TEMPORARY, "/tmp"),  # noqa: S108  # a volume of the pod's own
            _mount(_SHARED_MEMORY, "/dev/shm"),  # noqa: S108
        ],
    }
    typed = _typed(spec, group.resources) | {"env": _variables(user_environment(spec, group))}
    container = merge(merge(defaults, given), typed)
    if group.device is Device.CUDA:
        _ask_for_gpu(container)
    _limit_threads(container)
    fixed: Document = {
        "name": Container.TRAINER,
        "image": spec.image,
        "command": list(spec.command),
        "env": identity,
    }
    return merge(container, fixed | ({"args": list(spec.args)} if spec.args else {}))


def ps_container(context: PodContext, slot: Slot, given: Mapping[str, Any]) -> Document:
    """The container of a parameter server's shard."""
    identity = _variables(ps_environment(context.member(slot.name), output=MountPath.OUTPUT))
    defaults: Document = {
        **_container_defaults(Container.TRAINER),
        "image": context.settings.trainer_image,
        "env": identity + _ENVIRONMENT,
        "ports": [_port("shard", Port.SHARD), _port("tensor", Port.TENSOR)],
        "readinessProbe": _probe(Port.SHARD),
        "volumeMounts": [
            _mount(_CERTIFICATES, MountPath.CERTIFICATES, read_only=True),
            _mount(_OUTPUT, MountPath.OUTPUT),
            _mount(_TEMPORARY, "/tmp"),  # noqa: S108
        ],
    }
    typed = _typed(context.spec, context.spec.parameter_servers.resources)
    container = merge(merge(defaults, given), typed)
    _limit_threads(container)
    ports = ["--host", "0.0.0.0", "--control-port", str(Port.SHARD), "--tensor-port", str(Port.TENSOR)]  # noqa: S104
    fixed: Document = {
        "name": Container.TRAINER,
        "command": ["python", "-m", "heterotrain.ps", *ports],
        "env": identity,
    }
    return merge(container, fixed)


def coordinator_container(context: PodContext, given: Mapping[str, Any]) -> Document:
    """The coordinator, beside shard 0; it has that pod's certificate."""
    settings = context.settings
    environment = coordinator_environment(
        context.member(COORDINATOR_SLOT.name),
        config=f"{MountPath.CONFIG}/{CONFIG_FILE}",
        termination_log=TERMINATION_LOG,
    )
    identity = _variables(environment)
    defaults: Document = {
        **_container_defaults(Container.COORDINATOR),
        "image": settings.trainer_image,
        "env": identity + _ENVIRONMENT,
        "ports": [_port("coordinator", Port.COORDINATOR)],
        "readinessProbe": _probe(Port.COORDINATOR),
        "resources": {
            "requests": dict(settings.coordinator_requests),
            "limits": dict(settings.coordinator_limits),
        },
        "volumeMounts": [
            _mount(_CERTIFICATES, MountPath.CERTIFICATES, read_only=True),
            _mount(_CONFIG, MountPath.CONFIG, read_only=True),
            _mount(_TEMPORARY, "/tmp"),  # noqa: S108
        ],
    }
    container = merge(merge(defaults, given), _typed(context.spec, Resources()))
    arguments = ["--host", "0.0.0.0", "--port", str(Port.COORDINATOR)]  # noqa: S104
    fixed: Document = {
        "name": Container.COORDINATOR,
        "command": ["python", "-m", "heterotrain.coordinator", *arguments],
        "env": identity,
        "terminationMessagePath": TERMINATION_LOG,
    }
    return merge(container, fixed)


def _defaults(settings: JobSettings) -> Document:
    security: Document = {
        "runAsNonRoot": True,
        "runAsUser": settings.run_as_user,
        "runAsGroup": settings.run_as_user,
        "fsGroup": settings.fs_group,
        # Changing the group of every file of a large volume at each start would take minutes.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.termination_grace_seconds,
        "securityContext": {name: value for name, value in security.items() if value is not None},
    }


def _container_defaults(name: str) -> Document:
    return {
        "name": name,
        "securityContext": _CONTAINER_SECURITY | {"readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _hardened(entry: Mapping[str, Any]) -> Document:
    """A container of the user's, with what `restricted` demands of it unless it says otherwise."""
    return merge({"name": entry["name"], "securityContext": _CONTAINER_SECURITY}, entry)


def _typed(spec: HeteroTrainJobSpec, resources: Resources) -> Document:
    """What the job's own fields say of a container."""
    fields: Document = {"resources": {kind: amounts for kind, amounts in resources.to_document().items() if amounts}}
    if spec.image_pull_policy is not None:
        fields["imagePullPolicy"] = spec.image_pull_policy.value
    return {name: value for name, value in fields.items() if value}


def _add_placement(spec: Document, context: PodContext, slot: Slot) -> None:
    """The typed fields about nodes and images, over those of the template."""
    secrets = [secret.to_document() for secret in context.spec.image_pull_secrets]
    if secrets:
        spec["imagePullSecrets"] = merge_lists(spec.get("imagePullSecrets", []), secrets, "name", whole=True)
    if slot.role is Role.PS:
        return
    group = context.group(slot)
    if group.node_selector:
        spec["nodeSelector"] = spec.get("nodeSelector", {}) | group.node_selector
    if group.tolerations:
        spec["tolerations"] = spec.get("tolerations", []) + [t.to_document() for t in group.tolerations]


def _volumes(context: PodContext, slot: Slot) -> list[Document]:
    settings = context.settings
    volume = context.spec.output.volume if slot == COORDINATOR_SLOT else None
    config: Document = {
        "path": CONFIG_FILE,
        "fieldRef": {"fieldPath": f"metadata.annotations['{Annotation.TRAINER_CONFIG}']"},
    }
    return [
        {
            "name": _CERTIFICATES,
            "secret": {
                "secretName": secret_name(context.job, context.uid),
                "defaultMode": certificates.MODE,
                "items": certificates.items(slot.name),
            },
        },
        {"name": _CONFIG, "downwardAPI": {"items": [config]}},
        {"name": _OUTPUT, **({"emptyDir": {}} if volume is None else volume.to_document())},
        {"name": _TEMPORARY, "emptyDir": {}},
        {"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}},
    ]


_ENVIRONMENT: Final[list[Document]] = [
    # The last words of a process that is killed must not be lost in a buffer.
    {"name": "PYTHONUNBUFFERED", "value": "1"},
    # The only folder that can be written: caches of libraries go below the home folder.
    {"name": "HOME", "value": "/tmp"},  # noqa: S108
]


def _variables(environment: Mapping[str, str]) -> list[Document]:
    return [{"name": name, "value": value} for name, value in environment.items()]


def _mount(volume: str, path: str, *, read_only: bool = False) -> Document:
    return {"name": volume, "mountPath": path} | ({"readOnly": True} if read_only else {})


def _port(name: str, number: int) -> Document:
    return {"name": name, "containerPort": number}


def _probe(port: int) -> Document:
    """The servers want client certificates, which a kubelet does not have: an open port is all that it can see."""
    return {"tcpSocket": {"port": port}, "periodSeconds": 5, "timeoutSeconds": 5}


def _ask_for_gpu(container: Document) -> None:
    limits = container.get("resources", {}).get("limits", {})
    if not any(name.startswith(_GPU_VENDOR) for name in limits):
        container["resources"] = merge(container.get("resources", {}), {"limits": {GPU: 1}})


def _limit_threads(container: Document) -> None:
    """As many threads as the limit keeps busy: with one per core of the node they would be throttled together."""
    cpu = container.get("resources", {}).get("limits", {}).get("cpu")
    if cpu is None:
        return
    try:
        threads = str(whole_cpus(cpu))
    except ValueError:  # of a template; the API server will say so
        return
    given = {variable["name"] for variable in container["env"]}
    container["env"] += [{"name": name, "value": threads} for name in THREAD_VARIABLES if name not in given]
