from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.info_server import InfoServer, info_server, processing, push_rule


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InfoServer]:
    """One for all tests of a module: each uses metrics, entities and rules of its own."""
    rules = [
        push_rule("pushed", "x", "speed", "load", "short"),
        processing(
            "hot",
            inputs={"load": {"metric": "load"}},
            chain=[{"operator": "threshold", "hi": 0.8, "lo": 0.6}],
            output={"metric": "load_state"},
            emit="both",
        ),
    ]
    with info_server(tmp_path_factory.mktemp("server"), rules=rules) as made:
        yield made
