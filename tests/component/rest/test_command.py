"""``heterotrain info serve`` as a user has it: rule files, tokens, addresses, history, the end."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support.info_server import COMMAND, TOKEN, InfoServer, chain, eventually, info_server, processing, push_rule
from support.zygote import Zygote

FORKED_COMMAND = Path(__file__).parents[2] / "support" / "scripts" / "forked_command.py"

pytestmark = pytest.mark.timeout(240)  # the first to fork waits until PyTorch is loaded


@pytest.fixture
def refused(tmp_path: Path, zygote: Zygote) -> Callable[..., str]:
    """Runs a command that must be refused as a wrong input, in `tmp_path`; returns what it says."""

    def run(*arguments: str, home: Path = tmp_path) -> str:
        argv = [str(FORKED_COMMAND), str(tmp_path), "info", "serve", "--port", "0", *arguments]
        process = zygote.start(argv, {"HETEROTRAIN_HOME": str(home)}, tmp_path, "refused")
        assert process.wait(30) == 2, process.stderr.read_text()
        said = process.stderr.read_text()
        assert "Traceback" not in said
        return said

    return run


def write(folder: Path, *documents: object, name: str = "rules.yaml") -> str:
    (folder / name).write_text(yaml.safe_dump_all(documents))
    return name


RING = [
    processing("a", **chain("x", "y", {"operator": "mean"})),
    processing("b", **chain("y", "x", {"operator": "mean"})),
]
TYPO = push_rule("pushed", "x") | {"spec": {"sources": {}, "metrics": [{"name": "x"}]}}


@pytest.mark.parametrize(
    ("documents", "want"),
    [
        pytest.param([push_rule("fine", "x"), TYPO],
                     "rules.yaml: document 2: spec.sources: unknown field: did you mean source?",
                     id="file, document, field and remedy"),
        pytest.param([{"kind": "Rule"}],
                     "rules.yaml: document 1: kind: must be CollectionRule or ProcessingRule", id="kind"),
        pytest.param(RING, "rule b: the rules feed each other in a ring: b -> a -> b; take one input", id="ring"),
        pytest.param([push_rule("a", "x")] * 2, "CollectionRule a: is there twice: names must differ", id="twice"),
        pytest.param([processing("a", **chain("x", "y", {"operator": "expr", "expression": "q"}))],
                     "rules.yaml: document 1 (a): spec.chain[0].expression: unknown name 'q'", id="expression"),
    ],
)  # fmt: skip
def test_bad_rules_are_refused_before_anything_runs(
    tmp_path: Path, refused: Callable[..., str], documents: list[object], want: str
) -> None:
    assert want in refused("--rules", write(tmp_path, *documents))


def test_other_bad_options(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "broken.yaml").write_text("a: [")
    assert "broken.yaml: is not YAML" in refused("--rules", "broken.yaml")
    assert "missing.yaml: cannot be read" in refused("--rules", "missing.yaml")
    assert "--pack: there is no rule pack 'lokal'; there are cadvisor" in refused("--pack", "lokal")
    assert "--host must be a loopback address" in refused("--host", "0.0.0.0")
    assert "--token must have" in refused("--token", "two words")
    assert "--history .: must be a file" in refused("--history", ".")
    assert "--prometheus prom:9090: must be http:// or https://, a host" in refused("--prometheus", "prom:9090")
    assert "--token must not be empty" in refused("--token", "")
    first = write(tmp_path, push_rule("a", "x"), name="first.yaml")
    second = write(tmp_path, push_rule("a", "y"), name="second.yaml")
    assert "CollectionRule a: is there twice" in refused("--rules", first, "--rules", second)


def test_a_home_that_cannot_keep_the_token_is_told(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "home").write_text("")
    words = (
        f"{tmp_path}/home: the token cannot be kept there: File exists; give --token, or name another folder in HETERO"
    )
    assert words in refused(home=tmp_path / "home")


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*COMMAND, "info", "serve", "--port", str(port), "--token", TOKEN],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert f"cannot serve on 127.0.0.1 port {port}" in done.stderr


def test_a_token_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    with info_server(tmp_path, token=None) as server:
        file = tmp_path / "home" / f"information-{server.port}.token"
        assert str(file) in server.first_line
        assert file.stat().st_mode & 0o777 == 0o600
        token = file.read_text().strip()
        assert token not in server.first_line
        assert server.client.get("/v1/latest").status_code == 401
        assert server.client.get("/v1/latest", headers={"Authorization": f"Bearer {token}"}).status_code == 200
        server.end()
        assert not file.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_told(tmp_path: Path, number: int) -> None:
    with info_server(tmp_path, "--pack", "local") as server:
        eventually(lambda: server.get("/v1/entities", kind="node")["entities"])
        assert server.end(number) == "stopped\n"
        assert server.process.returncode == 0


def test_history_survives_a_restart_with_its_cursors(tmp_path: Path) -> None:
    rules = [
        push_rule("pushed", "load", ttl=600),
        processing(
            "hot",
            inputs={"load": {"metric": "load"}},
            chain=[{"operator": "threshold", "hi": 0.8, "lo": 0.6}],
            output={"metric": "state"},
            emit="both",
        ),
    ]
    history = ("--history", str(tmp_path / "history" / "information.db"))
    now = time.time()
    with info_server(tmp_path, *history, rules=rules) as server:
        server.push([{"entity": "node/a", "metric": "load", "time": now - 9 + i, "value": 0.9} for i in range(10)])
        before = [server.get("/v1/samples"), server.get("/v1/latest"), server.get("/v1/events")]
    with info_server(tmp_path, *history, rules=rules) as server:
        assert [server.get("/v1/samples"), server.get("/v1/latest"), server.get("/v1/events")] == before
        assert server.get("/v1/events", since=before[2]["cursor"])["events"] == []
        server.push([{"entity": "node/b", "metric": "load", "value": 0.9}])
        more = server.get("/v1/events", since=before[2]["cursor"])["events"]
        assert [one["entity"] for one in more] == ["node/b"]


def test_a_history_that_cannot_be_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [*COMMAND, "info", "serve", "--token", TOKEN, "--history", str(tmp_path / "file" / "x.db")],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "cannot serve" in done.stderr


def test_commands_of_files_run_and_those_of_requests_only_if_allowed(tmp_path: Path) -> None:
    rule = {
        "source": {"command": {"argv": ["echo", "load 7"]}},
        "metrics": [{"name": "load"}],
        "entity": [{"name": "node/me"}],
        "interval": 0.2,
    }
    manifest = push_rule("mine", "x") | {"spec": rule}
    with info_server(tmp_path, rules=[manifest]) as server:
        assert eventually(lambda: server.value("node/me", "load")) == 7
        assert server.client.post("/v1/rules/collect/other", json=rule).status_code == 422
    with info_server(tmp_path, "--allow-commands") as server:
        assert server.client.post("/v1/rules/collect/other", json=rule).status_code == 201
        assert eventually(lambda: server.value("node/me", "load")) == 7


def test_it_listens_on_ipv6_too(tmp_path: Path) -> None:
    server = InfoServer(tmp_path, "--host", "::1")
    assert "http://[::1]:" in server.first_line
    server.client.close()
    server.end()
