"""Random requests to the watch stream; for ten minutes, and with a client that never reads: bench/rest_fuzz.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.info_server import info_server
from support.watch_fuzz import RULES, fuzz_watch


@pytest.mark.timeout(180)
async def test_no_request_of_a_stream_meets_a_defect(tmp_path: Path) -> None:
    with info_server(tmp_path, rules=RULES) as server:
        report = await fuzz_watch(server, seconds=5)
        alive = server.get("/healthz")
        log = server.end()
    assert report.faults == []
    assert alive == {"status": "ok"}
    assert "Traceback" not in log
    assert {200, 401, 422} <= set(report.statuses)
    assert report.refused >= 40, "more came at once than there may be"
    assert report.memory_after - report.memory_before < 100
