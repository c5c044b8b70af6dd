from __future__ import annotations

import pytest
import yaml

from heterotrain_api.validation import parse
from heterotrain_core.lab.setups import SETUPS
from heterotrain_operator.lab.conduct import rotated
from heterotrain_operator.lab.variants import (
    VARIANTS,
    VariantError,
    ddp_shares,
    equal_shares,
    manifest,
    parse_variants,
    proportional_shares,
)


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.kind == "job"])
def test_the_manifests_of_our_runs_are_valid_and_leave_shares_equal_at_first(name: str) -> None:
    made = manifest(VARIANTS[name], SETUPS["ladder"], batch=256, seed=3, seconds=72, command=["python", "x"])
    spec = parse(yaml.safe_load(yaml.safe_dump(made))).spec
    assert spec.workers[0].batch.initial is None
    assert (spec.adaptation.mode.value == "Apply") == name.startswith("adaptation")
    modes = {"asp": "ASP", "ssp": "SSP", "adaptation-ssp": "SSP"}
    assert spec.synchronization.mode.value == modes.get(name, "BSP")
    assert (spec.global_batch_size, spec.seed, spec.stop.seconds if spec.stop else None) == (256, 3, 72)


def test_whole_shares_sum_to_the_batch() -> None:
    assert equal_shares(10, 4) == (3, 3, 2, 2)
    assert proportional_shares(128, (40, 30, 20, 10)) in {(51, 38, 26, 13), (52, 39, 25, 12)}


def test_ddp_with_shares_by_hand_is_given_the_measured_speeds() -> None:
    assert ddp_shares(VARIANTS["ddp-equal"], 100, (40, 40, 10, 10)) == (25, 25, 25, 25)
    assert ddp_shares(VARIANTS["ddp-static"], 100, (40, 40, 10, 10)) == (40, 40, 10, 10)


def test_runs_are_chosen_by_name_in_the_order_given_once_each() -> None:
    assert [v.name for v in parse_variants("adaptation, ddp-equal,adaptation")] == ["adaptation", "ddp-equal"]
    assert [v.name for v in parse_variants(None)] == list(VARIANTS)


def test_an_unknown_run_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(VariantError, match="no run 'ddp'; there are: ddp-equal, ddp-static, bsp-equal"):
        parse_variants("ddp")


def test_each_pass_begins_with_another_run() -> None:
    three = parse_variants("asp,ssp,bsp-equal")
    assert [[v.name for v in rotated(three, by)] for by in (0, 1, 3)] == [
        ["asp", "ssp", "bsp-equal"],
        ["ssp", "bsp-equal", "asp"],
        ["asp", "ssp", "bsp-equal"],
    ]
