"""What is the same for all pods of a job: the job as values, and the operator's configuration. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from heterotrain_api.contract import MountPath, Role
from heterotrain_api.v1alpha1 import HeteroTrainJobSpec, PodTemplate, WorkerGroup
from heterotrain_operator.job.names import service_name
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
