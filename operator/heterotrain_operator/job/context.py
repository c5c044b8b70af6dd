"""What is the same for all pods of a job: the job as values, and the operator's configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heterotrain_api.contract import MountPath, Role
from heterotrain_api.v1alpha1 import HeteroTrainJobSpec, PodTemplate, WorkerGroup
from heterotrain_operator.job.names import secret_name, service_name
from heterotrain_operator.job.settings import JobSettings
from heterotrain_operator.job.slots import Slot
from heterotrain_operator.job.trainer_config import Membership


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContext:
    """What is the same for all pods of a job. The spec has passed validation and `template.spec_faults`."""

    job: str
    namespace: str
    uid: str
    spec: HeteroTrainJobSpec
    settings: JobSettings
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Workers of groups that have another number now than the spec wants."""
    certified: Mapping[str, int] = field(default_factory=dict)
    """For how many workers of each group the job's Secret has certificates; others have Secrets of their own."""

    @property
    def service(self) -> str:
        """Name of the headless Service."""
        return service_name(self.job, self.uid)

    def secret(self, slot: Slot) -> str:
        """Name of the Secret with the certificate of the pod of `slot`."""
        shared = secret_name(self.job, self.uid)
        if slot.role is Role.PS or slot.index < self.certified.get(slot.group, slot.index + 1):
            return shared
        return f"{shared}-{slot.name}"

    def member(self, name: str) -> Membership:
        """What the process `name` is told about itself."""
        return Membership(job_name=self.job, job_uid=self.uid, name=name, certificates=MountPath.CERTIFICATES)

    def group(self, slot: Slot) -> WorkerGroup:
        """The group of a worker's slot."""
        return next(group for group in self.spec.workers if group.name == slot.group)

    def template(self, slot: Slot) -> PodTemplate | None:
        """The user's template for the pod of `slot`."""
        return self.spec.parameter_servers.template if slot.role is Role.PS else self.group(slot).template
