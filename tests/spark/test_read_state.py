"""State as a DataFrame at any epoch equals the result of the snapshot reader, also over bases and changed schemas."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import epochal
from epochal.contracts.conditions import microseconds
from epochal.errors import InvalidInput, NotFound
from epochal.snapshots.store import SnapshotStore
from epochal.state.expiry import StateClock
from epochal.state.table import Column, Quotient, Shown, StateTable
from tests.unit.snapshot_tree import SESSIONS, TOTALS, VISITS, WINDOWS, Branch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def branch(tmp_path: Path) -> Branch:
    """Nine epochs of puts and deletes; bases after the fourth, sixth and seventh."""
    chance = random.Random(7)
    branch = Branch(SnapshotStore(str(tmp_path / "a store")))
    for number in range(9):
        changes: list[Any] = []
        for day in chance.sample(range(12), 5):
            row = {"count": number, "worst": chance.choice([None, 1.5])} if chance.random() < 0.7 else None
            changes.append((TOTALS, (None if day % 4 == 0 else "JFK", None if day in (4, 7) else day), row))
        if number == 2:
            changes.append((VISITS, ("N1", "A"), {"late": 5}))
        branch.epoch(*changes)
        if number in (3, 5, 6):
            branch.compact()
    return branch


def test_state_is_read_at_every_kind_of_epoch(spark: SparkSession, branch: Branch) -> None:
    for epoch in (1, 4, 6, None):
        state = epochal.read_state(spark, branch.store.url, "totals", epoch=epoch)
        assert state.columns == ["city", "day", "count", "worst"]
        found = {(row.city, row.day): (row["count"], row.worst) for row in state.collect()}
        model = branch.models[branch.epochs[(epoch or 9) - 1].key]["totals"]
        assert found == {key: (row["count"], row["worst"]) for key, row in model.items()}
    visits = epochal.read_state(spark, branch.store.url, "visits.places", branch="main")
    assert [row.asDict() for row in visits.collect()] == [{"tail": "N1", "airport": "A", "late": 5}]


def test_an_evolved_table_has_its_defaults_and_its_quotients(spark: SparkSession, tmp_path: Path) -> None:
    branch = Branch(SnapshotStore(str(tmp_path)), tables=(TOTALS,))
    branch.epoch((TOTALS, ("JFK", 1), {"count": 4, "worst": 2.0}))
    evolved = StateTable.model_validate(
        {
            **TOTALS.model_dump(),
            "value": (
                Column(name="count", type="bigint"),
                Column(name="worst", type="double"),
                Column(name="note", type="string", default="none"),
                Column(name="more", type="int"),
                Column(name="paid", type="decimal(38,18)"),
            ),
            "shown": (
                Quotient(name="mean", dividend="worst", divisor="count"),
                Quotient(name="price", dividend="paid", divisor="count", type="decimal(38,22)"),
                Shown(
                    name="spread",
                    type="double",
                    function="spread",
                    columns=("count", "worst"),
                    options={"sample": False, "root": False},
                ),
            ),
        }
    )
    branch.tables = (evolved,)
    branch.epoch((evolved, ("JFK", 2), {"count": 0, "worst": 1.0, "note": None, "more": 3}))
    branch.epoch((evolved, ("JFK", 3), {"count": 3, "worst": 6.0, "paid": Decimal("1234567883.023456789012345679")}))
    price = Decimal("411522627.6744855963374485596667")
    rows = epochal.read_state(spark, branch.store.url, "totals").orderBy("day").collect()
    assert [tuple(row) for row in rows] == [
        ("JFK", 1, 4, 2.0, "none", None, None, 0.5, None, 0.5),
        ("JFK", 2, 0, 1.0, None, 3, None, None, None, None),
        ("JFK", 3, 3, 6.0, None, None, Decimal("1234567883.023456789012345679"), 2.0, price, 2.0),
    ]


def test_field_of_a_partial_column_has_its_first_epoch(spark: SparkSession, tmp_path: Path) -> None:
    branch = Branch(SnapshotStore(str(tmp_path)), tables=(TOTALS,))
    branch.epoch((TOTALS, ("JFK", 1), {"count": 4, "worst": 2.0}))
    value = (*TOTALS.value, Column(name="a.b", type="bigint", since=2))
    mean = Quotient(name="mean", dividend="worst", divisor="a.b")
    added = TOTALS.model_copy(update={"value": value, "shown": (mean,)})
    branch.tables = (added,)
    branch.epoch((added, ("LAX", 1), {"count": 1, "worst": 6.0, "a.b": 3}))
    fields = {}
    for epoch in (1, 2):
        state = epochal.read_state(spark, branch.store.url, "totals", epoch=epoch)
        fields[epoch] = {field.name: field.metadata for field in state.schema}
    names = ["city", "day", "count", "worst", "a.b", "mean"]
    assert fields[1] == {name: {} for name in names[:4]}
    assert fields[2] == fields[1] | {name: {"since": 2} for name in names[4:]}
    assert sorted(map(tuple, state.collect())) == [("JFK", 1, 4, 2.0, None, None), ("LAX", 1, 1, 6.0, 3, 2.0)]


@pytest.mark.alternating(2)
def test_expired_rows_are_omitted_in_any_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    # The night in which the clocks of the session's time zone are set back.
    began, minute = datetime(2013, 11, 3, 5, 30, tzinfo=UTC), 60_000_000
    stamped, local = (
        StateTable.model_validate(WINDOWS.model_dump() | {"id": type, "time": {"name": "at", "type": type}})
        for type in ("timestamp", "timestamp_ntz")
    )
    branch = Branch(SnapshotStore(str(tmp_path)), tables=(WINDOWS, SESSIONS, stamped, local))
    branch.clock = StateClock(event=0, processing=0)
    for number in range(6):
        at = began + timedelta(minutes=30 * number)
        branch.clock = StateClock(event=microseconds(at) + 3 - 30 * minute * (number == 5), processing=2 * number)
        changes = [(WINDOWS, ("JFK", microseconds(at)), {"count": number})]
        changes += [(stamped, ("JFK", at), {"count": number}), (stamped, ("LAX", at - timedelta(days=1)), None)]
        changes += [(local, ("JFK", at.replace(tzinfo=None)), {"count": number})]
        changes += [(stamped, ("LAX", at + timedelta(microseconds=1)), {"count": 10 + number})]
        changes += [(SESSIONS, ("N1", f"{number}"), {"late": number, "_touched": None if number == 1 else number})]
        branch.epoch(*changes)
        if number == 3:
            branch.compact()
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for epoch in (3, 6):
            model = branch.models[branch.epochs[epoch - 1].key]
            for table in branch.tables:
                state = epochal.read_state(spark, branch.store.url, table.id, epoch=epoch)
                assert state.columns == [*(column.name for column in (*table.address, *table.value))]
                value = table.value[0].name
                expected = sorted(row[value] for row in model[table.id].values())
                assert sorted(row[value] for row in state.collect()) == expected
                assert expected or epoch == 3
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_table_without_rows_has_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    branch = Branch(SnapshotStore(str(tmp_path)))
    branch.epoch()
    state = epochal.read_state(spark, branch.store.url, "totals")
    assert state.columns == ["city", "day", "count", "worst"]
    assert state.count() == 0


def test_unknown_tables_epochs_and_branches_are_refused(spark: SparkSession, branch: Branch, tmp_path: Path) -> None:
    url = branch.store.url
    with pytest.raises(NotFound, match="no epoch 99"):
        epochal.read_state(spark, url, "totals", epoch=99)
    with pytest.raises(NotFound, match="it has: totals"):
        epochal.read_state(spark, url, "nothing")
    with pytest.raises(NotFound, match="branch 'other'"):
        epochal.read_state(spark, url, "totals", branch="other")
    with pytest.raises(InvalidInput, match="control plane"):
        epochal.read_state(spark, url, "totals", epoch="monday")
    with pytest.raises(InvalidInput, match="branches none"):
        epochal.read_state(spark, str(tmp_path / "empty"), "totals")
    branch.fork("fork").epoch()
    with pytest.raises(InvalidInput, match="fork, main"):
        epochal.read_state(spark, url, "totals")
    assert epochal.read_state(spark, url, "totals", branch="fork", epoch=3).count() == len(
        branch.models[branch.epochs[2].key]["totals"]
    )
