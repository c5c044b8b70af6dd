"""A folder of checkpoints: whatever step is a writer's last, and whatever the disk does, the last good one loads."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders_checkpoint import UID, make_checkpoint
from heterotrain.checkpoint import disk as disk_module
from heterotrain.checkpoint.disk import Disk, Written
from heterotrain.checkpoint.folder import CheckpointFolder, UnusableError, find, verify
from heterotrain.checkpoint.manifest import MANIFEST_FILE, shard_file

PARTS = [[b"first part " * 40, b"more"], [b"second part " * 40]]
OTHER = "99999999-0000-4000-8000-000000000000"


class Killed(BaseException):
    """The writer is gone: no code of its runs any more."""


class Dying(Disk):
    """Lets the writer die before its step number `last`; what was not forced to the disk is lost in part."""

    def __init__(self, last: int, *, power_lost: bool = False) -> None:
        super().__init__(self._count)
        self._last = last
        self._power_lost = power_lost
        self.steps: list[tuple[str, str]] = []
        self._unforced: list[Path] = []

    def _count(self, step: str, path: Path) -> None:
        if len(self.steps) == self._last:
            self._lose()
            raise Killed
        self.steps.append((step, path.name))
        if step == "open":
            self._unforced.append(path)

    def _lose(self) -> None:
        for path in self._unforced if self._power_lost else ():
            if path.exists():
                content = path.read_bytes()
                path.write_bytes(content[: len(content) // 2])

    def write(self, path: Path, contents: object) -> Written:
        written = super().write(path, contents)  # type: ignore[arg-type]
        self._unforced.remove(path)
        return written


def filled(folder: Path, disk: Disk | None = None, *versions: int, keep: int = 2) -> CheckpointFolder:
    checkpoints = CheckpointFolder(folder, disk)
    for version in versions:
        checkpoints.write(make_checkpoint(version), PARTS)
        checkpoints.prune(UID, keep)
    return checkpoints


def version_of(folder: Path) -> int | None:
    found = CheckpointFolder(folder).newest(UID).checkpoint
    return None if found is None else found.manifest.progress.version


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_module, "PIECE_BYTES", 100)


def steps_of_a_save(folder: Path) -> list[tuple[str, str]]:
    """What a writer does for its third checkpoint, the first of which goes."""
    filled(folder, None, 1, 2)
    disk = Dying(-1)
    filled(folder, disk, 3)
    return disk.steps


@pytest.mark.parametrize("power_lost", [False, True], ids=["the process is killed", "the power fails"])
def test_whatever_step_is_the_last_a_good_checkpoint_loads(tmp_path: Path, power_lost: bool) -> None:
    steps = steps_of_a_save(tmp_path / "whole")
    assert len(steps) >= 25, steps
    renamed = steps.index(("rename", str(make_checkpoint(3).name)))
    for last in range(len(steps)):
        folder = tmp_path / str(last)
        filled(folder, None, 1, 2)
        with pytest.raises(Killed):
            filled(folder, Dying(last, power_lost=power_lost), 3)
        assert version_of(folder) == (3 if last > renamed else 2), steps[last]
        # The next writer clears up what the dead one left, and goes on.
        filled(folder, None, 4)
        assert version_of(folder) == 4
        assert sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("version-")) == []
        assert len(CheckpointFolder(folder).names()) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=["the disk is full", "the disk fails"])
def test_a_disk_that_refuses_a_step_costs_only_the_new_checkpoint(tmp_path: Path, code: int) -> None:
    count = len(steps_of_a_save(tmp_path / "whole"))
    refused = 0
    for last in range(count):
        folder = tmp_path / str(last)
        filled(folder, None, 1, 2)
        left = [last]

        def refuse(step: str, path: Path, left: list[int] = left) -> None:
            left[0] -= 1
            # Removing needs no space; a step is refused once, then the disk is as it was.
            if left[0] == -1 and step != "remove":
                raise OSError(code, "refused", str(path))

        try:
            filled(folder, Disk(refuse), 3)
        except OSError as error:
            refused += error.errno == code
        assert version_of(folder) in {2, 3}
        assert not list(folder.glob(".*.part"))
    assert refused > 15


def test_a_full_folder_keeps_the_newest_of_each_job(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for version in (1, 2, 3, 4):
        folder.write(make_checkpoint(version), PARTS)
    folder.write(make_checkpoint(9, uid=OTHER), PARTS)
    folder.prune(UID, keep=2)
    assert [(name.version, name.job) for name in folder.names()] == [(9, "99999999"), (4, "1f3a9c2b"), (3, "1f3a9c2b")]


def test_what_follows_a_restore_is_newer_than_what_was_lost_by_it(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for version, term in ((100, 1), (60, 2)):
        folder.write(make_checkpoint(version, term), PARTS)
    found = folder.newest(UID).checkpoint
    assert found is not None
    assert (found.manifest.term, found.manifest.progress.version) == (2, 60)


def test_a_checkpoint_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    first = folder.write(make_checkpoint(1), PARTS)
    assert folder.write(make_checkpoint(1), [[b"other"]]) == first
    (first.path / shard_file(1)).unlink()
    assert [f.num_bytes for f in folder.write(make_checkpoint(1), [[b"other"]]).manifest.files] == [5]


def linked(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def write(file: str, content: bytes) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / file).write_bytes(content)


def change(file: str, how: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / file).write_bytes(how((checkpoint / file).read_bytes()))


ESCAPING = b'{"sha256": "", "content": {"files": [{"name": "../../etc/passwd"}]}}'
FIRST, SECOND = shard_file(0), shard_file(1)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        pytest.param(change(FIRST, lambda c: c[:-1]), "443 bytes, it was written with 444", id="truncated"),
        pytest.param(change(FIRST, lambda c: b"\0" + c[1:]), "its checksum differs", id="one byte changed"),
        pytest.param(write(FIRST, b""), "has 0 bytes", id="empty"),
        pytest.param(lambda c: (c / SECOND).unlink(), "is missing", id="a file is missing"),
        pytest.param(lambda c: linked(c / SECOND), "is not a regular file", id="a link to elsewhere"),
        pytest.param(write(MANIFEST_FILE, b""), MANIFEST_FILE, id="an empty manifest"),
        pytest.param(write(MANIFEST_FILE, b"\x80\x04cos\nsystem\n."), MANIFEST_FILE, id="pickle in its place"),
        pytest.param(
            change(MANIFEST_FILE, lambda c: c.replace(b'"epoch": 1', b'"epoch": 2')),
            "its checksum is wrong",
            id="a number changed by hand",
        ),
        pytest.param(lambda c: (c / MANIFEST_FILE).unlink(), "is missing", id="no manifest"),
        pytest.param(write(MANIFEST_FILE, ESCAPING), "checksum is wrong", id="a path that leaves the folder"),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_with_a_report(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    filled(tmp_path, None, 1, 2)
    newest = tmp_path / str(make_checkpoint(2).name)
    damage(newest)
    found = CheckpointFolder(tmp_path).newest(UID)
    assert found.checkpoint is not None
    assert found.checkpoint.manifest.progress.version == 1
    (report,) = found.passed_over
    assert words in report
    assert str(newest) in report
    with pytest.raises(UnusableError):
        verify(newest)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), value=st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(tmp_path: Path, place: int, value: int) -> None:
    shutil.rmtree(tmp_path / "c", ignore_errors=True)
    checkpoint = filled(tmp_path / "c", None, 1).newest(UID).checkpoint
    assert checkpoint is not None
    files = [*checkpoint.files, checkpoint.path / MANIFEST_FILE]
    content = bytearray(b"".join(f.read_bytes() for f in files))
    place %= len(content)
    for file in files:
        size = file.stat().st_size
        if place < size:
            changed = bytearray(file.read_bytes())
            changed[place] ^= value
            file.write_bytes(bytes(changed))
            break
        place -= size
    try:
        again = verify(checkpoint.path)
    except UnusableError:
        return
    # Only blanks between the words of the manifest may differ.
    assert again.manifest == checkpoint.manifest


def test_one_is_found_by_its_folder_or_by_the_one_above(tmp_path: Path) -> None:
    filled(tmp_path, None, 1, 2)
    one = tmp_path / str(make_checkpoint(1).name)
    for path, version in ((one, 1), (tmp_path, 2)):
        found = find(path).checkpoint
        assert found is not None
        assert found.manifest.progress.version == version
    with pytest.raises(UnusableError, match="holds no checkpoint; give the folder of one"):
        find(tmp_path / "nothing")


def test_a_term_is_never_given_twice(tmp_path: Path) -> None:
    def terms() -> Iterator[tuple[int, int, int]]:
        for lost in (0, 7, 3):
            term = CheckpointFolder(tmp_path).open_term(UID, rounds_lost=lost)
            yield term.term, term.restores, term.rounds_lost

    assert list(terms()) == [(1, 0, 0), (2, 1, 7), (3, 2, 10)]
    assert CheckpointFolder(tmp_path).open_term(OTHER).term == 1
    assert CheckpointFolder(tmp_path).open_term(UID, at_least=9).term == 9


def test_a_damaged_record_of_terms_is_not_taken_for_none(tmp_path: Path) -> None:
    CheckpointFolder(tmp_path).open_term(UID)
    (record,) = tmp_path.glob(".term-*")
    record.write_text("{")
    with pytest.raises(OSError, match="is damaged"):
        CheckpointFolder(tmp_path).open_term(UID)
