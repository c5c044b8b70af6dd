"""What is inside a pod: its containers, volumes and placement, and the user's template merged field by field. Pure.

Three layers, each over the one before: our defaults, the user's template, the typed fields of the job's spec. What a
job cannot do without (host name, identity, certificates) is set last; `heterotrain_operator.job.template` has refused
templates that want it otherwise. Defaults are those of Pod Security `restricted`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heterotrain_api.contract import CONFIG_FILE, Annotation, Container, Role
from heterotrain_operator.job import certificates
from heterotrain_operator.job.containers import (
    CERTIFICATES,
    CONFIG,
    CONTAINER_SECURITY,
    OUTPUT,
    SHARED_MEMORY,
    TEMPORARY,
    coordinator_container,
    ps_container,
    worker_container,
)
from heterotrain_operator.job.context import PodContext
from heterotrain_operator.job.merge import Document, merge, merge_lists
from heterotrain_operator.job.restart_rules import obstacle
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.slots import COORDINATOR_SLOT, Slot
from heterotrain_operator.job.template import pod_parts

LOST_NODE: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that Kubernetes puts on nodes that do not answer."""


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


def _hardened(entry: Mapping[str, Any]) -> Document:
    """A container of the user's, with what `restricted` demands of it unless it says otherwise."""
    return merge({"name": entry["name"], "securityContext": CONTAINER_SECURITY}, entry)


def _add_placement(spec: Document, context: PodContext, slot: Slot) -> None:
    """The typed fields about nodes and images, over those of the template."""
    secrets = [secret.to_document() for secret in context.spec.image_pull_secrets]
    if secrets:
        spec["imagePullSecrets"] = merge_lists(spec.get("imagePullSecrets", []), secrets, "name", whole=True)
    if slot.role is Role.WORKER:
        group = context.group(slot)
        if group.node_selector:
            spec["nodeSelector"] = spec.get("nodeSelector", {}) | group.node_selector
        if group.tolerations:
            spec["tolerations"] = spec.get("tolerations", []) + [t.to_document() for t in group.tolerations]
    if not obstacle(context.spec, slot):
        _let_lost_nodes_go(spec, context.settings.lost_node_seconds)


def _let_lost_nodes_go(spec: Document, seconds: int) -> None:
    """Kubernetes leaves pods on a node that does not answer for five minutes; what can be started again is not left.

    Who has given tolerations for such nodes knows better.
    """
    given = spec.get("tolerations", [])
    own = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in LOST_NODE
        if not any((toleration.get("key") or key) == key for toleration in given)
    ]
    spec["tolerations"] = given + own


def _volumes(context: PodContext, slot: Slot) -> list[Document]:
    settings = context.settings
    volume = context.spec.output.volume if slot == COORDINATOR_SLOT else None
    config: Document = {
        "path": CONFIG_FILE,
        "fieldRef": {"fieldPath": f"metadata.annotations['{Annotation.TRAINER_CONFIG}']"},
    }
    return [
        {
            "name": CERTIFICATES,
            "secret": {
                "secretName": context.secret(slot),
                "defaultMode": certificates.MODE,
                "items": certificates.items(slot.name),
            },
        },
        {"name": CONFIG, "downwardAPI": {"items": [config]}},
        {"name": OUTPUT, **({"emptyDir": {}} if volume is None else volume.to_document())},
        {"name": TEMPORARY, "emptyDir": {}},
        {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": settings.shared_memory}},
    ]
