"""The containers that train: a worker's, a shard's, the coordinator's. Pure.

Three layers, each over the one before: our defaults, the user's template (`given`), the typed fields of the job's spec.
What a job cannot do without (names, commands, identity) is set last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heterotrain_api.contract import CONFIG_FILE, Container, Env, MountPath, Port
from heterotrain_api.v1alpha1 import Device, HeteroTrainJobSpec, Resources
from heterotrain_operator.job.context import PodContext
from heterotrain_operator.job.merge import Document, merge
from heterotrain_operator.job.names import coordinator_address
from heterotrain_operator.job.quantity import whole_cpus
from heterotrain_operator.job.slots import COORDINATOR_SLOT, Slot
from heterotrain_operator.job.template import VOLUME_PREFIX
from heterotrain_operator.job.trainer_config import (
    THREAD_VARIABLES,
    coordinator_environment,
    ps_environment,
    user_environment,
    worker_identity,
)

GPU: Final = "nvidia.com/gpu"
_GPU_VENDOR: Final = "nvidia.com/"
"""Slices of a GPU are resources of the same vendor: with one of them no whole GPU is asked for."""
TERMINATION_LOG: Final = "/dev/termination-log"

CERTIFICATES: Final = f"{VOLUME_PREFIX}certificates"
CONFIG: Final = f"{VOLUME_PREFIX}config"
OUTPUT: Final = f"{VOLUME_PREFIX}output"
SHARED_MEMORY: Final = f"{VOLUME_PREFIX}shm"
TEMPORARY: Final = f"{VOLUME_PREFIX}tmp"

CONTAINER_SECURITY: Final[Document] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}

_ENVIRONMENT: Final[list[Document]] = [
    # The last words of a process that is killed must not be lost in a buffer.
    {"name": "PYTHONUNBUFFERED", "value": "1"},
    # The only folder that can be written: caches of libraries go below the home folder.
    {"name": "HOME", "value": "/tmp"},  # noqa: S108
]


def worker_container(context: PodContext, slot: Slot, given: Mapping[str, Any]) -> Document:
    """The container that runs the user's script; `given`: what the template says of it."""
    spec, group = context.spec, context.group(slot)
    coordinator = coordinator_address(context.job, context.uid, context.namespace)
    identity = _variables(worker_identity(context.member(slot.name), group, coordinator=coordinator))
    defaults: Document = {
        **_container_defaults(Container.TRAINER),
        "env": identity + _metrics(Port.METRICS) + _ENVIRONMENT,
        "ports": [_port("metrics", Port.METRICS)],
        "volumeMounts": [
            _mount(CERTIFICATES, MountPath.CERTIFICATES, read_only=True),
            _mount(TEMPORARY, "/tmp"),  # noqa: S108  # a volume of the pod's own
            _mount(SHARED_MEMORY, "/dev/shm"),  # noqa: S108
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
        "env": identity + _metrics(Port.METRICS) + _ENVIRONMENT,
        "ports": [_port("shard", Port.SHARD), _port("tensor", Port.TENSOR), _port("metrics", Port.METRICS)],
        "readinessProbe": _probe(Port.SHARD),
        "volumeMounts": [
            _mount(CERTIFICATES, MountPath.CERTIFICATES, read_only=True),
            _mount(OUTPUT, MountPath.OUTPUT),
            _mount(TEMPORARY, "/tmp"),  # noqa: S108
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
        "env": identity + _metrics(Port.COORDINATOR_METRICS) + _ENVIRONMENT,
        # Names of ports differ within a pod.
        "ports": [_port("coordinator", Port.COORDINATOR), _port("job-metrics", Port.COORDINATOR_METRICS)],
        "readinessProbe": _probe(Port.COORDINATOR),
        "resources": {
            "requests": dict(settings.coordinator_requests),
            "limits": dict(settings.coordinator_limits),
        },
        "volumeMounts": [
            _mount(CERTIFICATES, MountPath.CERTIFICATES, read_only=True),
            _mount(CONFIG, MountPath.CONFIG, read_only=True),
            _mount(TEMPORARY, "/tmp"),  # noqa: S108
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


def _container_defaults(name: str) -> Document:
    return {
        "name": name,
        "securityContext": CONTAINER_SECURITY | {"readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _typed(spec: HeteroTrainJobSpec, resources: Resources) -> Document:
    """What the job's own fields say of a container."""
    fields: Document = {"resources": {kind: amounts for kind, amounts in resources.to_document().items() if amounts}}
    if spec.image_pull_policy is not None:
        fields["imagePullPolicy"] = spec.image_pull_policy.value
    return {name: value for name, value in fields.items() if value}


def _variables(environment: Mapping[str, str]) -> list[Document]:
    return [{"name": name, "value": value} for name, value in environment.items()]


def _metrics(port: int) -> list[Document]:
    return _variables({Env.METRICS: f"0.0.0.0:{port}"})


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
