"""What a checkpoint keeps besides the tensors, and a training that goes on from it, without I/O."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders_checkpoint import MODEL, make_checkpoint, make_progress
from heterotrain.checkpoint.manifest import Name, decode, encode
from heterotrain_core import run_effects as out
from heterotrain_core import run_events as ev
from heterotrain_core.cursor import DataCursor
from heterotrain_core.progress import Progress, from_document, to_document
from heterotrain_core.run import TrainingRun
from heterotrain_core.run_values import CheckpointPolicy, Phase, RunReason
from heterotrain_core.synchronization import Asp, Backup, Bsp, Delay, Dssp, Ssp, Synchronization
from heterotrain_core.types import EpochEnd, Grant, SampleRange
from run_driver import FOUR, Driver, Script, make_config, make_manifest

MODES = [Bsp(), Asp(), Ssp(None), Dssp(1, 4), Delay(0.25, 5), Delay(None, None), Backup(2)]


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_progress_is_the_same_after_a_trip_through_json(mode: Synchronization) -> None:
    progress = make_progress(synchronization=mode)
    assert from_document(json.loads(json.dumps(to_document(progress)))) == progress


def test_a_manifest_is_the_same_after_its_way_to_the_disk() -> None:
    manifest = make_checkpoint(term=12)
    with pytest.raises(ValueError, match="it names files that no checkpoint has"):
        decode(encode(manifest))
    assert Name.parse(str(manifest.name)) == manifest.name
    assert [Name.parse(t) for t in ("", "version-5-term-1-a", "../version-0000000005-term-0001-a")] == [None] * 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"formatVersion": 2}, "format version 2 is not 1"),
        ({"version": -1}, "must not be negative"),
        ({"used": [[5, 3]]}, "are not inside the epoch"),
        ({"used": [[0, 21]]}, "are not inside the epoch"),
        ({"plan": None}, "not the progress of a training"),
        ({"model": {"tensors": [["x"]]}}, "not enough values"),
    ],
    ids=["another format", "a negative version", "a range turned round", "beyond the data", "no plan", "no model"],
)
def test_progress_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        from_document({**to_document(make_progress()), **change})


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["commit", "give back", "hold"])), max_size=12))
def test_a_cursor_goes_on_where_another_stood(steps: list[tuple[int, str]]) -> None:
    cursor = DataCursor(30, 2)
    for count, what in steps:
        ranges = cursor.take(min(count, cursor.remaining))
        if what == "commit":
            cursor.commit(ranges)
        elif what == "give back":
            cursor.give_back(ranges)
    again = DataCursor(30, 2, epoch=cursor.epoch, used=cursor.used)
    assert (again.committed, again.outstanding, again.used) == (cursor.committed, 0, cursor.used)
    free = again.take(again.remaining)
    used = [SampleRange(0, a, b) for a, b in cursor.used]
    assert sum(len(r) for r in (*free, *used)) == 30
    assert all(a.stop <= b.start for a, b in zip(sorted((*free, *used))[:-1], sorted((*free, *used))[1:], strict=True))


@pytest.mark.parametrize(
    ("progress", "ended"),
    [
        (make_progress(epoch=0, used=()), None),
        (make_progress(epoch=1, used=()), 0),
        (make_progress(epoch=1, used=((0, 3),)), None),
        (make_progress(epoch=1, used=((0, 20),)), 1),
    ],
    ids=["the beginning", "between epochs", "within one", "the end of the last"],
)
def test_the_end_of_an_epoch_is_told_again_where_the_checkpoint_is_one(progress: Progress, ended: int | None) -> None:
    assert progress.ended_epoch == ended


def test_a_checkpoint_is_taken_only_by_the_model_that_it_is_of() -> None:
    progress = make_progress()
    assert progress.mismatch(MODEL, 7) is None
    assert progress.mismatch(replace(MODEL, optimizer="SGD"), 7) == "optimizer SGD instead of AdamW"
    assert progress.mismatch(replace(MODEL, dataset_size=19), 7) == "a data set of 19 samples instead of 20"
    words = progress.mismatch(MODEL, 8)
    assert words is not None
    assert "set spec.seed to 7" in words
    assert make_progress(used=()).mismatch(MODEL, 8) is None


# --- a training that goes on ------------------------------------------------------------------------------------------


def resumed(config: Any, progress: Progress, epochs: int = 3, names: Any = None) -> Driver:
    driver = Driver(config, [Script(name, epochs) for name in (names or [w.name for w in config.workers])])
    driver.run = TrainingRun(config, driver.now, restored=progress)
    driver.published, driver.readable = progress.version, {progress.version}
    return driver


def samples_of(driver: Driver) -> list[tuple[int, str, tuple[SampleRange, ...]]]:
    """Who used what in which round."""
    return sorted((g.iteration, name, g.ranges) for name, s in driver.scripts.items() for g in s.grants)


@pytest.mark.parametrize("at", range(9), ids=lambda at: f"version {at}")
def test_a_training_in_two_parts_gives_out_the_same_samples_as_in_one(at: int) -> None:
    config = make_config(FOUR)
    whole = Driver(config)
    whole.start()
    first = Driver(config, [Script(n, silent_from=at) for n in FOUR])
    first.start()
    first.tell(ev.CheckpointCommanded(1))
    (saved,) = first.of(out.SaveCheckpoint)
    progress = from_document(json.loads(json.dumps(to_document(saved.progress))))
    assert progress.version == at

    second = resumed(config, progress)
    second.start()
    assert (second.outcome.phase, second.outcome.reason) == (Phase.SUCCEEDED, RunReason.EPOCHS_COMPLETED)
    assert (second.outcome.rounds, second.outcome.samples) == (9, 60)
    before = [entry for entry in samples_of(first) if entry[0] < at]
    assert before + samples_of(second) == samples_of(whole)
    assert second.of(out.PublishInitial) == []
    steps = {(version, step) for s in whole.scripts.values() for kind, version, step in s.steps if kind == "Grant"}
    assert {(v, step) for s in second.scripts.values() for kind, v, step in s.steps if kind == "Grant"} <= steps


def test_scripts_pull_the_version_and_give_no_values() -> None:
    progress = make_progress(3, manifest=make_manifest(), used=((0, 8),), epoch=0, seed=0)
    second = resumed(make_config({"a-0": 8}), progress)
    second.start()
    sent = [e.message for e in second.of(out.Send)]
    assert out.ManifestAccepted(push_initial_values=False, version=3) in sent
    view = second.run.view(second.now)
    assert (view.checkpoint_version, view.phase) == (3, Phase.SUCCEEDED)


def test_other_workers_and_another_batch_use_what_is_left() -> None:
    progress = make_progress(5, manifest=make_manifest(), epoch=1, used=((0, 8), (12, 16)), seed=0)
    second = resumed(make_config({"x-0": 3, "x-1": 3}), progress)
    second.start()
    assert second.outcome.samples == 60
    first_epoch = [r for s in second.scripts.values() for g in s.grants for r in g.ranges if r.epoch == 1]
    assert sorted(p for r in first_epoch for p in range(r.start, r.stop)) == [*range(8, 12), *range(16, 20)]


def test_the_end_of_an_epoch_comes_first_where_the_checkpoint_is_one() -> None:
    second = resumed(make_config({"a-0": 8}), make_progress(3, manifest=make_manifest(), epoch=1, used=()))
    second.start()
    items = [e.message.item for e in second.of(out.Send) if isinstance(e.message, out.Work)]
    assert items[0] == EpochEnd(0, 0, 3)
    assert isinstance(items[1], Grant)


def test_a_training_that_was_over_ends_again_or_goes_on_for_more_epochs() -> None:
    over = make_progress(9, manifest=make_manifest(), epoch=2, used=((0, 20),))
    again = resumed(make_config({"a-0": 8}), over)
    again.start()
    assert (again.outcome.reason, again.outcome.rounds) == (RunReason.EPOCHS_COMPLETED, 9)
    more = resumed(make_config({"a-0": 8}), over, epochs=4)
    more.start()
    assert (more.outcome.rounds, more.outcome.samples) == (12, 80)


@pytest.mark.parametrize(
    ("progress", "epochs", "reason", "words"),
    [
        (make_progress(manifest=make_manifest(optimizer="Adam")), 3, RunReason.MODEL_MISMATCH, "optimizer SGD instead"),
        (make_progress(manifest=make_manifest(), epoch=3, seed=0), 3, RunReason.SCRIPTS_DIFFER, "now trains 3"),
        (make_progress(manifest=make_manifest()), 3, RunReason.MODEL_MISMATCH, "set spec.seed to 7"),
    ],
    ids=["another model", "fewer epochs", "another order of samples"],
)
def test_what_cannot_go_on_fails_by_name(progress: Progress, epochs: int, reason: RunReason, words: str) -> None:
    second = resumed(make_config({"a-0": 8}), progress, epochs)
    second.start()
    assert second.outcome.reason is reason
    assert words in second.outcome.message


def test_checkpoints_are_made_by_rounds_by_time_and_at_the_end() -> None:
    config = replace(make_config(FOUR), checkpoint=CheckpointPolicy(rounds=4, seconds=None))
    driver = Driver(config)
    driver.start()
    assert [s.progress.version for s in driver.of(out.SaveCheckpoint)] == [4, 8, 9]
    by_time = Driver(replace(config, checkpoint=CheckpointPolicy(None, 10.0)), [Script(n, silent_from=2) for n in FOUR])
    by_time.start()
    assert by_time.of(out.SaveCheckpoint) == []
    assert by_time.run.next_timer <= by_time.now + 10.0
    by_time.now += 11.0
    by_time.tell(*(ev.Heartbeat(n) for n in FOUR), ev.TimerFired())
    assert [s.progress.version for s in by_time.of(out.SaveCheckpoint)] == [2]


def test_never_two_are_written_at_once_and_the_next_one_follows() -> None:
    config = replace(make_config(FOUR), checkpoint=CheckpointPolicy(rounds=2, seconds=None))
    driver = Driver(config, [Script(n, silent_from=7) for n in FOUR])
    driver.hold_exports = True
    driver.start()
    assert [s.progress.version for s in driver.of(out.SaveCheckpoint)] == [2]
    driver.tell(ev.CheckpointFailed(2, "no space left on device"))
    assert [s.progress.version for s in driver.of(out.SaveCheckpoint)] == [2, 7]
    assert [e.reason for e in driver.run.view(driver.now).events if e.warning] == ["CheckpointFailed"]
