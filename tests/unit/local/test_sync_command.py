"""``heterotrain sync``: changes that keep what is not given, and what is shown."""

from __future__ import annotations

from typing import Any

import pytest

from heterotrain_api.contract import ExitCode
from heterotrain_core.sync_settings import from_fields, settings_of, to_fields
from heterotrain_core.synchronization import (
    Asp,
    Backup,
    Delay,
    Discount,
    DiscountKind,
    Dssp,
    Ssp,
    Synchronization,
    SyncMode,
)
from heterotrain_operator.commands.connect import patience
from heterotrain_operator.commands.errors import CommandError
from heterotrain_operator.commands.sync import changed, lines, set_
from heterotrain_operator.commands.synchronization import SynchronizationOptions, change_of
from heterotrain_operator.job.sync_change import read_change
from heterotrain_rpc import control_pb2

DELAY = Delay(0.02, 8, Discount(), delay_compensation=0.1)


@pytest.mark.parametrize(
    ("now", "options", "want"),
    [
        (DELAY, {"staleness_bound": "1"}, Delay(0.02, 1, Discount(), delay_compensation=0.1)),
        (DELAY, {"staleness_bound": "none"}, Delay(0.02, None, Discount(), delay_compensation=0.1)),
        (DELAY, {"delay_window": "none"}, Delay(None, 8, Discount(), delay_compensation=0.1)),
        (DELAY, {"discount": "0.5"}, Delay(0.02, 8, Discount(DiscountKind.POLYNOMIAL, 0.5), delay_compensation=0.1)),
        (DELAY, {"mode": SyncMode.ASP}, Asp()),
        (DELAY, {"mode": SyncMode.SSP, "staleness_bound": "5"}, Ssp(5)),
        (Dssp(1, 1), {"dssp": "2,3"}, Dssp(2, 3)),
        (Backup(1), {"backup": 2}, Backup(2)),
    ],
    ids=["a bound", "no bound", "no window", "a discount", "another mode", "another mode with bound", "DSSP", "backup"],
)
def test_what_is_not_given_stays(now: Synchronization, options: dict[str, object], want: Synchronization) -> None:
    given = SynchronizationOptions(**({"mode": now.mode} | options))  # type: ignore[arg-type]
    assert changed(settings_of(now), given).synchronization() == want


def test_an_option_without_meaning_in_the_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="--delay-window means nothing in mode SSP; it belongs to Delay"):
        changed(settings_of(DELAY), SynchronizationOptions(mode=SyncMode.SSP, delay_window="1"))


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"mode": SyncMode.ASP}, {"mode": "ASP"}),
        ({"staleness_bound": "1"}, {"stalenessBound": 1}),
        ({"staleness_bound": "none"}, {"stalenessBound": "None"}),
        ({"delay_window": "0.02"}, {"delayWindowMilliseconds": 20}),
        ({"delay_window": "none"}, {"delayWindowMilliseconds": "None"}),
        ({"dssp": "2,3"}, {"dssp": {"lower": 2, "range": 3}}),
        ({"discount": "0.5"}, {"discount": "Polynomial", "discountExponent": 0.5}),
        ({"discount": "staleness-aware"}, {"discount": "StalenessAware"}),
        ({"normalization": "arrived", "backup": 2}, {"normalization": "Arrived", "backupWorkers": 2}),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_for_a_job_on_a_cluster_only_what_is_given_is_asked_for(options: Any, want: dict[str, object]) -> None:
    assert change_of(**options) == want
    assert read_change(want) == want, "the operator reads it"


def test_a_window_on_a_cluster_is_of_whole_milliseconds() -> None:
    with pytest.raises(ValueError, match=r"--delay-window 0\.0205: on a cluster write whole milliseconds"):
        change_of(delay_window="0.0205")


def state(wanted: Synchronization, mode: str, bound: int | None) -> control_pb2.SynchronizationState:
    message = control_pb2.Synchronization(**to_fields(settings_of(wanted)))  # type: ignore[arg-type]
    return control_pb2.SynchronizationState(
        wanted=message, mode=mode, bound_in_force=bound, largest_staleness=2, staleness={0: 5, 2: 1}
    )


@pytest.mark.parametrize(
    ("shown", "want"),
    [
        (state(Ssp(3), "SSP", 3), ["SSP, at most 3 iterations ahead"]),
        (
            state(Ssp(1), "SSP", 4),
            ["SSP, at most 1 iterations ahead", "bound in force: 4, until gradients beyond it are in"],
        ),
        (state(Asp(), "Delay", 3), ["ASP", "still Delay, until everything granted before is committed"]),
        (state(Asp(), "ASP", None), ["ASP"]),
    ],
    ids=["settled", "a lowered bound", "a mode to come", "no bound"],
)
def test_show(shown: control_pb2.SynchronizationState, want: list[str]) -> None:
    assert lines(shown) == [*want, "6 gradients, at most 2 versions stale (0: 5, 2: 1)"]


def test_a_change_of_nothing_is_refused_before_the_job_is_asked() -> None:
    with pytest.raises(CommandError, match="say what to change") as refusal:
        set_("no-such-job")
    assert refusal.value.code == ExitCode.INVALID


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, float("nan"), 86_401])
def test_a_wait_that_grpc_would_take_for_over_is_refused(seconds: float) -> None:
    with pytest.raises(CommandError, match=r"--timeout .*: write 1 to 86400 seconds"), patience("job", "it", seconds):
        raise AssertionError("nothing is asked")


@pytest.mark.parametrize("exponent", [10.5, 1e308, float("nan"), -1.0])
def test_no_exponent_makes_the_weight_of_a_gradient_vanish(exponent: float) -> None:
    with pytest.raises(ValueError, match="discount exponent must be from 0 to 10"):
        from_fields({"mode": "SSP", "discount": "Polynomial", "discount_exponent": exponent}).synchronization()
