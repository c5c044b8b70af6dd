"""What information rules say of themselves: condition types and the closed list of reasons."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from heterotrain_api.conditions import REASONS, Reason, ReasonDoc


class RuleCondition(StrEnum):
    """The statements that every rule makes."""

    ACCEPTED = "Accepted"
    """The rule is valid and obeyed."""
    READY = "Ready"
    """The last run gave samples. Unknown before there were any to take up."""


class RuleReason(StrEnum):
    """Every reason of a rule's condition; `RULE_REASONS` explains each."""

    NOT_YET_KNOWN = "NotYetKnown"
    # Accepted.
    OBEYED = "Obeyed"
    INVALID_SPEC = "InvalidSpec"
    RULE_CONFLICT = "RuleConflict"
    # Ready.
    WAITING_FOR_SAMPLES = "WaitingForSamples"
    SAMPLES_STORED = "SamplesStored"
    SAMPLES_MISSING = "SamplesMissing"
    NO_SAMPLES = "NoSamples"
    SOURCE_UNREACHABLE = "SourceUnreachable"
    SOURCE_REFUSED = "SourceRefused"
    SOURCE_NOT_ALLOWED = "SourceNotAllowed"
    QUERY_REFUSED = "QueryRefused"
    ANSWER_UNUSABLE = "AnswerUnusable"
    RULE_FAILED = "RuleFailed"
    UNEXPECTED_ERROR = "UnexpectedError"


RULE_REASONS: Final[dict[RuleReason, ReasonDoc]] = {
    RuleReason.NOT_YET_KNOWN: REASONS[Reason.NOT_YET_KNOWN],
    RuleReason.OBEYED: ReasonDoc("The rule is valid and in force.", ""),
    RuleReason.INVALID_SPEC: REASONS[Reason.INVALID_SPEC],
    RuleReason.RULE_CONFLICT: ReasonDoc(
        "The rule cannot be obeyed beside the others: they would feed each other in a ring, two write one metric, or "
        "there are too many.",
        "Change the output or the inputs that the message names, or remove the other rule.",
    ),
    RuleReason.WAITING_FOR_SAMPLES: ReasonDoc(
        "Nothing has come yet that the rule could take up.",
        "Check that somebody pushes what the rule takes, or that another rule gives its inputs.",
    ),
    RuleReason.SAMPLES_STORED: ReasonDoc("The last run gave all that it was to give.", ""),
    RuleReason.SAMPLES_MISSING: ReasonDoc(
        "The last run gave samples, but not all: the message names the first that are missing.",
        "Correct the mapping, the bounds or the query that the message names.",
    ),
    RuleReason.NO_SAMPLES: ReasonDoc(
        "The source answered, and nothing in the answer could be taken: it is empty, or no series fits the rule.",
        "Compare the rule's match, entity, min and max with what the source gives; `process:dryrun` tries rules.",
    ),
    RuleReason.SOURCE_UNREACHABLE: ReasonDoc(
        "The source does not answer, or not in time; after several failures it is asked less often.",
        "Check the address, the network policies between the operator and the source, and the rule's timeout.",
    ),
    RuleReason.SOURCE_REFUSED: ReasonDoc(
        "The source answers with a status that is no success, a redirect, or a certificate that is not trusted.",
        "Check the address and the credentials; for the API server, the operator's role (docs/installation.md).",
    ),
    RuleReason.SOURCE_NOT_ALLOWED: ReasonDoc(
        "The operator's settings do not allow this source.",
        "Ask the admin: information.allowedHosts and information.prometheus.url of the chart; commands are off.",
    ),
    RuleReason.QUERY_REFUSED: ReasonDoc(
        "Prometheus refused the query, or its result is not of numbers.", "Try the query in Prometheus itself."
    ),
    RuleReason.ANSWER_UNUSABLE: ReasonDoc(
        "The answer is too large, or not of the form that the rule says.",
        "Check format and items of the source; select less.",
    ),
    RuleReason.RULE_FAILED: ReasonDoc(
        "The rule could not be applied to some entity; other rules go on.",
        "Correct the step that the message names.",
    ),
    RuleReason.UNEXPECTED_ERROR: ReasonDoc(
        "The operator has a defect; other rules go on.", "Read the operator's log and report it."
    ),
}
