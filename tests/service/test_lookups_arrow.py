"""Batch look-ups and scans as Arrow streams: exact types of the state, and errors as problem documents."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from epochal.client import Client
from epochal.errors import InvalidKey
from epochal.state.json_form import to_json
from epochal.state.table import Quotient, StateKind, StateTable
from epochal.state.types import arrow_type
from epochal.wire.state import ARROW_STREAM
from tests.service.lookups import DELAYS, StateDriver, get, route, table

if TYPE_CHECKING:
    from tests.service.conftest import Plane

VALUES = table(
    "values",
    StateKind.VALUE,
    "k int",
    "d date, m decimal(38,10), t timestamp, n timestamp_ntz, y binary, f float, s smallint, b boolean",
).model_copy(update={"shown": (Quotient(name="share", dividend="f", divisor="s"),)})
MOMENT = datetime(2013, 1, 31, 5, 15, 0, 7, tzinfo=UTC)
ROW = {
    "d": MOMENT.date(),
    "m": Decimal("1234567890123456789012345678.0123456789"),
    "t": MOMENT,
    "n": MOMENT.replace(tzinfo=None),
    "y": b"\x00\xff",
    "f": 3.0,
    "s": 2,
    "b": False,
}


@pytest.fixture
def served(plane: Plane) -> Plane:
    plane.application()
    driver = StateDriver(plane, tables=(DELAYS, VALUES))
    driver.epoch((DELAYS, [route("JFK", "LAX", 1, 2.5)]), (VALUES, [{"k": 1, **ROW}, {"k": 2, "s": 0, "f": 1.0}]))
    driver.epoch((DELAYS, [route("JFK", "LAX", 2, 2.5)]))
    get(plane, "JFK,LAX", min_epoch=2)
    return plane


def client_of(plane: Plane) -> Client:
    return Client(plane.settings.url, plane.client.headers["authorization"].removeprefix("Bearer "))


def test_values_keep_their_types_and_the_order_of_the_keys(served: Plane) -> None:
    with client_of(served) as client:
        state = client.application("flights").state("values")
        found = state.lookup_table([{"k": 2}, {"k": 9}, {"k": 1}, {"k": 1}])
        empty, nothing = state.lookup_table([]), state.lookup_table([{"k": 9}])
        frame = state.lookup_frame([{"k": 1}, {"k": 9}])
        past = client.application("flights").state("delays").lookup_table([route("JFK", "LAX")], epoch=1)
    expected = pa.schema(
        [
            pa.field("_found", pa.bool_(), nullable=False),
            *VALUES.value_schema,
            pa.field("share", pa.float64()),
        ]
    )
    assert found.schema.equals(expected) and empty.schema.equals(expected) and empty.num_rows == 0
    nulls: dict[str, Any] = dict.fromkeys([*ROW, "share"])
    whole = {"_found": True, **ROW, "share": 1.5}
    none = {"_found": False, **nulls}
    assert found.to_pylist() == [{**nulls, "_found": True, "s": 0, "f": 1.0}, none, whole, whole]
    assert nothing.to_pylist() == [none]
    branch = get(served, "JFK,LAX")["branch"]
    assert found.schema.metadata == {
        b"table": b"values",
        b"branch": branch.encode(),
        b"epoch": b"2",
        b"isolation": b"read_committed",
    }
    assert (past.schema.metadata[b"epoch"], past["flights"].to_pylist()) == (b"1", [1])
    assert [str(type) for type in frame.dtypes[["s", "_found"]]] == ["int16[pyarrow]", "bool[pyarrow]"]
    assert frame["s"].isna().tolist() == [False, True] and frame["m"][0] == ROW["m"]


def test_arrow_is_sent_only_when_accepted_and_errors_are_problems(served: Plane) -> None:
    path = "/v1/applications/flights/state/delays/lookup"
    body = {"keys": [route("JFK", "LAX")]}
    for accept, type in (
        ("*/*", "application/json"),
        ("application/json, Application/Vnd.Apache.Arrow.Stream;q=0.9", ARROW_STREAM),
    ):
        answer = served.client.post(path, json=body, headers={"Accept": accept})
        assert (answer.status_code, answer.headers["content-type"]) == (200, type)
    for wrong, slug in (
        ({"keys": [{"origin": "JFK"}]}, "invalid-key"),
        ({"keys": [{}] * 10_001}, "invalid-request"),
        ({"keys": [], "epoch": 9}, "not-found"),
    ):
        answer = served.client.post(path, json=wrong, headers={"Accept": ARROW_STREAM})
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"].endswith(f":{slug}")
    with served.as_bearer(None) as anonymous:
        assert anonymous.post(path, json=body, headers={"Accept": ARROW_STREAM}).status_code == 401
    with client_of(served) as client, pytest.raises(InvalidKey):
        client.application("flights").state("delays").lookup_table([{"origin": "JFK"}])


def test_arrow_scan_has_the_same_pages_as_the_json_scan(served: Plane) -> None:
    with client_of(served) as client:
        for declared, options in (
            (DELAYS, {}),
            (DELAYS, {"epoch": 1}),
            (VALUES, {"isolation": "read_uncommitted"}),
            (VALUES, {"epoch": 1}),
        ):
            state = client.application("flights").state(declared.id)
            objects, columns = [state.scan(limit=1, **options)], [state.scan_table(limit=1, **options)]
            while (cursor := objects[-1].next_cursor) is not None:
                objects.append(state.scan(limit=1, cursor=cursor, **options))
                columns.append(state.scan_table(limit=1, cursor=cursor, **options))
            for page, rows in zip(objects, columns, strict=True):
                metadata = {name.decode(): text.decode() for name, text in rows.schema.metadata.items()}
                further = {} if page.next_cursor is None else {"next_cursor": page.next_cursor}
                origin = {"table": page.table, "branch": page.branch, "epoch": str(page.epoch)}
                assert metadata == {**origin, "isolation": page.isolation, **further}
                assert shown(declared, rows) == [{**row.key, **row.value} for row in page.items]
            assert [comparable(rows) for rows in state.scan_tables(limit=1, **options)] == [*map(comparable, columns)]
            types = columns[0].schema.remove_metadata()
            assert types.equals(pa.schema([*declared.address_schema, *types_of(declared)]))
            frame = state.scan_frame(limit=1, **options)
            assert len(frame) == sum(rows.num_rows for rows in columns) and list(frame.columns) == types.names
        nothing = client.application("flights").state("delays").scan_table("nowhere")
    assert nothing.num_rows == 0 and nothing.schema.names == ["origin", "destination", "flights", "worst"]


def comparable(rows: pa.Table) -> Any:
    return rows.schema.to_string(), rows.schema.metadata, rows.to_pylist()


def shown(declared: StateTable, rows: pa.Table) -> list[dict[str, Any]]:
    types = {column.name: column.type for column in (*declared.address, *declared.visible, *declared.shown)}
    return [{name: to_json(value, types[name]) for name, value in row.items()} for row in rows.to_pylist()]


def types_of(declared: StateTable) -> list[pa.Field]:
    return [*declared.value_schema, *(pa.field(column.name, arrow_type(column.type)) for column in declared.shown)]
