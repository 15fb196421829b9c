"""Rows that a sink rejects: its task writes them to another sink in the same epoch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given

from epochal import Pipeline
from epochal.backends.dbms import DatabaseAddress, DbmsBackend, Writing
from epochal.backends.files import FilesBackend
from epochal.connectors import console, files, generator
from epochal.contracts.backend import SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.contracts.stream_kind import APPEND
from epochal.errors import EpochAborted, OptionError, PipelineError, RowRejected, SinkError
from epochal.faults import FaultPoint, injected
from epochal.pipeline.analysis import check_graph
from epochal.pipeline.description import describe
from epochal.pipeline.kinds import kinds_of
from epochal.snapshots.store import SnapshotStore
from epochal.tasks.dead_letters import DEAD_LETTER, DeadLetters, row_as_json
from epochal.tasks.sink import SinkTask
from epochal.tasks.steps import TaskAnswer
from tests.kit.lives import examples

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
Row = tuple[int, bytes | None, float]


class Orders:
    """An SQLite table with a NOT NULL column, and a files sink for the rows that it rejects."""

    def __init__(self, folder: Path, most: int = 1_000) -> None:
        self.folder, self.most = folder, most
        self.url = f"sqlite:///{folder}/orders.sqlite"
        self.execute("CREATE TABLE orders (id bigint, name varchar(40) NOT NULL, amount double)")
        place = SinkPlace("orders", SnapshotStore(str(folder / "store")))
        self.sink = DbmsBackend(place, DatabaseAddress.parse("dbms.sink", self.url, None, {}), Writing("orders"))
        self.rejected = FilesBackend(str(folder / "rejected"), "json")
        for each, schema in ((self.sink, COLUMNS), (self.rejected, DEAD_LETTER)):
            each.check(schema)
            each.recover(scope(0))

    def execute(self, statement: str) -> list[Any]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            result = connection.execute(sa.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def task(self, epoch: int) -> SinkTask:
        return SinkTask("orders", self.sink, scope(epoch), DeadLetters("orders-rejected", self.rejected, self.most))

    def commit(self, epoch: int, batches: Sequence[pa.RecordBatch]) -> list[Handle]:
        """Run the task and commit both sinks. Returns their handles."""
        rows = [row for batch in self.task(epoch)(batches) for row in batch.to_pylist()]
        assert [row["sink"] for row in rows] == ["orders", "orders-rejected"]
        handles = [TaskAnswer.decode(row["handle"]).handle for row in rows]
        self.sink.commit(scope(epoch), handles[:1])
        self.rejected.commit(scope(epoch), handles[1:])
        return handles

    @property
    def written(self) -> list[tuple[int, str, float]]:
        return self.execute("SELECT id, name, amount FROM orders ORDER BY rowid")

    @property
    def letters(self) -> list[dict[str, Any]]:
        """Dead letters in the order of epochs, with the row as Python values."""
        lines = [
            json.loads(line)
            for folder in sorted((self.folder / "rejected").glob("epoch=*"))
            for file in sorted(folder.iterdir())
            for line in file.read_text().splitlines()
        ]
        return [line | {"rejected_row": json.loads(line["rejected_row"])} for line in lines]


def scope(epoch: int) -> EpochScope:
    parent = EpochKey("main", epoch - 1) if epoch > 1 else None
    return EpochScope("orders", EpochKey("main", epoch), 1, parent)


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    """The rows, with text that may not be UTF-8, as Spark passes it."""
    ids, names, amounts = ([row[column] for row in rows] for column in range(3))
    texts = pa.array(names, pa.binary())
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), as_text(texts), pa.array(amounts)], schema=COLUMNS)


def as_text(column: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers(), column.null_count, column.offset)


def is_good(row: Row) -> bool:
    return row[1] is not None and b"\xff" not in row[1] and not math.isnan(row[2])


rows_drawn = st.lists(
    st.tuples(st.sampled_from([b"a", b"\xc3\xa9", b"\n", b"\xff", b"a\n\xff", None]), st.sampled_from([1.5, math.nan])),
    max_size=40,
)


@examples(25)
@given(st.lists(rows_drawn, min_size=1, max_size=4), st.integers(1, 17))
@pytest.mark.claim("docs/reference/sources-and-sinks.md: each row is in exactly one of the two sinks")
def test_each_row_is_in_exactly_one_sink_in_order(drawn: list[list[Any]], size: int) -> None:
    epochs = [[(number * 1_000 + n, *row) for n, row in enumerate(rows)] for number, rows in enumerate(drawn)]
    with TemporaryDirectory() as folder:
        orders = Orders(Path(folder))
        for number, rows in enumerate(epochs, start=1):
            handles = orders.commit(number, [batch_of(rows[at : at + size]) for at in range(0, len(rows), size)])
            good = sum(map(is_good, rows))
            assert [handle.rows for handle in handles] == [good, len(rows) - good]
        every = [row for rows in epochs for row in rows]
        assert [row[0] for row in orders.written] == [row[0] for row in every if is_good(row)]
        rejected = [(row[0] // 1_000 + 1, row[0]) for row in every if not is_good(row)]
        assert [(letter["rejected_in_epoch"], letter["rejected_row"]["id"]) for letter in orders.letters] == rejected
        assert all(letter["sink"] == "orders" and "Row " in letter["reason"] for letter in orders.letters)


def test_a_dead_letter_has_the_row_the_reason_and_the_origin(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.commit(1, [batch_of([(1, b"good", 1.0), (2, None, 2.5), (3, b"\xff\n'", 3.0)])])
    null, other_bytes = orders.letters
    assert (null["sink"], null["rejected_in_epoch"], null["subtask"]) == ("orders", 1, 0)
    assert null["rejected_row"] == {"id": 2, "name": None, "amount": 2.5}
    assert "'name' takes no null" in null["reason"]
    assert other_bytes["rejected_row"] == {"id": 3, "name": "\\xff\n'", "amount": 3.0}
    assert "not UTF-8" in other_bytes["reason"]


def test_a_dead_letter_holds_values_of_every_type() -> None:
    type = pa.struct([("texts", pa.list_(pa.string())), ("by_name", pa.map_(pa.string(), pa.string()))])
    texts = as_text(pa.array([b"\xff\xfe", b"ok"]))
    by_name = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), texts.slice(1), texts.slice(0, 1))
    nested = pa.StructArray.from_arrays(
        [pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), texts), by_name], fields=list(type)
    )
    far = pa.array([4_000_000], pa.int32()).view(pa.date32())
    row = pa.RecordBatch.from_arrays(
        [
            nested,
            pa.array([Decimal("12.50")], pa.decimal128(9, 2)),
            pa.array([datetime(2026, 1, 2, 3, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            pa.array([date(2026, 1, 2)]),
            far,
            pa.StructArray.from_arrays([far, pa.array(["ok"])], names=["day", "text"]),
            pa.array([b"\xff"], pa.binary()),
            pa.array([math.inf]),
        ],
        names=["nested", "price", "at", "day", "far", "within", "bytes", "infinite"],
    )
    assert json.loads(row_as_json(row)) == {
        "nested": {"texts": ["\\xff\\xfe", "ok"], "by_name": {"ok": "\\xff\\xfe"}},
        "price": "12.50",
        "at": "2026-01-02T03:00:00.000000Z",
        "day": "2026-01-02",
        "far": "12921-08-18",
        "within": {"day": "12921-08-18", "text": "ok"},
        "bytes": "/w==",
        "infinite": "Infinity",
    }


@pytest.mark.claim("docs/reference/sources-and-sinks.md: An epoch with more than `max_rejects` rejected rows fails")
def test_too_many_rejected_rows_fail_with_a_reason(tmp_path: Path) -> None:
    orders = Orders(tmp_path, most=2)
    orders.commit(1, [batch_of([(1, None, 1.0), (2, None, 1.0), (3, b"x", 1.0)])])
    with pytest.raises(RowRejected, match=r"'orders' rejects 3 rows or more of this epoch.* 2\..*takes no null"):
        orders.commit(2, [batch_of([(n, None, 1.0) for n in range(9)])])
    assert orders.rejected.sweep(scope(2), ()) == 0, "discarded"
    assert [row[0] for row in orders.written] == [3]


@pytest.mark.parametrize("point", ["T3.dead-letters.pre-committed", "T3.before-pre-commit", "T3.dbms.compacted"])
def test_a_failed_task_leaves_nothing_in_either_sink(point: str, tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    rows = [batch_of([(1, b"a", 1.0), (2, None, 1.0)])]
    hit = []

    def fail(at: FaultPoint, _epoch: int | None) -> None:
        if at.name == point and not hit:
            hit.append(at)
            raise OSError("the disk has failed")

    with injected(fail), pytest.raises(EpochAborted, match="the disk has failed"):
        orders.commit(1, rows)
    assert hit
    orders.sink.sweep(scope(1), ())
    orders.rejected.sweep(scope(1), ())
    assert (orders.written, orders.letters) == ([], [])
    orders.commit(1, rows)
    assert [row[0] for row in orders.written] == [1]
    assert [letter["rejected_row"]["id"] for letter in orders.letters] == [2]


def test_an_error_that_is_not_of_a_row_is_no_dead_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = Orders(tmp_path)

    def unavailable(*_: Any) -> None:
        raise SinkError("the target has failed")

    monkeypatch.setattr("epochal.backends.dbms.transaction.values.check", unavailable)
    with pytest.raises(SinkError, match="the target has failed"):
        orders.commit(1, [batch_of([(1, b"a", 1.0)])])


def test_the_sink_of_dead_letters_is_a_sink_of_the_graph(tmp_path: Path) -> None:
    pipeline = Pipeline("orders")
    rows = pipeline.read("rows", generator.source({"id": "id"}))
    counts = rows.key_by("id").aggregate("counts", n="count(*)")
    counts.write(
        "orders",
        files.sink(f"{tmp_path}/out", mode="updates"),
        on_reject="dead_letter",
        dead_letters=files.sink(f"{tmp_path}/rejected", format="json"),
        max_rejects=7,
    )
    graph = pipeline.graph()
    check_graph(graph)
    sinks = {node.name: node for node in graph.sinks}
    assert list(sinks) == ["orders", "orders-rejected"]
    rejected = sinks["orders-rejected"]
    assert graph.node(rejected.input) is sinks["orders"]
    assert kinds_of(graph)[rejected.input] == APPEND, "whatever the kind of the stream"
    described = describe(graph)
    assert described.sinks["orders-rejected"].endswith("/rejected")
    assert described.nodes[-1].description == rejected.description
    assert (rejected.description["rejected_by"], rejected.description["max_rejects"]) == ("orders", 7)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"on_reject": "skip"}, OptionError, "on_reject is 'skip'; it must be one of fail, dead_letter"),
        ({"on_reject": "dead_letter"}, PipelineError, "requires the sink of the rejected rows"),
        ({"dead_letters": console.sink()}, PipelineError, "used with on_reject='dead_letter' only"),
        ({"max_rejects": 5}, PipelineError, "used with on_reject='dead_letter' only"),
        (
            {"on_reject": "dead_letter", "dead_letters": console.sink(), "max_rejects": 0},
            OptionError,
            "max_rejects is 0; it must be an integer above 0",
        ),
        (
            {"on_reject": "dead_letter", "dead_letters": "orders"},
            PipelineError,
            "Dead_letters of sink 'out' is 'orders'",
        ),
    ],
)
def test_wrong_options_of_write_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    rows = Pipeline("orders").read("rows", generator.source({"id": "id"}))
    with pytest.raises(error, match=message):
        rows.write("out", console.sink(), **options)


def test_the_name_of_the_dead_letters_must_be_free() -> None:
    rows = Pipeline("orders").read("rows", generator.source({"id": "id"}))
    rows.write("out-rejected", console.sink())
    with pytest.raises(PipelineError, match="Two sinks are named 'out-rejected'"):
        rows.write("out", console.sink(), on_reject="dead_letter", dead_letters=console.sink())
    with pytest.raises(PipelineError, match="at most 63 characters"):
        rows.write("o" * 60, console.sink(), on_reject="dead_letter", dead_letters=console.sink())
