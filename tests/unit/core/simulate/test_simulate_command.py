"""``heterotrain simulate``: options, JSON, the oracles D-1 to D-3 through it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heterotrain_api.contract import ExitCode
from heterotrain_operator.cli import make_app
from heterotrain_operator.commands.errors import CommandError

runner = CliRunner()


def simulate(*options: str) -> str:
    result = runner.invoke(make_app(), ["simulate", *options])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def document(*options: str) -> dict[str, Any]:
    parsed = json.loads(simulate(*options, "--json"))
    assert isinstance(parsed, dict)
    return parsed


def workers(result: dict[str, Any], key: str) -> list[float]:
    return [w[key] for w in result["workers"]]


@pytest.mark.parametrize(
    ("bound", "want_iterations", "want_waiting"),
    [
        ("0", [6, 6, 6], [18, 12, 0]),
        ("1", [7, 7, 6], [17, 10, 0]),
        ("2", [8, 8, 6], [16, 8, 0]),
        ("3", [9, 9, 6], [15, 6, 0]),
        ("4", [10, 10, 6], [14, 4, 0]),
        ("8", [14, 12, 6], [10, 0, 0]),
        ("none", [24, 12, 6], [0, 0, 0]),
    ],
)
def test_d1(bound: str, want_iterations: list[int], want_waiting: list[float]) -> None:
    result = document("--step-times", "1,2,4", "--mode", "SSP", "--staleness-bound", bound, "--until", "24")

    assert workers(result, "iterations") == want_iterations
    assert workers(result, "waiting_seconds") == want_waiting
    assert result["gradients"] == sum(want_iterations)


def test_d1_start_log() -> None:
    result = document("--step-times", "1,2,4", "--mode", "SSP", "--staleness-bound", "1", "--until", "8", "--log")

    starts = [(e["seconds"], e["worker"], e["clock"]) for e in result["log"] if e["event"] == "start"]
    assert starts == [
        (0, "w0", 0), (0, "w1", 0), (0, "w2", 0), (1, "w0", 1), (2, "w1", 1), (4, "w0", 2), (4, "w1", 2), (4, "w2", 1),
        (8, "w0", 3), (8, "w1", 3), (8, "w2", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("bound", "want"), [("0", 24), ("3", 33), ("8", 48), ("none", 78)])
def test_d2(bound: str, want: int) -> None:
    result = document("--step-times", "1,1,1,4", "--mode", "SSP", "--staleness-bound", bound, "--until", "24")

    assert result["gradients"] == want


@pytest.mark.parametrize(
    ("times", "window", "bound", "rounds", "gradients", "largest", "idle"),
    [
        ("1,1,1,4", "none", "none", 10, 40, 0, [30, 30, 30, 0]),
        ("1,1,1,4", "0", "0", 10, 40, 0, [30, 30, 30, 0]),
        ("1,1,1,4", "0", "1", 20, 70, 1, [20, 20, 20, 0]),
        ("1,1,1,4", "0", "3", 40, 130, 3, [0, 0, 0, 0]),
        ("1,1,1,4", "0.5", "3", 30, 100, 2, [10, 10, 10, 0]),
        ("1,2,4", "0", "1", 20, 40, 1, [20, 20, 0]),
        ("1,2,4", "0", "3", 40, 70, 3, [0, 0, 0]),
        ("1,2,4", "1", "3", 20, 50, 1, [20, 0, 0]),
    ],
)
def test_d3(
    times: str, window: str, bound: str, rounds: int, gradients: int, largest: int, idle: list[float]
) -> None:  # fmt: skip
    result = document(
        "--step-times", times, "--mode", "Delay", "--delay-window", window, "--staleness-bound", bound, "--until", "40"
    )  # fmt: skip

    assert (result["rounds"], result["gradients"], result["largest_staleness"]) == (rounds, gradients, largest)
    assert sum(result["staleness_histogram"].values()) == gradients
    assert workers(result, "waiting_seconds") == idle


def test_d3_closings() -> None:
    result = document(
        "--step-times", "1,1,1,4", "--mode", "Delay", "--delay-window", "0", "--until", "4", "--log"
    )  # fmt: skip

    fast = {"w0": 0, "w1": 0, "w2": 0}
    assert [e for e in result["log"] if e["event"] == "close"] == [
        {"event": "close", "seconds": t, "version": t - 1, "staleness": fast if t < 4 else {**fast, "w3": 3}}
        for t in (1.0, 2.0, 3.0, 4.0)
    ]


def test_the_table_says_what_json_says() -> None:
    options = ("--step-times", "1,1,1,4", "--mode", "delay", "--delay-window", "0", "--until", "40")
    text = simulate(*options)

    lines = text.splitlines()
    assert lines[0] == "Delay, 4 workers, 40 s"
    assert lines[1] == "rounds 40, gradients 130, samples 130"
    assert lines[2] == "staleness: largest 3, mean 0.23; 0: 120  3: 10"
    assert [line.split() for line in lines[-2:]] == [["w2", "40", "0"], ["w3", "10", "0"]]
    logged = simulate("--step-times", "1", "--until", "1", "--log").splitlines()
    assert logged[-3:] == [
        "0  start w0  clock 0  version 0",
        "1  close 0: w0 (tau 0)",
        "1  start w0  clock 1  version 1",
    ]


def test_only_the_first_of_many_workers_are_in_the_table() -> None:
    lines = simulate("--step-times", "30:spread(1,2)", "--until", "2").splitlines()

    assert lines[-1].split() == ["…", "10", "more"]


def test_failures_joins_links_shares_and_epochs() -> None:
    result = document(
        "--step-times", "1,1", "--mode", "Backup", "--backup", "0", "--shares", "3,1", "--dataset-size", "17",
        "--epochs", "2", "--fail", "w1@1.5", "--join", "w1@7", "--lease", "2", "--link", "0.25,1000",
        "--model-bytes", "250", "--phases", "0,0.5",
    )  # fmt: skip

    assert (result["samples"], result["end_reason"]) == (34, "all epochs are over")
    assert result["workers"][1]["iterations"] >= 1


@pytest.mark.parametrize(
    ("content", "want_message"),
    [
        (b"[" * 100_000, "is not JSON that can be taken: maximum recursion depth exceeded"),
        (b"", "is not JSON that can be taken: Expecting value"),
        (b"\xff", "is not a text in UTF-8"),
        (b'{"a": [NaN]}', "numbers must be above 0 and finite, not nan"),
    ],
    ids=["nested without end", "empty", "no text", "not a number"],
)
def test_a_file_that_is_no_trace_is_told(content: bytes, want_message: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_bytes(content)
    with pytest.raises(CommandError, match=want_message):
        simulate("--trace", str(trace))


def test_a_trace_gives_names_and_times(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text('{"gpu-0": [1, 2], "cpu-0": 4}')
    result = document("--trace", str(trace), "--mode", "ASP", "--until", "12")

    assert result["workers"] == [
        {"name": "gpu-0", "iterations": 8, "waiting_seconds": 0.0},
        {"name": "cpu-0", "iterations": 3, "waiting_seconds": 0.0},
    ]


@pytest.mark.parametrize(
    ("options", "want_message"),
    [
        ("--until 3", "give one of --step-times"),
        ("--step-times 1,a", "cannot read 'a'"),
        ("--step-times 1 --mode BSP --staleness-bound 3", "nothing in mode BSP; it belongs to SSP, Delay"),
        ("--step-times 1 --mode SSP --delay-window 3", "--delay-window means nothing in mode SSP; it belongs to Delay"),
        ("--step-times 1 --mode SSP --staleness-bound x", "write a whole number from 0 to 100000, or none"),
        ("--step-times 1 --mode Delay --delay-window x", "write 0 to 3600 seconds, or none"),
        ("--step-times 1 --mode Delay --discount x", "write the exponent a"),
        ("--step-times 1 --mode Delay --normalization x", "choose target or arrived"),
        ("--step-times 1 --mode DSSP --dssp 3", "write two numbers separated by a comma"),
        ("--step-times 1 --mode DSSP --dssp 3,0.5", "0.5 must be a whole number"),
        ("--step-times 1 --shares 1,2", "--shares has 2 numbers for 1 workers"),
        ("--step-times 1 --shares 0", "--shares must be whole numbers from 1 to 1048576"),
        ("--step-times 1 --fail w0", "write an event as worker@seconds"),
        ("--step-times 1 --fail w7@3", "unknown worker w7"),
        ("--trace /nowhere.json", "--trace /nowhere.json: cannot be read: No such file or directory"),
        ("--trace /", "--trace /: cannot be read: Is a directory"),
        ("--times 1,1 --shares inf,1", "--shares must be whole numbers from 1 to 1048576, one a worker"),
        ("--times 1,1 --shares nan,1", "--shares must be whole numbers from 1 to 1048576, one a worker"),
        ("--times 1,1 --phases nan,1", "--phases must be at least 0 s and finite, one a worker"),
        ("--times 1,1 --mode backup --backup 2", "--backup 2: must be below the number of workers, 2"),
        (f"--times 1,1 --mode ssp --bound {'9' * 5000}", "write a whole number from 0 to 100000, or none"),
        ("--times 1,1 --mode dssp --dssp inf,1", "--dssp: inf must be a whole number from 0 to 100000"),
        ("--times 1,1 --mode dssp --dssp=", "--dssp : write two numbers separated by a comma"),
        ("--times 1 --mode backup", "--backup 1, as it is if not given: must be below the number of workers, 1"),
        ("--times 1,2 --mode ssp --discount 1e308", "discount exponent must be from 0 to 10, not 1e"),
        ("--times 1,2 --mode delay --window 3601", "--delay-window 3601: write 0 to 3600 seconds, or none"),
        ("--times 1e-300,1", "step times: must be at least 1e-09 s, not 1e-300"),
        ("--times 1,1 --epochs 2", "--epochs means nothing in an endless training: give --dataset-size too"),
        ("--times 1,1 --model-bytes 8", "--model-bytes mean nothing to links that take no time: give --link too"),
        ("--times 1,1 --lease 5", "--lease means nothing if nobody falls silent: give --fail too"),
    ],
)  # fmt: skip
def test_wrong_options_are_named_with_a_remedy(options: str, want_message: str) -> None:
    with pytest.raises(CommandError, match=want_message) as refusal:
        simulate(*options.split())
    assert refusal.value.code == ExitCode.INVALID


@pytest.mark.parametrize("end", ["--rounds=50", "--dataset-size=100"])
def test_a_simulation_ends_when_nobody_is_left(end: str) -> None:
    result = document("--step-times", "1,1", "--fail", "w0@5", "--fail", "w1@5", end)

    assert (result["end_reason"], result["seconds"]) == ("no worker is left", 20)


@pytest.mark.parametrize(
    ("content", "want_message"),
    [
        ('{"a": [1%s]}' % ("0" * 400), "a: int too large"),
        ('{"a": [1%s]}' % ("0" * 5000), "is not JSON that can be taken"),
        ('{"a": 1, "b": [1, NaN]}', "b: step times: numbers must be above 0 and finite, not nan"),
        ('{"a": [1, true]}', "a must have a list of seconds"),
        ('{"a": 1, "a": 2}', "it names a worker twice"),
        ('{"": 1}', "'' is no name of a worker"),
        ('{"\\u001b[2J": 1}', "is no name of a worker"),
    ],
    ids=["a huge number", "too many digits", "not a number", "a truth value", "a name twice", "no name", "escapes"],
)  # fmt: skip
def test_a_trace_with_a_wrong_entry_is_refused_by_file_and_entry(
    content: str, want_message: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(CommandError, match=re.escape(want_message)) as refusal:
        simulate("--trace", str(path))
    assert str(refusal.value).startswith(f"--trace {path}: ")
    assert refusal.value.code == ExitCode.INVALID


@pytest.mark.parametrize(
    ("options", "want_factors"),
    [
        ([], [1.0, 0.5]),
        (["--discount", "none"], [1.0, 1.0]),
        (["--discount", "0.5"], [1.0, 2**-0.5]),
        (["--discount", "staleness-aware"], [1.0, 1.0]),
    ],
)
def test_discounts_do_not_change_times(options: list[str], want_factors: list[float]) -> None:
    from heterotrain_core.synchronization import Delay, SyncMode
    from heterotrain_operator.commands.synchronization import SynchronizationOptions

    parsed = SynchronizationOptions(mode=SyncMode.DELAY, discount=options[1] if options else None).parse()
    assert isinstance(parsed, Delay)
    assert [parsed.discount.factor(tau) for tau in (0, 1)] == want_factors
    common = ("--step-times", "1,2", "--mode", "Delay", "--until", "9")
    assert document(*common, *options)["staleness_histogram"] == document(*common)["staleness_histogram"]
