import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterotrain_core.plan import PlanFault, check_plan, complete_plan, derive_plan, reachable_total
from heterotrain_core.types import Bounds, Plan, Share

BOUNDS = {"cpu-0": Bounds(2, 32), "cpu-1": Bounds(2, 32), "gpu-0": Bounds(4, 64)}
CURRENT = Plan(3, {"cpu-0": Share(12), "cpu-1": Share(20, micro_batch=10), "gpu-0": Share(32)}, "start")


def plan(generation: int = 4, **shares: int | Share) -> Plan:
    named = {name.replace("_", "-"): share for name, share in shares.items()}
    return Plan(generation, {name: s if isinstance(s, Share) else Share(s) for name, s in named.items()})


def check(proposed: Plan, live: tuple[str, ...] = ("cpu-0", "cpu-1", "gpu-0")) -> tuple[PlanFault, ...]:
    return check_plan(proposed, bounds=BOUNDS, grain=2, total=64, live=live, current_generation=3)


@pytest.mark.parametrize(
    ("proposed", "live", "want_faults"),
    [
        pytest.param(plan(cpu_0=14, cpu_1=18, gpu_0=32), ("cpu-0", "cpu-1", "gpu-0"), (), id="a good plan"),
        pytest.param(
            plan(3, cpu_0=14, cpu_1=18, gpu_0=32), ("cpu-0", "cpu-1", "gpu-0"),
            (PlanFault("", "generation 3 is not newer than 3, which is in force: "
                           "read the present plan and propose generation 4 or higher"),),
            id="an old generation",
        ),
        pytest.param(
            plan(cpu_0=14, cpu_1=18, gpu_0=30), ("cpu-0", "cpu-1", "gpu-0"),
            (PlanFault("", "the shares sum to 62 samples, the global batch is 64: add 2"),), id="too small a sum",
        ),
        pytest.param(
            plan(cpu_0=14, cpu_1=18, gpu_0=34), ("cpu-0", "cpu-1", "gpu-0"),
            (PlanFault("", "the shares sum to 66 samples, the global batch is 64: take 2 away"),), id="too large a sum",
        ),
        pytest.param(
            plan(cpu_0=14, gpu_0=32, tpu_0=18), ("cpu-0", "gpu-0"),
            (PlanFault("tpu-0", "unknown worker; the job's workers are cpu-0, cpu-1, gpu-0"),), id="an unknown worker",
        ),
        pytest.param(
            plan(cpu_0=32, gpu_0=32), ("cpu-0", "cpu-1", "gpu-0"),
            (PlanFault("cpu-1", "the worker has no share in the plan: every live worker needs one"),),
            id="a live worker is left out",
        ),
        pytest.param(
            plan(cpu_0=14, cpu_1=18, gpu_0=32), ("cpu-0", "gpu-0"),
            (PlanFault("cpu-1", "the worker is not there (left, lost or drained): leave it out of the plan"),),
            id="a worker that is gone has a share",
        ),
        pytest.param(
            plan(cpu_0=0, cpu_1=34, gpu_0=30), ("cpu-0", "cpu-1", "gpu-0"),
            (PlanFault("cpu-0", "share 0 is out of bounds: it must be between 2 and 32 samples"),
             PlanFault("cpu-1", "share 34 is out of bounds: it must be between 2 and 32 samples")),
            id="below and above the bounds",
        ),
        pytest.param(
            plan(cpu_0=13, cpu_1=31, gpu_0=20), ("cpu-0", "cpu-1", "gpu-0"),
            (PlanFault("cpu-0", "share 13 is off the grain: it must be the minimum 2 plus a multiple of 2, "
                                "such as 12 or 14"),
             PlanFault("cpu-1", "share 31 is off the grain: it must be the minimum 2 plus a multiple of 2, "
                                "such as 30 or 32")),
            id="off the grain",
        ),
        pytest.param(
            plan(cpu_0=14, cpu_1=18, gpu_0=Share(32, 0)), ("cpu-0", "cpu-1", "gpu-0"),
            (PlanFault("gpu-0", "micro-batch 0 is too small: it must be at least 1, or left out"),),
            id="no micro-batch",
        ),
    ],
)  # fmt: skip
def test_a_plan_is_refused_with_all_its_faults(
    proposed: Plan, live: tuple[str, ...], want_faults: tuple[PlanFault, ...]
) -> None:
    assert check(proposed, live) == want_faults


def test_several_faults_come_with_the_plans_own_first() -> None:
    faults = check(plan(1, tpu_0=1, cpu_0=99, gpu_0=32))

    assert [f.worker for f in faults] == ["", "", "cpu-0", "cpu-1", "tpu-0"]
    assert str(faults[2]) == "cpu-0: share 99 is out of bounds: it must be between 2 and 32 samples"
    assert str(faults[1]) == "the shares sum to 132 samples, the global batch is 64: take 68 away"


def test_a_partial_request_is_completed_from_the_present_plan() -> None:
    asked = {"cpu-0": Share(16), "cpu-1": Share(18), "gpu-0": Share(30, micro_batch=15)}

    assert complete_plan({}, CURRENT) == Plan(4, CURRENT.shares)
    assert complete_plan(asked, CURRENT, generation=9, reason="by hand") == Plan(
        9,
        {"cpu-0": Share(16), "cpu-1": Share(18, micro_batch=10), "gpu-0": Share(30, micro_batch=15)},
        "by hand",
    )


def test_a_requested_worker_that_is_unknown_stays_in_for_the_check() -> None:
    completed = complete_plan({"tpu-0": Share(1)}, CURRENT)

    assert [f.worker for f in check(completed)] == ["", "tpu-0"]


def test_the_share_of_a_lost_worker_goes_to_the_others_in_proportion() -> None:
    derived = derive_plan(CURRENT, "gpu-0", bounds={**BOUNDS, "cpu-1": Bounds(2, 64)}, total=64, grain=1)

    assert derived == Plan(
        4,
        {"cpu-0": Share(24), "cpu-1": Share(40, micro_batch=10)},
        "gpu-0 is out; its share goes to the others in proportion",
        derived=True,
    )


def test_where_the_bounds_leave_too_little_room_rounds_are_smaller_and_the_reason_says_so() -> None:
    derived = derive_plan(CURRENT, "gpu-0", bounds={**BOUNDS, "cpu-1": Bounds(3, 30)}, total=64, grain=2)

    assert derived == Plan(
        4,
        {"cpu-0": Share(32), "cpu-1": Share(29, micro_batch=10)},
        "gpu-0 is out; its share goes to the others in proportion; "
        "their bounds allow rounds of 61 samples instead of 64",
        derived=True,
    )


@pytest.mark.parametrize(
    ("current", "bounds", "total"),
    [
        pytest.param(Plan(1, {"cpu-0": Share(64)}), BOUNDS, 64, id="nobody is left"),
        pytest.param(
            CURRENT, {**BOUNDS, "gpu-0": Bounds(80, 90)}, 64, id="the minimums of the others exceed the batch"
        ),
    ],
)
def test_no_plan_can_be_derived(current: Plan, bounds: dict[str, Bounds], total: int) -> None:
    assert derive_plan(current, "cpu-0", bounds=bounds, total=total, grain=1) is None


def test_a_share_of_zero_stays_zero_while_others_have_room() -> None:
    current = Plan(1, {"a": Share(0), "b": Share(4), "c": Share(4)})
    bounds = {name: Bounds(0, 8) for name in "abc"}

    derived = derive_plan(current, "c", bounds=bounds, total=8, grain=1)
    overflowing = derive_plan(current, "c", bounds=bounds, total=10, grain=1)

    assert derived is not None
    assert overflowing is not None
    assert derived.shares == {"a": Share(0), "b": Share(8)}
    assert overflowing.shares == {"a": Share(2), "b": Share(8)}


@settings(max_examples=80)
@given(
    workers=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=6),
    total=st.integers(1, 120),
    grain=st.integers(1, 4),
    data=st.data(),
)
def test_a_derived_plan_passes_the_check_with_the_reachable_total(
    workers: list[tuple[int, int, int]], total: int, grain: int, data: st.DataObject
) -> None:
    bounds = {f"w-{i}": Bounds(low, low + room) for i, (low, room, _) in enumerate(workers)}
    current = Plan(7, {f"w-{i}": Share(share) for i, (_, _, share) in enumerate(workers)})
    lost = data.draw(st.sampled_from(sorted(bounds)))
    left = sorted(set(bounds) - {lost})

    derived = derive_plan(current, lost, bounds=bounds, total=total, grain=grain)
    reached = reachable_total([bounds[name] for name in left], total, grain)

    assert (derived is None) == (reached is None)
    if derived is not None and reached is not None:
        assert reached <= total
        assert check_plan(derived, bounds=bounds, grain=grain, total=reached, live=left, current_generation=7) == ()
