"""Every kind of failure has one outcome."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_operator.errors import ApiError, ApiUnreachableError, Kind, Verdict, verdict


def status(code: int, reason: str = "Some", after: float | None = None) -> ApiError:
    return ApiError(code, reason, "words", after)


@pytest.mark.parametrize(
    ("error", "want"),
    [
        pytest.param(status(409, "Conflict"), Verdict(Kind.AGAIN, "Conflict", 0.5), id="somebody wrote in between"),
        pytest.param(status(429, "TooMany", 7), Verdict(Kind.AGAIN, "TooMany", 7), id="told to come back in 7 s"),
        pytest.param(status(429, "TooMany", 900), Verdict(Kind.AGAIN, "TooMany", 20), id="told to come back too late"),
        pytest.param(status(500, "InternalError"), Verdict(Kind.AGAIN, "InternalError", 0.5), id="a server error"),
        pytest.param(status(401, "Unauthorized"), Verdict(Kind.AGAIN, "Unauthorized", 0.5), id="an old token"),
        pytest.param(status(403, "Forbidden"), Verdict(Kind.NEVER, "Forbidden", 20), id="no right"),
        pytest.param(status(422, "Invalid"), Verdict(Kind.NEVER, "Invalid", 20), id="not valid"),
        pytest.param(ApiUnreachableError("x"), Verdict(Kind.AGAIN, "Unreachable", 0.5), id="no answer"),
        pytest.param(TimeoutError(), Verdict(Kind.AGAIN, "PassTimeout", 0.5), id="a pass too long"),
        pytest.param(KeyError("x"), Verdict(Kind.UNKNOWN, "KeyError", 0.5), id="a defect"),
    ],
)
def test_first_failures(error: Exception, want: Verdict) -> None:
    assert verdict(error, 1, 0.5, 20) == want


@given(st.integers(1, 10_000), st.floats(0, 1), st.sampled_from([status(503), status(404), ApiUnreachableError("x")]))
def test_a_job_is_tried_again_within_half_a_minute_and_never_at_once(
    failures: int, jitter: float, error: Exception
) -> None:
    assert 0.25 <= verdict(error, failures, jitter, 20).delay_seconds <= 30
