"""Sources that do everything wrong, over real sockets (an hour in virtual time: unit/info/test_hostile_sources.py)."""

from __future__ import annotations

import pytest

from support.hostile_web import HostileWeb, endure


@pytest.mark.timeout(180)
async def test_hostile_sources_end_nothing_serve_nothing_wrong_and_are_counted() -> None:
    with HostileWeb() as web:
        report = await endure(web, seconds=6, patience=120)
    assert report.wrong == []
    assert report.miscounted() == []
    assert report.fresh["gone"] == 0
    assert report.unserved() == [], "right answers between hostile ones are served"
