from __future__ import annotations

from pathlib import Path

from heterotrain_api.conditions import ConditionType, Reason
from heterotrain_api.reasons_page import page

PAGE = Path(__file__).parents[3] / "docs" / "reasons.md"


def test_the_page_is_fresh() -> None:
    want = page()
    assert PAGE.read_text() == want, "run `python -m heterotrain_api.reasons_page > docs/reasons.md`"


def test_every_reason_and_condition_is_explained_on_a_line_of_its_own() -> None:
    lines = PAGE.read_text().splitlines()
    for reason in Reason:
        rows = [line for line in lines if line.startswith(f"| `{reason.value}` |")]
        assert len(rows) == 1, reason
        assert all(len(cell.strip()) > 3 for cell in rows[0].strip("|").split("|")), reason
    for kind in ConditionType:
        assert any(line.startswith(f"- `{kind.value}`: ") for line in lines), kind
