"""Epochs of versions with and without a column of the table, which are committed by either version."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.table import Table

from epochal.contracts.backend import DecidedEpoch
from epochal.errors import SinkError
from epochal.testing.sink_contract import SCHEMA, Row, epoch
from tests.kit.evolving_tables import (
    MORE,
    TABLES,
    Harness,
    amounts,
    begun,
    columns,
    put,
    sorted_rows,
    staged,
    table_of,
)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("collects", [False, True])
def test_epochs_of_the_version_without_the_column_are_committed(tmp_path: Path, kind: str, collects: bool) -> None:
    """They are decided when the driver dies; the next attempt has the new version."""
    harness = table_of(kind, tmp_path, collects=collects)
    before = begun(harness)
    group = [
        staged(before, number, [{"id": number, "name": str(number)}], SCHEMA, number - 1 or None) for number in (1, 2)
    ]
    sink = begun(harness, MORE, attempt=2)
    sink.commit_decided([*group, staged(sink, 3, amounts((3, 1.5)), MORE, 2)])
    assert sorted_rows(harness.visible()) == amounts((1, None), (2, None), (3, 1.5))
    sink.sweep(epoch(3, attempt=2), [])
    assert harness.leftovers() == []


def test_epochs_of_the_version_without_the_column_replace_rows_by_keys(tmp_path: Path) -> None:
    harness = table_of("delta", tmp_path, collects=True, keys=["id"])
    before = begun(harness)
    put(before, 1, [{"id": 1, "name": "old"}, {"id": 2, "name": "2"}], SCHEMA)
    group = [staged(before, 2, [{"id": 1, "name": "1"}, {"id": 3, "name": "old"}], SCHEMA, 1)]
    sink = begun(harness, MORE, attempt=2, at=1)
    sink.commit_decided([*group, staged(sink, 3, amounts((3, 1.5), (4, 2.5)), MORE, 2)])
    assert sorted_rows(harness.visible()) == amounts((1, None), (2, None), (3, 1.5), (4, 2.5))


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("collects", [False, True])
def test_a_version_without_the_column_goes_on(tmp_path: Path, kind: str, collects: bool) -> None:
    """As after a rollback, or an upgrade that is reverted."""
    harness = table_of(kind, tmp_path, collects=collects)
    put(begun(harness, MORE), 1, amounts((1, 1.5)), MORE)
    harness.add_columns = False
    put(begun(harness, SCHEMA, attempt=2, at=1), 2, [{"id": 2, "name": "2"}], SCHEMA)
    assert sorted_rows(harness.visible()) == amounts((1, 1.5), (2, None))


def test_rows_by_keys_without_the_column_leave_its_values(tmp_path: Path) -> None:
    """As those of other columns of the table that the rows do not have."""
    harness = table_of("delta", tmp_path, collects=True, keys=["id"])
    put(begun(harness, MORE), 1, amounts((1, 1.5)), MORE)
    put(begun(harness, SCHEMA, attempt=2, at=1), 2, [{"id": 1, "name": "one"}, {"id": 2, "name": "2"}], SCHEMA)
    assert sorted_rows(harness.visible()) == [{"id": 1, "name": "one", "amount": 1.5}, *amounts((2, None))]


def test_a_table_that_loses_the_column_stops_the_sink(harness: Harness) -> None:
    begun(harness)
    sink = begun(harness, MORE, attempt=2)
    decided = staged(sink, 1, amounts((1, 1.5)), MORE, None)
    table = harness.table()
    if isinstance(table, DeltaTable):
        write_deltalake(table, SCHEMA.empty_table(), mode="overwrite", schema_mode="overwrite")
    else:
        _drop(table)
    with pytest.raises(
        SinkError,
        match=r"the table was changed after.*(no column 'amount'|column 'amount' was dropped)|"
        r"The table was changed after.*no column 'amount'",
    ):
        sink.commit_decided([decided])
    assert harness.visible() == []


def _drop(table: Table | None) -> None:
    assert table is not None
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("amount")


@pytest.mark.parametrize("kind", ["delta", "delta-collecting", "delta-keys", "iceberg", "iceberg-collecting"])
def test_versions_with_more_and_fewer_columns_match_a_dictionary(tmp_path: Path, kind: str, run_seed: int) -> None:
    """Versions have more or fewer columns; epochs are committed in groups, by later versions too."""
    seed = random.Random(f"{run_seed}{kind}")
    name, _, variant = kind.partition("-")
    options: dict[str, Any] = {"keys": ["id"]} if variant == "keys" else {}
    harness = table_of(name, tmp_path, collects=bool(variant), **options)
    expected: dict[int, Row] = {}
    known, number, previous, waiting = ["id", "name"], 0, None, list[DecidedEpoch]()
    for attempt in range(1, 6):
        extra = seed.sample(["a", "b", "c", "d"], seed.randint(0, 3))
        schema = SCHEMA if not extra else pa.schema([*SCHEMA, *(pa.field(each, pa.int64()) for each in extra)])
        sink = begun(harness, schema, attempt, at=number)
        known += [each for each in extra if each not in known]
        if variant == "keys" and waiting:  # rows by keys of one group have the columns of all
            sink.commit_decided(waiting)
            waiting = []
        for _ in range(seed.randint(1, 3)):
            number += 1
            found = {}
            for _ in range(seed.randrange(4)):
                id = seed.randrange(6) if variant == "keys" else 100 * number + len(found)
                found[id] = {"id": id, "name": str(number)} | {each: seed.randrange(9) for each in extra}
            for id, row in found.items():
                expected[id] = {**expected.get(id, {}), **row}
            part = staged(sink, number, list(found.values()), schema, previous)
            previous = number if part.rows else previous
            waiting.append(part)
            if seed.random() < 0.5:
                sink.commit_decided(waiting)
                waiting = []
    begun(harness, attempt=6, at=number).commit_decided(waiting)
    assert list(columns(harness)) == known
    complete = [{**dict.fromkeys(known), **row} for row in expected.values()]
    assert sorted_rows(harness.visible()) == sorted_rows(complete)
