"""A change of mode finishes everything granted, then starts fresh."""

from builders_sync import World
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Ssp, SyncMode
from heterotrain_core.types import Commit, Grant

A, B, C = range(3)


def test_from_bsp_with_rounds_ahead_to_ssp_the_open_rounds_are_finished_first() -> None:
    job = World(Bsp(), [1, 1, 1], dataset_size=100, rounds_ahead=1)
    job.join()
    assert job.synchronize(Ssp(1)) == []
    assert (job.policy.synchronization, job.policy.synchronization_wanted) == (Bsp(), Ssp(1))
    assert (job.policy.bound_in_force, job.policy.bound_wanted) == (0, 1)
    for worker in (A, B, C, A, B):
        job.done(worker)

    decisions = job.done(C)
    assert isinstance(decisions[0], Commit)
    assert [(d.worker, d.version) for d in decisions[1:] if isinstance(d, Grant)] == [(A, 2), (B, 2), (C, 2)]
    assert job.policy.synchronization == Ssp(1)
    # Fresh clocks: two starts ahead, then blocked.
    assert [len(job.done(A)), len(job.done(A))] == [2, 1]


def test_from_ssp_to_bsp_those_blocked_stay_so_until_the_others_are_in() -> None:
    job = World(Ssp(1), [1, 1, 1], dataset_size=100)
    job.join()
    job.done(A)
    job.plan([2, 2, 2], Bsp())
    assert [len(job.done(w)) for w in (A, B)] == [1, 1]

    grants = [d for d in job.done(C) if isinstance(d, Grant)]
    assert [(g.worker, g.version, g.samples) for g in grants] == [(w, 4, 2) for w in (A, B, C)]


def test_from_delay_with_gradients_beyond_and_from_backup_with_late_workers() -> None:
    for mode in (Delay(0.0, 3), Backup(2)):
        job = World(mode, [1, 1, 1], dataset_size=100)
        job.join()
        for _ in range(3):
            job.done(A)
            job.tick()
        job.synchronize(Asp())
        assert job.done(A) == [] or not any(isinstance(d, Grant) for d in job.decisions[-1:])
        job.tick()
        assert job.policy.synchronization.mode is mode.mode
        job.done(B)
        job.tick()
        job.done(C)
        job.tick()
        assert job.policy.synchronization.mode is SyncMode.ASP
        assert job.ready() == [A, B, C]


def test_gradients_that_came_too_late_before_a_change_are_let_go_by_the_first_commit_after_it() -> None:
    job = World(Backup(2), [1, 1, 1], dataset_size=100)
    job.join()
    job.done(A)
    job.synchronize(Asp())
    job.done(A)
    for worker in (B, C):
        assert not any(isinstance(d, Commit) for d in job.done(worker))
    assert job.policy.synchronization.mode is SyncMode.ASP

    (first, *_) = (d for d in job.done(A) if isinstance(d, Commit))
    assert first.dropped == ((B, 0), (C, 0))
    assert not job.arrived, "the shards hold nothing that no commit names"


def test_a_gradient_that_came_too_late_is_not_named_once_its_worker_is_gone() -> None:
    job = World(Backup(2), [1, 1, 1], dataset_size=100)
    job.join()
    job.done(A)
    job.synchronize(Asp())
    for worker in (A, B, C):
        job.done(worker)
    job.leave(B)

    (first, *_) = (d for d in job.done(A) if isinstance(d, Commit))
    assert first.dropped == ((C, 0),)


def test_a_change_taken_back_before_it_took_place_goes_on_as_before() -> None:
    job = World(Ssp(3), [1, 1], dataset_size=100)
    job.join()
    job.synchronize(Bsp())
    assert len(job.done(A)) == 1

    assert [d.worker for d in job.synchronize(Ssp(2))] == [A]
    assert job.policy.synchronization == job.policy.synchronization_wanted == Ssp(2)


def test_a_stop_while_changing_ends_the_training() -> None:
    job = World(Ssp(3), [1, 1], dataset_size=100)
    job.join()
    job.synchronize(Bsp())
    job.stop()
    job.done(A)
    job.done(B)

    assert job.policy.end_reason == "asked to stop"
    assert job.policy.synchronization == Ssp(3)
