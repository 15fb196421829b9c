"""Pruning of old backups and of the files that only they need; the only sound backup is retained."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from epochal.errors import Conflict, FileCorrupt, NotFound
from epochal.snapshots.backup_format import BackupFile, Backups, Index
from epochal.snapshots.backup_maintenance import plan_pruning, prune, verify_backup

START = datetime(2030, 1, 1, tzinfo=UTC)


def quiet(message: str) -> None:
    """Discards progress messages."""


def interrupted_after(steps: int) -> Callable[[str], None]:
    left = iter(range(steps))

    def report(message: str) -> None:
        if next(left, None) is None:
            raise InterruptedError(message)

    return report


def write_backup(backups: Backups, day: int, names: Iterable[str]) -> str:
    """Writes a backup of that day with these files, and returns its ID."""
    files = []
    for name in sorted(names):
        data = name.encode() * 10
        if name not in backups.files.list(""):
            backups.files.write(name, data)
        files.append(BackupFile(name, len(data), hashlib.sha256(data).hexdigest()))
    id, moment = f"{day:032}", START + timedelta(days=day)
    index = Index(
        id=id,
        installation="i",
        incarnation="i",
        revision="0001",
        version="1",
        catalog="sqlite",
        store="/store",
        created_at=moment,
        finished_at=moment,
        tables=(),
        files=backups.write_part(id, "files", files),
        stored_files=len(files),
        stored_bytes=sum(file.bytes for file in files),
        applications=(),
    )
    backups.write_index(index)
    return id


@pytest.fixture
def backups(tmp_path: Path) -> Backups:
    return Backups(str(tmp_path / "backups"))


@pytest.fixture
def days(backups: Backups) -> list[str]:
    """Five daily backups. Each adds two files and no longer needs one."""
    return [write_backup(backups, day, (f"f{number}" for number in range(day, 2 * day + 3))) for day in range(5)]


def ids(indexes: Iterable[Index]) -> list[str]:
    return [index.id for index in indexes]


@pytest.mark.parametrize(
    ("keep", "days_old", "retained"),
    [(2, None, 2), (9, None, 5), (1, None, 1), (1, 2.5, 3), (3, 1.5, 3), (1, 100, 5), (1, 0, 1), (4, 0, 4)],
)
def test_backups_beyond_both_limits_are_pruned_with_their_own_files(
    backups: Backups, days: list[str], keep: int, days_old: float | None, retained: int
) -> None:
    before = None if days_old is None else START + timedelta(days=4 - days_old, seconds=1)
    plan = plan_pruning(backups, keep, before, quiet)
    assert ids(plan.kept) == days[::-1][:retained]
    assert ids(plan.removed) == days[::-1][retained:]
    assert backups.ids() == days and len(backups.files.list("")) == 11
    prune(backups, plan, quiet)
    assert backups.ids() == days[-retained:]
    assert backups.files.list("") == sorted(f"f{number}" for number in range(5 - retained, 11))
    assert all(verify_backup(backups, backups.index(id), quick=False).is_sound for id in backups.ids())
    assert plan.bytes == sum(len(path) * 10 for path in plan.files)


def test_the_only_sound_backup_is_retained(backups: Backups, days: list[str]) -> None:
    backups.files.delete("f10")
    with pytest.raises(Conflict, match="None of the 1 backups to keep is sound"):
        plan_pruning(backups, 1, None, quiet)
    plan = plan_pruning(backups, 2, None, quiet)  # the second newest does not need that file
    assert ids(plan.removed) == days[2::-1]


def test_nothing_is_pruned_while_a_file_list_is_unreadable(backups: Backups, days: list[str]) -> None:
    """The list belongs to a retained backup, so the files that it names are unknown."""
    listed = backups.index(days[3]).files.path
    backups.place.write(listed, b"damaged")
    with pytest.raises(FileCorrupt, match="changed"):
        plan_pruning(backups, 3, None, quiet)
    assert len(backups.files.list("")) == 11


def test_an_interrupted_pruning_can_be_repeated(backups: Backups, days: list[str]) -> None:
    backups.place.write("backups/cut/tables/epochs.jsonl.gz", b"left")
    backups.files.write("left", b"by an interrupted backup")
    plan = plan_pruning(backups, 2, None, quiet)
    steps: list[str] = []
    prune(backups, plan, steps.append)
    after = sorted(path for path in backups.place.list(""))
    assert not any("cut" in path or "left" in path for path in after)

    for step in range(len(steps)):
        copy = Backups(f"{backups.place.url}-{step}")
        for day in range(5):
            write_backup(copy, day, (f"f{number}" for number in range(day, 2 * day + 3)))
        copy.place.write("backups/cut/tables/epochs.jsonl.gz", b"left")
        copy.files.write("left", b"by an interrupted backup")
        with pytest.raises(InterruptedError):
            prune(copy, plan_pruning(copy, 2, None, quiet), interrupted_after(step))
        assert all(verify_backup(copy, copy.index(id), quick=False).is_sound for id in days[-2:])
        prune(copy, plan_pruning(copy, 2, None, quiet), quiet)
        assert sorted(copy.place.list("")) == after


def test_pruning_requires_a_complete_backup(backups: Backups) -> None:
    with pytest.raises(NotFound, match="holds no complete backup"):
        plan_pruning(backups, 1, None, quiet)
