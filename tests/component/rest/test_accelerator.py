"""The cookbook's new accelerator: an exporter nobody knows, and rules; values for schedulers without a line of code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.info_server import chain, eventually, info_server

EXAMPLES = Path(__file__).parents[3] / "examples" / "information"
COOKBOOK = EXAMPLES.parents[1] / "docs" / "cookbook" / "new-accelerator.md"


class Exporter:
    """The example's exporter as a process; `port` 0: any free one."""

    def __init__(self, busy: str, port: int = 0) -> None:
        command = [sys.executable, str(EXAMPLES / "exporter.py"), "--port", str(port), "--busy", busy]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.split(":")[2].split("/")[0])

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)


def rules(url: str) -> list[dict[str, Any]]:
    """The example's rules, in more of a hurry."""
    documents = list(yaml.safe_load_all((EXAMPLES / "accelerator.yaml").read_text()))
    documents[0]["spec"] |= {"interval": 0.2, "ttl": 1.5}
    documents[0]["spec"]["source"]["endpoint"]["url"] = url
    return documents


def test_the_recipe_has_ten_lines_and_the_cookbook_shows_them() -> None:
    text = (EXAMPLES / "accelerator.yaml").read_text()
    recipe = text.split("---\n")[0]
    assert len(recipe.splitlines()) == 10
    shown = COOKBOOK.read_text()
    assert all(part.strip() in shown for part in text.split("---\n"))


def test_an_accelerator_nobody_knows_is_served_by_rules_alone(tmp_path: Path) -> None:
    with Exporter("35,98") as exporter, info_server(tmp_path, rules=rules(exporter.url)) as server:
        free = eventually(lambda: server.get("/v1/latest", metric="accelerator_free_hertz")["samples"])
        assert {one["entity"]: one["value"] for one in free} == {
            "accelerator/lab-1/0": pytest.approx(0.65 * 1400e6),
            "accelerator/lab-1/1": pytest.approx(0.02 * 1200e6),
        }
        labelled = server.get("/v1/latest", metric="accelerator_free_hertz", label="model=tpx-2")["samples"]
        assert [one["entity"] for one in labelled] == ["accelerator/lab-1/0"]
        assert server.get("/v1/entities", kind="accelerator", label="model=tpx-1|tpx-3")["entities"][0]["labels"] == {
            "model": "tpx-1"
        }
        together = 0.65 * 1400e6 + 0.02 * 1200e6
        assert eventually(lambda: server.value("node/lab-1", "node_training_speed")) == pytest.approx(together)
        eventually(lambda: server.value("accelerator/lab-1/1", "accelerator_full") == "HOT")
        assert server.value("accelerator/lab-1/0", "accelerator_full") == "OK"
        (event,) = server.get("/v1/events")["events"]
        assert (event["entity"], event["message"]) == ("accelerator/lab-1/1", "card 1 of lab-1 is HOT")

        rule = server.get("/v1/rules/process/tpx-free")
        rule["spec"] = chain("accelerator_clock_hertz", "accelerator_free_hertz", {"operator": "max"})
        assert server.client.put("/v1/rules/process/tpx-free", json=rule).json()["generation"] == 2
        eventually(lambda: server.value("accelerator/lab-1/1", "accelerator_free_hertz") == 1200e6)


def test_an_exporter_that_goes_away_leaves_nothing_that_looks_present(tmp_path: Path) -> None:
    with Exporter("50") as exporter, info_server(tmp_path, rules=rules(exporter.url)) as server:
        assert eventually(lambda: server.value("accelerator/lab-1/0", "accelerator_utilization")) == 0.5
        exporter.end()
        eventually(lambda: server.get("/v1/latest", entity="accelerator/*/*")["samples"] == [])
        status = server.get("/v1/rules/collect/tpx")["status"]
        assert (status["ready"], status["error"] != "") == ("False", True)
        with Exporter("75", exporter.port):
            eventually(lambda: server.value("accelerator/lab-1/0", "accelerator_utilization") == 0.75, seconds=40)
