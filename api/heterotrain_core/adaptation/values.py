"""What the loop is told and what it says. Immutable; times in seconds, shares and batches in samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from heterotrain_core.adaptation.escalate import Step
from heterotrain_core.synchronization import Synchronization
from heterotrain_core.telemetry import StepRecord
from heterotrain_core.types import Bounds


class Mode(StrEnum):
    """What becomes of a plan that the loop makes."""

    APPLY = "Apply"
    RECOMMEND = "Recommend"
    OFF = "Off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the loop acts."""

    mode: Mode = Mode.APPLY
    interval_seconds: float = 5.0
    """A window: the loop decides so often, and sooner when a speed changed or the membership did."""
    dead_band: float = 0.03
    """Least gain of step time, by the model, for which shares change; noise widens it (`guard.band`)."""
    cooldown_rounds: int = 10
    """Least rounds from one change of shares to the next, unless a speed or the membership changed."""
    windows: int = 2
    """Windows in a row in which the gain must show (K of algorithms.md B3)."""
    grain: int = 1
    global_batch: int = 1
    lost_seconds: float = 15.0
    """Without a step record while others have some: the worker's metrics count as lost."""
    equal_after_seconds: float = 300.0
    """Metrics lost for so long: what was adapted is no longer trusted, the start shares are taken again."""
    freeze_seconds: float = 120.0
    """For so long shares stay after an oscillation, or a change that made things worse."""
    escalation: tuple[Step, ...] = (Step.REBALANCE,)
    """What is tried against a worker that holds the others up, in this order."""
    staleness: tuple[int, int] | None = None
    """Range inside which the staleness bound may be moved; `None`: it stays."""
    no_replacing: str = "nobody can replace a worker here"
    """Why no worker can be replaced; empty: whoever carries decisions out can."""


@dataclass(frozen=True, slots=True)
class NodeFact:
    """What the information service knows of the machine below a worker."""

    name: str
    busy: float | None = None
    """Part of its processors in use by anybody, 0 to 1."""
    others_busy: float | None = None
    """Part in use by others than this job."""
    throttled: float | None = None
    """Part of the time in which the worker's CPU quota held it up."""
    capability_cores: float | None = None
    """Cores of it that a trainer can count on now."""
    training_speed: float | None = None
    """What a worker does there, relative to other nodes, by a rule of the user's; for the shares before any step."""


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """One worker as the coordinator tells it."""

    name: str
    live: bool
    """It takes part in rounds now."""
    share: int
    """Of the newest plan."""
    bounds: Bounds
    records: tuple[StepRecord, ...] = ()
    """Its last iterations, oldest first; those told before are passed over."""
    node: NodeFact | None = None
    micro_batch: int | None = None
    """Largest number of samples that it computes at once, by the newest plan; `None`: its whole share."""
    irreplaceable: str = ""
    """Why it cannot be replaced; empty: nothing of its own is against it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Who refused a plan and why; an empty `worker` is the coordinator."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a proposal. `refusals` is empty if it was agreed."""

    generation: int
    effective_round: int = 0
    refusals: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """A job at one moment."""

    training: bool
    """Rounds are being trained, and more are to come."""
    version: int
    generation: int
    """Of the newest plan."""
    effective_round: int
    workers: tuple[WorkerSeen, ...]
    start_shares: Mapping[str, int] = field(default_factory=dict)
    """What to fall back to when nothing is known."""
    answer: Answer | None = None
    """To the proposal that was sent last, once."""
    synchronization: Synchronization | None = None
    """How workers wait for each other, as last asked for; `None`: not known, the bound then stays."""


class Action(StrEnum):
    """What a decision does."""

    NONE = "None"
    """Nothing new to say."""
    KEEP = "Keep"
    PROPOSE = "Propose"
    RECOMMEND = "Recommend"
    SPLIT = "Split"
    """Proposes that a worker which does not bear its larger share computes it in parts of the size that it bore."""
    ROLL_BACK = "RollBack"
    """Proposes the shares from before a change that made things worse."""
    FALL_BACK = "FallBack"
    """Proposes the start shares, since the metrics are lost."""
    RELAX = "Relax"
    """Proposes another staleness bound, up or back down."""
    REPLACE = "Replace"
    """Asks for another process in a worker's place, elsewhere."""
    GIVE_UP = "GiveUp"
    """All that is declared was tried against a worker that holds the others up."""


class Finding(StrEnum):
    """What was detected in a worker (algorithms.md B3)."""

    SLOWER = "Slower"
    """Its speed dropped and stays low."""
    FASTER = "Faster"
    NOISY = "Noisy"
    """Its steps vary; the median is as it was."""
    STRAGGLER = "Straggler"
    """It finishes last although it has its smallest share."""
    BUILT_IN = "BuiltIn"
    """It was slow from the beginning: no fault, another machine."""
    LOST = "MetricsLost"
    CEILING = "Ceiling"
    """It could take more work, but its bound or its memory does not allow it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, and its cause in words."""

    worker: str
    kind: Finding
    words: str


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """One worker in a decision."""

    name: str
    applied: int
    """Share in force."""
    wanted: int
    """Share that the decision asks for."""
    fixed_seconds: float
    seconds_per_sample: float
    error: float
    """Standard error of the predicted time, relative."""
    steps: int
    """Records that the model rests on."""
    dropped: int
    """Records among them that were passed over as outliers."""
    seconds_applied: float
    """By the model, with the share in force."""
    seconds_wanted: float
    knots: tuple[tuple[int, float], ...] = ()
    """Where no line fits its computing: measured shares next to that in force, and their seconds."""
    spread: float = 0.0
    """Standard deviation of its single steps against those of others, relative."""
    limit: str = ""
    """What holds the share: ``maximum``, ``memory``, ``trust``, ``too few records``, …; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan for the coordinator, fenced by its generation."""

    generation: int
    shares: Mapping[str, int]
    reason: str
    synchronization: Synchronization | None = None
    """Mode and bounds from this plan on; `None`: they stay."""
    micro_batches: Mapping[str, int] = field(default_factory=dict)
    """Workers that compute their share in parts from this plan on, and the size of a part; others stay as they are."""


@dataclass(frozen=True, slots=True)
class Verification:
    """A change that is in force, looked at afterwards."""

    generation: int
    predicted_seconds: float
    measured_seconds: float
    speed_before: float
    """Samples a second."""
    speed_after: float

    @property
    def error(self) -> float:
        """Of the prediction, relative to what was measured."""
        return abs(self.predicted_seconds - self.measured_seconds) / self.measured_seconds


@dataclass(frozen=True, slots=True)
class Decision:
    """What the loop decided, and all that is needed to explain it."""

    action: Action
    reason: str
    """One sentence for people."""
    time: float = 0.0
    version: int = 0
    generation: int = 0
    """Of the plan in force."""
    proposal: Proposal | None = None
    workers: tuple[WorkerPlan, ...] = ()
    found: tuple[Found, ...] = ()
    gain: float = 0.0
    """Present over planned step time, less 1, by the model."""
    band: float = 0.0
    """What the gain is held against."""
    predicted_seconds: float = 0.0
    """Step time with the wanted shares."""
    present_seconds: float = 0.0
    """Step time with the shares in force, by the model."""
    measured_seconds: float = 0.0
    """Median step time of the newest rounds with them."""
    verified: Verification | None = None
    replace: str = ""
    """Worker that is to be replaced."""
    escalation: str = ""
    """Where the escalation stands, while a worker holds the others up."""
    advice: str = ""
    """What the loop cannot do by itself: a worker without which it would be faster, a ceiling to raise."""
