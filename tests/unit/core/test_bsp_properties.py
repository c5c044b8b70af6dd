"""What holds for BSP whatever happens in whatever order."""

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from builders_core import Fleet, make_plan, positions
from heterotrain_core.types import Commit, Plan, Share

NAMES = "abcd"


def finish(job: Fleet, rng: random.Random) -> None:
    """Workers finish in random order until nobody can go on."""
    while ready := job.ready():
        job.done(rng.choice(ready))


def commits_of(order: int, shares: Sequence[int], size: int, ahead: int) -> list[Commit]:
    rng = random.Random(order)
    plan = make_plan(**dict(zip(NAMES, shares, strict=False)))
    job = Fleet(plan, dataset_size=size, epochs=2, rounds_ahead=ahead)
    job.join(*rng.sample(range(len(shares)), len(shares)))
    finish(job, rng)
    assert job.policy.end_reason is not None
    return job.commits


@settings(max_examples=40)
@given(
    order=st.integers(0, 10**6),
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    size=st.integers(1, 60),
    ahead=st.integers(0, 3),
)
def test_commits_do_not_depend_on_the_order_of_arrival_or_on_rounds_ahead(
    order: int, shares: list[int], size: int, ahead: int
) -> None:
    assert commits_of(order, shares, size, ahead) == commits_of(0, shares, size, 1)


@settings(max_examples=60)
@given(shares=st.lists(st.integers(1, 500), min_size=1, max_size=4))
def test_weights_are_exactly_share_over_batch_and_the_scale_exactly_one(shares: list[int]) -> None:
    batch = sum(shares)
    job = Fleet(make_plan(**dict(zip(NAMES, shares, strict=False))), dataset_size=3 * batch)
    job.join()
    job.round()

    assert [c.weight for c in job.commits[0].contributions] == [n / batch for n in shares]
    assert job.commits[0].scale == 1.0


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["done"] * 6 + ["refuse", "leave", "join", "drain", "plan"]),
        st.integers(0, 3),
        st.lists(st.integers(0, 6), min_size=4, max_size=4),
    ),
    max_size=40,
)


def act(job: Fleet, action: str, worker: int, shares: list[int]) -> None:
    """One thing that may happen; nothing if it cannot happen now."""
    live, ready = worker in job.policy.live, worker in job.ready()
    if action in {"done", "refuse"} and ready:
        job.done(worker, refused=action == "refuse")
    elif action == "leave":
        job.leave(worker)
    elif action == "join" and not live and worker not in job.draining and worker not in job.training_ends:
        job.join(worker)
    elif action == "drain" and live:
        job.drain(worker)
    elif action == "plan":
        plan = Plan(job.policy.plan.generation + 1, {n: Share(s) for n, s in zip(NAMES, shares, strict=True)})
        first = job.policy.next_round
        job.plan(plan)
        assert job.policy.plan_round == first


@settings(max_examples=150)
@given(actions=ACTIONS, size=st.integers(1, 40), ahead=st.integers(0, 3), seed=st.integers(0, 99))
def test_no_deadlock_and_each_sample_once_through_leaves_drains_plans_and_refusals(
    actions: list[tuple[str, int, list[int]]], size: int, ahead: int, seed: int
) -> None:
    job = Fleet(make_plan(a=3, b=2, c=1, d=0), dataset_size=size, epochs=2, rounds_ahead=ahead)
    job.join()
    for action, worker, shares in actions:
        act(job, action, worker, shares)
        held = positions(r for grants in job.pending.values() for g in grants for r in g.ranges)
        assert len(held) == len(set(held)) <= job.cursor.outstanding
        assert set(held).isdisjoint(job.used())
    finish(job, random.Random(seed))

    if job.policy.end_reason is None:
        # Stuck only where nobody that is there has a share; with one worker that has one, the job goes on to its end.
        with_share = [w for w in job.policy.live if job.policy.plan.shares[NAMES[w]].samples]
        assert with_share == []
        job.leave(0)
        job.join(0)
        job.plan(Plan(job.policy.plan.generation + 1, {"a": Share(2)}))
        finish(job, random.Random(seed))

    assert job.policy.end_reason is not None
    assert job.used() == [(epoch, p) for epoch in range(2) for p in range(size)]
    assert job.policy.version == len(job.commits) == job.policy.next_round
    assert {(e.epoch, e.version) for e in job.epoch_ends} <= {
        (epoch, max(c.version for c in job.commits if any(r.epoch == epoch for r in c.ranges)) + 1)
        for epoch in range(2)
    }


@settings(max_examples=60)
@given(actions=ACTIONS, limit=st.integers(1, 12), ahead=st.integers(0, 3), when=st.integers(0, 40))
def test_a_stop_or_limit_ends_after_the_open_rounds_whatever_happens(
    actions: list[tuple[str, int, list[int]]], limit: int, ahead: int, when: int
) -> None:
    job = Fleet(make_plan(a=3, b=2, c=1, d=1), dataset_size=500, rounds_ahead=ahead, max_rounds=limit)
    job.join()
    for action, worker, shares in actions[:when]:
        act(job, action, worker, shares)
    job.stop("stop")
    opened = job.policy.next_round
    finish(job, random.Random(0))

    assert job.policy.end_reason is not None
    assert len(job.commits) == job.policy.next_round == opened <= limit
    assert set(job.training_ends) >= set(job.policy.live)
