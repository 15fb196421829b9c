"""Schema evolution: allowed and refused changes, and older files read with the current declaration."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from epochal.contracts.identity import EpochKey
from epochal.declarations.ddl import parse_columns
from epochal.declarations.state import ListState
from epochal.declarations.windows import SessionWindows, Windows, session, sliding, tumbling, windowing
from epochal.errors import FileCorrupt, SchemaError
from epochal.operators.top.plan import ranked
from epochal.operators.windows.panes import pane_table, session_tables
from epochal.snapshots.delta import PUT, read_delta, sort_changes, write_delta
from epochal.snapshots.store import SnapshotStore
from epochal.state.declared_rows import widens
from epochal.state.evolution import compare
from epochal.state.expiry import Expiry
from epochal.state.table import DELETED_AT, TOUCHED, Column, StateKind, StateTable


def table(values: str, id: str = "delays", key: str = "origin string", kind: StateKind = StateKind.VALUE) -> StateTable:
    return StateTable(
        id=id,
        operator=id.partition(".")[0],
        kind=kind,
        key=parse_columns("key", key),
        value=parse_columns("state", values),
    )


def problems(before: StateTable, after: StateTable, *may_drop: str) -> str:
    return "\n".join(problem for change in compare([before], [after], may_drop) for problem in change.problems)


def test_an_unchanged_table_has_no_problems() -> None:
    [change] = compare([table("flights bigint")], [table("flights bigint")])
    assert (change.verdict, change.problems) == ("same", ())


def test_scopes_cannot_change() -> None:
    kept = ListState("event bigint", scope="operator")
    united, keyed = ListState("event bigint", scope="union"), ListState("event bigint")
    kept.name = united.name = keyed.name = "kept"
    key = parse_columns("key", "origin string")
    before = kept.table("delays", ())
    assert problems(before, before) == ""
    assert "'delays.kept': operator state cannot become union state" in problems(before, united.table("delays", ()))
    assert "'delays.kept': operator state cannot become keyed state" in problems(before, keyed.table("delays", key))


def test_windows_cannot_change() -> None:
    def by_pane(windows: Windows, allowed_lateness: str = "0 seconds") -> StateTable:
        declared = windowing(windows, allowed_lateness, "final")
        if isinstance(windows, SessionWindows):
            return session_tables(table("flights bigint"), declared)[0]
        return pane_table(table("flights bigint"), windows, declared)

    hours = by_pane(tumbling("1 hour"))
    assert problems(hours, by_pane(tumbling("60 minutes"))) == ""
    assert "its windows cannot become tumbling (size 2 hours) from tumbling (size 1 hour): open windows" in (
        problems(hours, by_pane(tumbling("2 hours")))
    )
    sliding_hours = by_pane(sliding("1 hour", "5 minutes"))
    assert "become sliding (size 1 hour, slide 5 minutes) from tumbling" in problems(hours, sliding_hours)
    assert "become session (gap 1 hour) from tumbling" in problems(hours, by_pane(session("1 hour")))
    assert "become tumbling (size 1 hour), allowed_lateness 5 minutes from" in (
        problems(hours, by_pane(tumbling("1 hour"), "5 minutes"))
    )
    assert "(size 1 hour, offset 10 minutes)" in problems(hours, by_pane(tumbling("1 hour", offset="10 minutes")))
    days = {zone: by_pane(tumbling("1 day", zone=zone)) for zone in ("Europe/Berlin", "Europe/Madrid")}
    assert "(size 1 day, zone Europe/Madrid) from tumbling (size 1 day, zone Europe/Berlin)" in problems(*days.values())
    assert "session (gap 2 hours) from session (gap 1 hour)" in (
        problems(by_pane(session("1 hour")), by_pane(session("2 hours")))
    )
    assert "become none from tumbling" in problems(hours, table("flights bigint"))


def test_orders_of_ranks_and_joins_cannot_change() -> None:
    five = table("price bigint").model_copy(update={"ranked": ranked(5, ("price",), True)})
    assert problems(five, five) == ""
    others = (ranked(6, ("price",), True), ranked(5, ("day",), True), ranked(5, ("price",), False), None)
    for other in others:
        assert "since it has stored the first 5 by price descending" in (
            problems(five, five.model_copy(update={"ranked": other}))
        )
    by_day = table("price bigint").model_copy(update={"joined": {"order_by": "day"}})
    assert "its join cannot become order_by hour from order_by day" in (
        problems(by_day, by_day.model_copy(update={"joined": {"order_by": "hour"}}))
    )


def test_an_aggregate_cannot_continue_when_its_input_becomes_changes() -> None:
    first, second = (
        table("n bigint").model_copy(update={"id": name, "operator": name}) for name in ("delays", "histogram")
    )
    over = second.model_copy(update={"changes_of": "delays"})
    assert "its input cannot become the changes of 'delays'" in all_problems([first, second], [first, over])
    assert "its input cannot become rows" in all_problems([first, over], [first, second])
    assert "begins with empty state over the changes of 'delays', which continues its state" in all_problems(
        [first], [first, over]
    )
    assert all_problems([first, over], [first, over]) == all_problems([], [first, over]) == ""


def test_the_condition_for_deleted_keys_cannot_change() -> None:
    """Operators that read the changes have counted rows as retracted according to the condition."""

    def items(expires: Expiry | None, time: Column = DELETED_AT) -> StateTable:
        plain = table("deleted boolean, other boolean", id="items", kind=StateKind.AGGREGATE)
        update = {"value": (*plain.value, *([time] if expires else []))}
        return StateTable.model_validate(plain.model_dump() | update | {"expires": expires})

    expiry = Expiry(clock="processing", column=DELETED_AT.name, after=10, deleted="deleted")
    other = expiry.model_copy(update={"deleted": "other"})
    all_expire = Expiry(clock="processing", column=TOUCHED.name, after=10)
    for before, after in (
        (items(None), items(expiry)),
        (items(expiry), items(other)),
        (items(expiry), items(None)),
        (items(all_expire, TOUCHED), items(expiry)),
        (items(expiry), items(all_expire, TOUCHED)),
    ):
        assert "deleted_when cannot become" in problems(before, after, "items._touched", "items._deleted_at")
    assert problems(items(expiry), items(expiry.model_copy(update={"after": 20}))) == ""


def all_problems(before: list[StateTable], after: list[StateTable]) -> str:
    return " ".join(problem for change in compare(before, after) for problem in change.problems)


def test_columns_may_be_added_widened_and_dropped_with_consent() -> None:
    [change] = compare(
        [table("flights int, worst float, note string")],
        [table("flights bigint, worst double, best double")],
        may_drop=["delays.note"],
    )
    assert change.verdict == "evolved" and change.problems == ()
    assert [column.name for column in change.added] == ["best"]
    assert change.widened == {"flights": ("int", "bigint"), "worst": ("float", "double")}
    assert change.dropped == ("note",)


def test_tables_are_dropped_only_with_consent() -> None:
    before, after = table("flights int"), table("flights int", id="streaks.current")
    dropped, added = compare([before], [after])
    assert (added.verdict, added.problems) == ("added", ())
    assert dropped.verdict == "dropped" and "--allow-dropped-state delays" in dropped.problems[0]
    assert compare([before], [after], may_drop=["delays"])[0].problems == ()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (table("flights bigint"), table("flights int"), "'flights' cannot become int from bigint"),
        (table("flights string"), table("flights bigint"), "'flights' cannot become bigint from string"),
        (table("flights int, note string"), table("flights int"), "--allow-dropped-state delays.note"),
        (table("flights int"), table("flights int", key="origin string, day date"), "its key cannot become"),
        (table("flights int"), table("flights int", key="origin binary"), "its key cannot become"),
        (table("flights int"), table("flights int", kind=StateKind.AGGREGATE), "value state cannot become aggregate"),
        (table("n int default 1"), table("n int default 2"), "the default of column 'n' cannot change"),
        (table("n int default 1"), table("n int"), "the default of column 'n' cannot change"),
    ],
)
def test_other_changes_are_refused_by_name(before: StateTable, after: StateTable, message: str) -> None:
    assert message in problems(before, after)


@pytest.mark.parametrize(
    ("before", "after", "wide"),
    [
        ("tinyint", "smallint", True),
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("int", "double", True),
        ("bigint", "double", False),
        ("float", "double", True),
        ("double", "float", False),
        ("decimal(10,2)", "decimal(12,2)", True),
        ("decimal(10,2)", "decimal(12,4)", True),
        ("decimal(10,2)", "decimal(12,5)", False),
        ("decimal(10,2)", "decimal(9,2)", False),
        ("date", "timestamp", False),
        ("int", "string", False),
    ],
)
def test_only_lossless_type_changes_are_accepted(before: str, after: str, wide: bool) -> None:
    assert widens(before, after) is wide


def test_older_files_are_read_with_the_current_declaration(tmp_path: Path) -> None:
    old = table("flights int, total decimal(10,2), note string")
    new = table(
        "flights bigint, total decimal(12,2), best double, seen date default '2013-01-31', gate string default 'x'"
    )
    store = SnapshotStore(str(tmp_path))
    rows = {
        "_kg": [1, 2],
        "_op": [PUT, PUT],
        "origin": ["JFK", "LAX"],
        "flights": [3, None],
        "total": [Decimal("1.50"), None],
        "note": ["a", "b"],
    }
    delta = write_delta(store, sort_changes(old, pa.table(rows, schema=old.delta_schema)), EpochKey("b", 1), 0, 1)

    read = read_delta(store, new, delta)

    assert read.schema == new.delta_schema
    by_origin = {row["origin"]: row for row in read.to_pylist()}
    assert by_origin["JFK"]["flights"] == 3 and by_origin["JFK"]["total"] == Decimal("1.50")
    assert by_origin["LAX"]["flights"] is None and by_origin["LAX"]["best"] is None
    assert by_origin["JFK"]["gate"] == "x" and str(by_origin["LAX"]["seen"]) == "2013-01-31"


def test_a_missing_key_column_is_refused(tmp_path: Path) -> None:
    old, new = table("n int"), table("n int", key="origin string, day date")
    store = SnapshotStore(str(tmp_path))
    rows = pa.table({"_kg": [1], "_op": [PUT], "origin": ["JFK"], "n": [1]}, schema=old.delta_schema)
    delta = write_delta(store, sort_changes(old, rows), EpochKey("b", 1), 0, 1)

    with pytest.raises(FileCorrupt, match="delays"):
        read_delta(store, new, delta)


def test_defaults_are_literals_of_their_column() -> None:
    columns = parse_columns(
        "state", "a int DEFAULT -3, b string default 'x, y', c boolean default TRUE, d double default null"
    )
    assert [column.default for column in columns] == [-3, "x, y", True, None]
    with pytest.raises(SchemaError, match="cannot be the default of column 'n'"):
        parse_columns("state", "n int default 'many'")


def test_a_column_without_default_is_serialised_without_it() -> None:
    assert table("n int").value[0].model_dump() == {"name": "n", "type": "int"}
    assert StateTable.model_validate_json(table("n int default 3").model_dump_json()) == table("n int default 3")
