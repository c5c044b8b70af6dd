"""Writes a job's report into its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterotrain_operator.local.job_folder import REPORT_FILE
from heterotrain_operator.local.plots import NO_PLOTS, can_draw, draw_plots
from heterotrain_operator.local.report import Record, build, markdown


def write_report(record: Record, folder: Path) -> Mapping[str, Any]:
    """Write ``report.json``, ``report.md`` and the pictures; returns the content of the first."""
    report = build(record)
    # Written before the pictures, which take a second: who waits for the result need not wait for them.
    (folder / REPORT_FILE).write_text(json.dumps(report, indent=2, allow_nan=False, default=str) + "\n")
    pictures = draw_plots(record.history, folder)
    (folder / "report.md").write_text(markdown(report, pictures, without="" if can_draw() else NO_PLOTS))
    return report
