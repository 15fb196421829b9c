"""Sinks of tables that add columns which the table lacks (``add_columns=True``): when, which, and beside others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableAlterer
from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError
from pyiceberg.types import LongType

from epochal.backends.tables import added_columns
from epochal.backends.tables.commit_protocol import HeadMoved
from epochal.connectors import delta, iceberg
from epochal.errors import OptionError, SchemaError, SinkUnavailable
from epochal.faults import FaultPoint, injected
from epochal.testing.sink_contract import SCHEMA, epoch, rows
from tests.kit.delta_tables import DeltaFolder
from tests.kit.evolving_tables import (
    MORE,
    Crash,
    Harness,
    amounts,
    begun,
    columns,
    late_addition,
    put,
    sorted_rows,
    version,
)
from tests.kit.iceberg_tables import sqlite_catalog

READ, ADDED = "R1.table.columns-read", "R1.table.columns-added"


def test_a_stream_with_another_column_is_refused_without_the_option(harness: Harness) -> None:
    begun(harness)
    harness.add_columns = False
    sink, before = harness.make(), version(harness)
    with pytest.raises(SchemaError, match=r"cannot append.*amount.*Or set add_columns=True, which adds amount to"):
        sink.check(MORE)
    sink.check_types(MORE)
    with pytest.raises(SchemaError, match="cannot append"):
        sink.recover(epoch(0))
    assert version(harness) == before


def test_the_start_adds_the_column_in_a_version_without_rows(harness: Harness) -> None:
    put(begun(harness), 1, [{"id": 1, "name": "1"}], SCHEMA)
    sink, before = harness.make(), version(harness)
    more = SCHEMA.append(pa.field("amount", pa.float64(), nullable=False))
    sink.check(more)
    [warning] = sink.warnings()
    assert "the table lacks columns, which the start of this version adds: amount (double)." in warning
    assert version(harness) == before
    sink.recover(epoch(1, attempt=2))
    assert list(columns(harness)) == ["id", "name", "amount"]
    assert columns(harness)["amount"][1]
    assert sorted_rows(harness.visible()) == amounts((1, None))
    assert harness.make().warnings() == []
    put(sink, 2, amounts((2, 1.5)), more)
    assert sorted_rows(harness.visible()) == amounts((1, None), (2, 1.5))


def test_a_table_with_all_columns_gets_no_version(harness: Harness) -> None:
    begun(harness, MORE)
    before = version(harness)
    begun(harness, MORE, attempt=2)
    begun(harness, SCHEMA, attempt=3)
    assert version(harness) == before


def test_two_drivers_add_columns_at_the_same_time(harness: Harness) -> None:
    begun(harness)
    raced = False

    def race(point: FaultPoint, number: int | None) -> None:
        nonlocal raced
        if point.name == READ and not raced:
            raced = True
            begun(harness, SCHEMA.append(pa.field("amount", pa.float64())), attempt=2)

    with injected(race):
        sink = begun(harness, MORE.append(pa.field("code", pa.string())))
    assert raced
    assert list(columns(harness)) == ["id", "name", "amount", "code"]
    put(sink, 1, [{"id": 1, "name": "1", "amount": 1.5, "code": "a"}], MORE.append(pa.field("code", pa.string())))
    assert harness.visible() == [{"id": 1, "name": "1", "amount": 1.5, "code": "a"}]


def test_another_driver_adds_the_column_with_another_type(harness: Harness) -> None:
    begun(harness)
    raced = False

    def race(point: FaultPoint, number: int | None) -> None:
        nonlocal raced
        if point.name == READ and not raced:
            raced = True
            begun(harness, SCHEMA.append(pa.field("amount", pa.string())), attempt=2)

    with injected(race), pytest.raises(SchemaError, match="amount"):
        begun(harness, MORE)
    assert columns(harness)["amount"][0] == columns(harness)["name"][0]


@pytest.mark.parametrize("step", [READ, ADDED])
def test_the_next_attempt_recovers_from_a_crash(harness: Harness, step: str) -> None:
    put(begun(harness), 1, [{"id": 1, "name": "1"}], SCHEMA)
    before, crashed = version(harness), False

    def crash(point: FaultPoint, number: int | None) -> None:
        nonlocal crashed
        if point.name == step:
            crashed = True
            raise Crash

    with injected(crash), suppress(Crash):
        begun(harness, MORE, attempt=2, at=1)
    assert crashed
    assert (version(harness) == before) == (step == READ)
    sink = begun(harness, MORE, attempt=3, at=1)
    put(sink, 2, amounts((2, 1.5)), MORE)
    assert sorted_rows(harness.visible()) == amounts((1, None), (2, 1.5))


@pytest.fixture
def lose(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Makes the next commit of columns fail after it has landed, or before."""

    def patched(lands: bool, conflict: bool = False) -> list[str]:
        if isinstance(harness, DeltaFolder):
            owner, name = TableAlterer, "add_columns"
            error: Exception = CommitFailedError("lost") if conflict else DeltaError("cut")
        else:
            owner, name = harness.catalog, "commit_table"  # type: ignore[assignment]
            error = CommitFailedException("409") if conflict else ServiceUnavailableError("503")
        real, calls = getattr(owner, name), []

        def commit(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) > 1:
                return real(*arguments, **options)
            if lands:
                real(*arguments, **options)
            raise error

        monkeypatch.setattr(owner, name, commit)
        return calls

    return patched


@pytest.mark.parametrize("conflict", [False, True])
def test_the_answer_of_a_commit_that_has_landed_is_lost(
    harness: Harness, lose: Callable[..., list[str]], conflict: bool
) -> None:
    begun(harness)
    calls = lose(lands=True, conflict=conflict)
    begun(harness, MORE, attempt=2)
    assert len(calls) == 1
    assert list(columns(harness)) == ["id", "name", "amount"]


def test_a_commit_that_has_not_landed_is_repeated(harness: Harness, lose: Callable[..., list[str]]) -> None:
    begun(harness)
    lose(lands=False)
    sink = harness.make()
    sink.check(MORE)
    with pytest.raises(SinkUnavailable, match="whether the columns amount are added is not known yet"):
        sink.recover(epoch(0))
    assert list(columns(harness)) == ["id", "name"]
    sink.recover(epoch(0))  # as the engine does while a sink is unavailable
    assert list(columns(harness)) == ["id", "name", "amount"]


def test_other_writers_commit_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the log of a Delta table each version conflicts with the addition, also one that only adds rows."""
    folder, others = DeltaFolder(tmp_path / "orders", add_columns=True), 3
    begun(folder)

    def write(point: FaultPoint, number: int | None) -> None:
        nonlocal others
        if point.name == READ and others:
            others -= 1
            write_deltalake(str(folder.path), pa.Table.from_pylist(rows(others), SCHEMA), mode="append")

    monkeypatch.setattr(added_columns, "MOST_CONFLICTS", 3)
    with injected(write), pytest.raises(SinkUnavailable, match="other writers have committed 3 versions"):
        begun(folder, MORE)
    others = 1
    with injected(write):
        begun(folder, MORE)
    assert list(columns(folder)) == ["id", "name", "amount"]
    assert len(folder.visible()) == 4


def test_a_late_request_of_a_dead_driver_changes_nothing(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(harness)
    late = late_addition(harness, monkeypatch)
    sink = begun(harness, MORE.append(pa.field("code", pa.string())), attempt=2)
    put(sink, 1, [{"id": 1, "name": "1", "amount": 1.5, "code": "a"}], MORE.append(pa.field("code", pa.string())))
    before = version(harness)
    with pytest.raises(HeadMoved):
        late.commit()
    assert version(harness) == before


def test_a_late_request_does_not_reuse_the_number_of_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have added a column with rows and dropped it: the table has the schema that the dead driver has read, and
    files with values of the dropped column."""
    orders = sqlite_catalog(tmp_path, add_columns=True)
    begun(orders)
    late = late_addition(orders, monkeypatch)
    table = orders.table()
    assert table is not None
    with table.update_schema() as update:
        update.add_column("weight", LongType())
    table.append(pa.table({"id": [1], "name": ["1"], "weight": [7]}))
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("weight")
    with pytest.raises(HeadMoved):
        late.commit()
    begun(orders, MORE)
    assert orders.visible() == amounts((1, None))


@pytest.mark.parametrize(
    ("sink", "options"),
    [
        (delta.sink, {}),
        (iceberg.sink, {"catalog": {"type": "sql", "uri": "sqlite:///c.sqlite"}}),
    ],
)
def test_the_option(sink: Any, options: dict[str, Any]) -> None:
    assert sink("a.b", add_columns=True, **options).description["add_columns"] is True
    assert "add_columns" not in sink("a.b", **options).description
    with pytest.raises(OptionError, match="add_columns"):
        sink("a.b", add_columns="yes", **options)
