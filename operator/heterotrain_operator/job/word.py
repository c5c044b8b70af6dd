"""What the coordinator said last: the account that its container left, or what was heard before its pod went. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from heterotrain_api.contract import Container
from heterotrain_operator.job.observed import PodSeen
from heterotrain_operator.job.outcome import Outcome, State, left_account, outcome_of_state, read_outcome
from heterotrain_operator.job.slots import COORDINATOR_SLOT, container_end, is_gone
from heterotrain_operator.job.view import View


@dataclass(frozen=True, slots=True)
class Word:
    """What the coordinator left."""

    outcome: Outcome
    at: datetime | None
    pod: PodSeen | None
    """The pod that it ended in; `None`: all that is left of it is what was heard."""
    own: bool
    """Whether it is an account of its own, which ends the job; else its container merely ended."""


def last_word(view: View) -> Word | None:
    """The end of the coordinator's container; of a pod that is gone, what was last heard from it."""
    pods = view.pods.get(COORDINATOR_SLOT, ())
    pod = view.coordinator_pod or next((pod for pod in reversed(pods) if not pod.replaced), None)
    end = None if pod is None else container_end(pod, Container.COORDINATOR)
    if pod is not None and end is not None:
        outcome = read_outcome(end)
        if view.began or not is_gone(pod) or outcome.state is State.SUCCEEDED:
            return Word(outcome, end.finished_at, pod, own=outcome.state is State.SUCCEEDED or left_account(end))
    if view.coordinator_pod is None and view.began and view.state is not None and view.observed.training is not None:
        said = outcome_of_state(view.state)
        if said is not None:
            return Word(said, view.observed.training.received_at, None, own=True)
    return None
