"""Settings side by side: what crosses a process's border comes out as it went in."""

from __future__ import annotations

from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_api import v1alpha1
from heterotrain_core.staleness_watch import StalenessWatch, largest_momentum
from heterotrain_core.sync_settings import SyncSettings, from_fields, settings_of, to_fields
from heterotrain_core.synchronization import (
    BSP,
    Asp,
    Backup,
    Delay,
    Discount,
    DiscountKind,
    Dssp,
    Normalization,
    Ssp,
    Synchronization,
    SyncMode,
    describe,
)
from heterotrain_core.types import Commit, Contribution

DISCOUNTS = st.builds(Discount, st.sampled_from(DiscountKind), st.floats(0, 2))
COMMON = (DISCOUNTS, st.sampled_from(Normalization), st.floats(0, 1))
BOUNDS = st.none() | st.integers(0, 9)
MODES: st.SearchStrategy[Synchronization] = st.one_of(
    st.just(BSP),
    st.builds(Asp, *COMMON),
    st.builds(Ssp, BOUNDS, *COMMON),
    st.builds(Dssp, st.integers(0, 9), st.integers(0, 9), *COMMON),
    st.builds(Delay, st.none() | st.floats(0, 9), BOUNDS, *COMMON),
    st.builds(Backup, st.integers(0, 9)),
)


@given(MODES)
def test_a_mode_survives_the_way_through_a_message(value: Synchronization) -> None:
    # A protobuf message leaves zeros and empty words out.
    fields = {name: v for name, v in to_fields(settings_of(value)).items() if v or name in LIMITS}
    assert from_fields(fields).synchronization() == value


LIMITS = ("staleness_bound", "delay_window_seconds")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "Telepathy"}, "mode must be one of BSP, ASP, SSP, DSSP, Delay, Backup, not 'Telepathy'"),
        ({"mode": "ASP", "discount": "x"}, "discount must be one of None, Polynomial, StalenessAware, not 'x'"),
        ({"mode": "Delay", "staleness_bound": -1}, "staleness bound must be at least 0, not -1"),
        ({"mode": "ASP", "delay_compensation": -0.5}, "delay compensation must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_fields(fields).synchronization()


def test_a_mode_alone_has_the_defaults_of_the_manifest() -> None:
    found = [SyncSettings(mode=mode).synchronization() for mode in SyncMode]
    assert found == [BSP, Asp(), Ssp(3), Dssp(2, 8), Delay(0.05, 3), Backup(1)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (BSP, "BSP"),
        (Ssp(3), "SSP, at most 3 iterations ahead"),
        (Dssp(2, 8), "DSSP, 2 to 10 iterations ahead"),
        (Delay(0.05, None), "Delay, window 0.05 s, no bound"),
        (Delay(None, 3), "Delay, no window, at most 3 rounds stale"),
        (Backup(2), "Backup, 2 workers not waited for"),
    ],
)
def test_modes_in_words(value: Synchronization, words: str) -> None:
    assert describe(value) == words


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(SyncMode, v1alpha1.SyncMode), (Normalization, v1alpha1.Normalization)],
    ids=["modes", "normalisations"],
)
def test_the_resource_has_the_same_words(ours: type[StrEnum], theirs: type[StrEnum]) -> None:
    assert [x.value for x in ours] == [x.value for x in theirs]


def test_a_warning_comes_once_there_is_reason_and_again_when_staleness_has_doubled() -> None:
    watch, groups = StalenessWatch(), ['{"lr": 0.1, "momentum": 0.9}']
    warned = []
    for version in range(1, 200):
        tau = 1 if version < 50 else 2 if version < 100 else 3
        watch.note(Commit(version, (Contribution(0, version - tau, 1.0),), 1.0))
        if watch.advice(groups) is not None:
            warned.append(version)
        assert watch.advice(['{"lr": 0.1}']) is None
    assert warned == [20, 50]


def test_momentum_is_that_of_any_group() -> None:
    assert largest_momentum(['{"lr": 1}', '{"momentum": 0.5}', '{"momentum": 0.9}']) == 0.9
    assert largest_momentum(['{"betas": [0.9, 0.999]}']) == 0.0
