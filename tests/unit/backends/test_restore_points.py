"""The version of a table before the epochs that a rollback leaves behind, of Delta and of Iceberg tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from epochal.backends.tables.restore_points import TableVersion, restore_point
from epochal.backends.tables.sink import TableSink
from epochal.contracts.backend import DecidedEpoch
from epochal.contracts.catalog import EpochRange, RestorePoint
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import SinkError
from epochal.testing.contract import SinkHarness
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.delta_tables import DeltaFolder, opened
from tests.kit.iceberg_tables import IcebergCatalog, sqlite_catalog

BRANCH = epoch(1).branch
END = 2**63 - 1


def after(epoch: int, branch: str = BRANCH) -> Mapping[str, EpochRange]:
    return {branch: EpochRange(first=epoch + 1, last=END)}


def history(*versions: tuple[str, tuple[int, ...]], complete: bool = True) -> list[TableVersion]:
    """Versions, oldest first in the arguments; the table begins with an empty one."""
    found = [TableVersion(0, None if complete else -1)]
    found += [TableVersion(number, number - 1, *each) for number, each in enumerate(versions, 1)]
    return found[::-1]


class TestHistories:
    def test_the_version_before_the_first_epoch_left_behind(self) -> None:
        versions = history(("a", (1,)), ("a", (2,)), ("", ()), ("a", (3,)), ("a", (4,)))
        assert restore_point(versions, after(2, "a")) == RestorePoint(version="3")
        assert restore_point(versions, after(0, "a")) == RestorePoint(version="0")

    def test_the_latest_version_if_none_of_the_epochs_is_committed(self) -> None:
        assert restore_point(history(("a", (1,)), ("a", (2,))), after(2, "a")) == RestorePoint(version="2")
        assert restore_point(history(), after(2, "a")) == RestorePoint(version="0")

    def test_no_version_if_one_commit_has_epochs_of_both_sides(self) -> None:
        point = restore_point(history(("a", (1, 2)), ("a", (3, 4, 6)), ("a", (7,))), after(4, "a"))
        assert point == RestorePoint(
            reason="no version of the table has epoch 4 without epoch 6: version 2 commits both"
        )

    def test_epochs_of_an_earlier_rollback_are_not_kept_ones(self) -> None:
        """Epochs 6 to 9 of ``a`` were left at 5 for ``b``, and now both are left for ``a`` at 4."""
        versions = history(("a", (3, 4)), ("a", (5, 6)), ("a", (9,)), ("b", (10,)))
        left = {"a": EpochRange(first=5, last=5), "b": EpochRange(first=0, last=END)}
        assert restore_point(versions, left) == RestorePoint(version="1")

    def test_older_versions_are_required_to_tell(self) -> None:
        versions = history(("a", (3,)), ("a", (4,)), complete=False)
        assert restore_point(versions, after(2, "a")) is None
        assert restore_point(versions, after(3, "a")) == RestorePoint(version="1")
        assert restore_point([], after(3, "a")) is None

    def test_a_table_that_was_empty_before(self) -> None:
        point = restore_point([TableVersion(7, None, "a", (3,))], after(2, "a"))
        assert point is not None and point.version is None and not point.unknown
        assert "was empty" in str(point.reason)

    @given(
        groups=st.lists(st.integers(0, 3), max_size=12),
        others=st.lists(st.booleans(), min_size=12, max_size=12),
        target=st.integers(0, 30),
    )
    def test_the_version_has_exactly_the_epochs_up_to_the_target(
        self, groups: list[int], others: list[bool], target: int
    ) -> None:
        """Groups of epochs, of which 0 is a version of another writer."""
        versions, number = list[tuple[str, tuple[int, ...]]](), 0
        for size, other in zip(groups, others, strict=False):
            versions.append(("a" if size else "", tuple(range(number + 1, number + size + 1))))
            number += size
            if other:
                versions.append(("b", (number + 100,)))
        found = restore_point(history(*versions), after(target, "a"))
        assert found is not None

        def shown(version: int) -> list[int]:
            return [epoch for branch, epochs in versions[:version] if branch == "a" for epoch in epochs]

        kept = list(range(1, min(target, number) + 1))
        fitting = [version for version in range(len(versions) + 1) if shown(version) == kept]
        assert found.version == (str(fitting[-1]) if fitting else None)


@pytest.fixture(params=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> DeltaFolder | IcebergCatalog:
    return DeltaFolder(tmp_path / "orders") if request.param == "delta" else sqlite_catalog(tmp_path)


def started(table: SinkHarness, at: EpochScope | None = None) -> TableSink:
    sink = table.make()
    assert isinstance(sink, TableSink)
    sink.check(SCHEMA)
    sink.recover(at or epoch(0))
    return sink


def visible_at(table: DeltaFolder | IcebergCatalog, version: str) -> list[dict[str, object]]:
    if isinstance(table, DeltaFolder):
        return list(DeltaTable(str(table.path), version=int(version)).to_pyarrow_table().to_pylist())
    found = table.table()
    assert found is not None
    return list(found.scan(snapshot_id=int(version)).to_arrow().to_pylist())


def test_the_table_at_the_version_has_the_rows_of_the_snapshot(
    table: DeltaFolder | IcebergCatalog, decided: DecidedEpochs
) -> None:
    sink = started(table)
    for number in range(1, 5):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    for target in range(1, 5):
        point = sink.restore_point(after(target))
        assert point is not None and point.version is not None
        assert same(visible_at(table, point.version), rows(*range(1, target + 1)))


def restore(table: DeltaFolder | IcebergCatalog, version: str) -> None:
    """As a user does, with the tools of the table."""
    if isinstance(table, DeltaFolder):
        opened(table).restore(int(version))
        return
    found = table.table()
    assert found is not None
    found.manage_snapshots().rollback_to_snapshot(int(version)).commit()


def test_a_branch_continues_on_a_restored_table(table: DeltaFolder | IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(table)
    for number in range(1, 5):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    point = sink.restore_point(after(2))
    assert point is not None and point.version is not None
    restore(table, point.version)
    later = EpochScope("application", EpochKey("other", 5), 1, epoch(2).key)
    successor = started(table, later)
    successor.commit_decided([DecidedEpoch(later, (pre_commit(successor, later, rows(3, 4, 5)),))])
    assert same(table.visible(), rows(1, 2, 3, 4, 5))
    again = successor.restore_point({"other": EpochRange(first=0, last=END)})
    assert again is not None and again.version is not None
    assert same(visible_at(table, again.version), rows(1, 2))


def test_a_group_of_epochs_on_both_sides_has_no_version(table: DeltaFolder | IcebergCatalog) -> None:
    sink = started(table)
    groups = [[1], [2, 3]]
    for group in groups:
        epochs = [
            DecidedEpoch(epoch(number), (pre_commit(sink, epoch(number), rows(number)),), number - 1 or None)
            for number in group
        ]
        sink.commit_decided(epochs)
    point = sink.restore_point(after(2))
    assert point is not None and point.version is None and not point.unknown
    assert "no version of the table has epoch 2 without epoch 3" in str(point.reason)
    assert (found := sink.restore_point(after(1))) is not None and found.version is not None


def test_epochs_of_other_branches_do_not_count(table: DeltaFolder | IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(table)
    decided.commit(sink, epoch(1), [pre_commit(sink, epoch(1), rows(1))])
    other = EpochScope("application", EpochKey("other", 2), 1, None)
    sink.commit_decided([DecidedEpoch(other, (pre_commit(sink, other, rows(2)),))])
    point = sink.restore_point(after(1, "other"))
    assert point is not None and point.version is not None
    assert same(visible_at(table, point.version), rows(1))


def test_a_table_that_is_missing_is_unknown(table: DeltaFolder | IcebergCatalog) -> None:
    point = table.make().restore_point(after(1))
    assert point is not None and point.version is None and point.unknown


def test_a_log_that_was_cleaned_up_is_unknown(tmp_path: Path, decided: DecidedEpochs) -> None:
    folder = DeltaFolder(tmp_path / "orders")
    sink = started(folder)
    for number in (1, 2, 3):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    opened(folder).create_checkpoint()
    for number in (0, 1, 2):
        (folder.path / "_delta_log" / f"{number:020}.json").unlink()
    point = sink.restore_point(after(1))
    assert point is not None and point.unknown
    assert point.reason == "the latest 1 versions of the table do not show it"
    assert json.loads(point.model_dump_json())["version"] is None


def test_versions_of_other_writers_are_passed_over(tmp_path: Path, decided: DecidedEpochs) -> None:
    """More versions than are read at first."""
    folder = DeltaFolder(tmp_path / "orders")
    sink = started(folder)
    for number in (1, 2):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    for number in range(105):
        write_deltalake(str(folder.path), pa.Table.from_pylist(rows(100 + number), SCHEMA), mode="append")
    assert sink.restore_point(after(1)) == RestorePoint(version="1")


def test_an_unreadable_table_is_an_error(tmp_path: Path, decided: DecidedEpochs) -> None:
    folder = DeltaFolder(tmp_path / "orders")
    started(folder)
    (folder.path / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises(SinkError):
        folder.make().restore_point(after(1))
