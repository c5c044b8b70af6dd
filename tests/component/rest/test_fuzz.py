"""Random requests by the server's own description: no defect, no answer that is not described."""

from __future__ import annotations

import pytest

from support.rest_fuzz import fuzz


@pytest.mark.timeout(330)
def test_no_request_meets_a_defect_or_an_answer_that_is_not_described() -> None:
    code, output, log = fuzz(seconds=20)
    assert code == 0, output
    assert "passed" in output
    assert "Traceback" not in log
