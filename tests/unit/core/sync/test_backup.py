"""Backup workers: the first gradients count, late ones are dropped and their samples handed out again."""

from builders_sync import World
from heterotrain_core.bsp import EPOCHS_OVER
from heterotrain_core.synchronization import Backup
from heterotrain_core.types import Commit, Contribution, EpochEnd, Grant, SampleRange

A, B, C = range(3)


def world(backup: int = 1, size: int = 800) -> World:
    made = World(Backup(backup), [2, 2, 2], dataset_size=size)
    made.join()
    return made


def test_the_round_closes_with_the_first_gradients_and_the_late_ones_samples_go_first_again() -> None:
    job = world()
    job.done(C)

    assert job.done(A) == [
        Commit(
            0, (Contribution(A, 0, 0.5), Contribution(C, 0, 0.5)), 1.0, (SampleRange(0, 0, 2), SampleRange(0, 4, 6))
        ),
        Grant(A, 1, 1, (SampleRange(0, 2, 4),), None, 1),
        Grant(C, 1, 1, (SampleRange(0, 6, 8),), None, 1),
    ]  # fmt: skip


def test_a_late_gradient_is_dropped_and_its_worker_starts_afresh_on_the_present_version() -> None:
    job = world()
    job.done(C)
    job.done(A)

    assert job.done(B) == [Grant(B, 1, 1, (SampleRange(0, 8, 10),), None, 1)]
    job.done(B)
    commit = job.done(A)[0]
    assert isinstance(commit, Commit)
    assert commit.dropped == ((B, 0),)
    assert [c.worker for c in commit.contributions] == [A, B]
    assert job.policy.largest_staleness == 0


def test_what_a_worker_pushed_late_is_not_named_once_it_has_left() -> None:
    job = world()
    job.done(C)
    job.done(A)
    job.done(B)
    job.leave(B)
    job.done(A)
    job.done(C)

    assert [c.dropped for c in job.commits] == [(), ()]


def test_with_more_backup_workers_than_workers_every_gradient_closes_a_round() -> None:
    job = world(backup=5)

    assert isinstance(job.done(B)[0], Commit)
    assert isinstance(job.done(B)[0], Commit)


def test_at_the_end_of_an_epoch_whoever_is_late_comes_to_it_too() -> None:
    job = world(size=6)
    job.done(A)
    assert job.done(C)[1:] == [
        Grant(A, 1, 1, (SampleRange(0, 2, 3),), None, 1),
        Grant(C, 1, 1, (SampleRange(0, 3, 4),), None, 1),
    ]
    job.done(A)
    decisions = job.done(C)
    assert decisions[1:4] == [EpochEnd(w, 0, 2) for w in (A, B, C)]
    assert job.policy.end_reason == EPOCHS_OVER

    assert job.done(B) == []
    assert job.used == job.all_samples()


def test_another_number_of_backup_workers_counts_from_the_round_in_progress_on() -> None:
    job = world(backup=0)
    job.done(A)

    assert job.synchronize(Backup(2))[0] == Commit(0, (Contribution(A, 0, 1.0),), 1.0, (SampleRange(0, 0, 2),))
