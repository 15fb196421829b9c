"""Loops as authors write them: refusals and descriptions; and runs of the engine on Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal.connectors import console, generator
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey
from epochal.declarations.feedback import feedback
from epochal.errors import InvalidInput, PipelineError, SchemaError
from epochal.operators.loops.plan import Closing
from epochal.pipeline.analysis import analyse
from epochal.pipeline.description import describe
from epochal.pipeline.stream import Stream
from epochal.snapshots import layout
from epochal.snapshots.bundle_reading import BundleReader
from epochal.snapshots.in_flight import against_going_on, held_after, payload_of, slice_of
from epochal.snapshots.manifest import FileInFlight, FileReference, RecordsInFlight
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column
from epochal.testing import Harness
from tests.kit.graphs import components, connected, rounds, rows_of_edges
from tests.kit.manifests import plain_manifest
from tests.spark.formats.make import BUNDLE, MAIN, _write_bundle

NUMBERS = {"name": "string(id)", "n": "id"}


def begun(**options: Any) -> tuple[Pipeline, Stream, Any]:
    pipeline = Pipeline("loop")
    return (
        pipeline,
        pipeline.read("rows", generator.source(NUMBERS)),
        pipeline.feedback("again", "name string, n bigint", **options),
    )


def test_a_loop_must_be_closed_once_and_read() -> None:
    pipeline, rows, loop = begun()
    both = rows.union(loop)
    both.write("out", console.sink())
    with pytest.raises(PipelineError, match=r"Loop 'again' is not closed. Call close\(stream\)"):
        pipeline.graph()
    loop.close(both)
    pipeline.graph()
    with pytest.raises(PipelineError, match=r"closed twice. Combine the streams with union\(\)"):
        loop.close(rows)
    pipeline, rows, loop = begun()
    rows.write("out", console.sink())
    loop.close(rows)
    with pytest.raises(PipelineError, match="Loop 'again' is not used"):
        pipeline.graph()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_hops": 0}, "max_hops is the maximum number of hops of a record, an integer from 1, not 0"),
        ({"max_hops": True}, "not True"),
        ({"aligned": 1}, "aligned must be True or False, not 1"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        begun(**options)


def test_invalid_names_and_schemas_are_refused() -> None:
    pipeline, _, _ = begun()
    with pytest.raises(PipelineError, match="Two sources are named 'rows'"):
        pipeline.feedback("rows", "n bigint")
    with pytest.raises(SchemaError, match="'_hop': names that start with '_' are reserved"):
        pipeline.feedback("hops", "n bigint, _hop int")
    with pytest.raises(PipelineError, match="a default, which only columns of state can"):
        pipeline.feedback("defaults", "n bigint DEFAULT 1")
    with pytest.raises(PipelineError, match=r"no dead letters without max_hops. Add feedback\(.., max_hops=..\)"):
        pipeline.feedback("unbounded", "n bigint").dead_letters()
    with pytest.raises(PipelineError, match=r"close\(\) takes a stream or table of the same pipeline"):
        pipeline.feedback("elsewhere", "n bigint").close(begun()[1])


def test_loop_accepts_only_append_streams() -> None:
    pipeline, rows, loop = begun()
    loop.close(rows.union(loop).key_by("name").aggregate("sums", n="sum(n)"))
    with pytest.raises(
        PipelineError, match=r"Loop 'again' accepts append, but operator 'sums' returns upsert\(name\).*process\(\)"
    ):
        analyse(pipeline.graph(), None)  # type: ignore[arg-type]


def test_watermark_after_a_loop_is_refused() -> None:
    pipeline, rows, loop = begun()
    rows.write("all", console.sink())
    timed = loop.with_columns(at="timestamp_seconds(n)").with_watermark("at", "1 second")
    timed.write("out", console.sink())
    loop.close(timed.drop("at"))
    with pytest.raises(
        PipelineError, match=r"with_watermark\('at'\) is after loop 'again': a watermark cannot pass a loop"
    ):
        pipeline.graph()


def test_description_of_a_loop_shows_its_ends_and_warnings() -> None:
    described = describe(components(max_hops=5).graph())
    ends = {node.type: node for node in described.nodes if node.name == "messages"}
    assert set(ends) == {"feedback", "close"}
    columns = {"vertex": "bigint", "neighbour": "bigint", "label": "bigint"}
    assert ends["feedback"].description == {"columns": columns, "aligned": False, "max_hops": 5}
    assert [column.name for column in described.loops["messages"]] == list(columns)
    assert described.warnings == ()
    pipeline, rows, loop = begun(max_hops=3)
    rows.union(loop).write("out", console.sink())
    loop.close(loop)
    (warning,) = describe(pipeline.graph()).warnings
    assert "Loop 'again': its dead letters are not used" in warning


COLUMNS = (Column(name="n", type="int"), Column(name="note", type="string"))


def file(path: str, rows: int) -> FileReference:
    return FileReference(path=path, sha256="0" * 64, bytes=1, rows=rows)


def test_slices_take_the_oldest_records_and_leave_the_rest() -> None:
    handle = _handle(file("a", 3), file("b", 4))
    held = held_after(None, None, [handle], COLUMNS, rounds=False)
    assert held.rows == 7
    slice = slice_of(held, 4)
    assert slice is not None and slice.rows == 4
    assert [(part["file"]["path"], part["first"], part["last"]) for part in slice.detail["files"]] == [
        ("a", 0, 3),
        ("b", 0, 1),
    ]
    after = held_after(held, slice, [_handle(file("c", 2))], COLUMNS, rounds=False)
    assert [(part.file.path, part.first, part.last) for part in after.files] == [("b", 1, 4), ("c", 0, 2)]
    assert held_after(after, None, [], COLUMNS, rounds=False) == after, "without a slice all records stay"
    assert slice_of(held_after(after, slice_of(after, None), [], COLUMNS, rounds=False), None) is None


def _handle(*files: FileReference) -> Handle:
    return Handle(owner="loop", subtask=0, rows=1, bytes=1, payload=payload_of(files))


@pytest.mark.parametrize(
    ("columns", "may_drop", "problem"),
    [
        (None, (), "has 3 records in flight, and is not in this version. Run the previous version until"),
        (None, ("again",), None),
        (COLUMNS, (), None),
        ((*COLUMNS, Column(name="added", type="date")), (), None),
        ((Column(name="n", type="bigint"), COLUMNS[1]), (), None),
        ((Column(name="n", type="string"), COLUMNS[1]), (), "whose column 'n' is int and would be string"),
        (COLUMNS[:1], (), "with a column 'note' that was dropped.*add 'again.note' to allow_dropped_state"),
        (COLUMNS[:1], ("again.note",), None),
    ],
)
def test_other_versions_must_accept_the_records_in_flight(columns: Any, may_drop: Any, problem: str | None) -> None:
    part = FileInFlight(file=file("a", 3), first=0, last=3)
    now = {} if columns is None else {"again": columns}
    problems = list(against_going_on({"again": RecordsInFlight(columns=COLUMNS, files=(part,))}, now, may_drop))
    assert not list(against_going_on({"again": RecordsInFlight(columns=COLUMNS)}, {}, ())), "no records in flight"
    if problem is None:
        assert problems == []
    else:
        (found,) = problems
        assert re.search(problem, found), found


def test_bundle_contains_the_records_in_flight(tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path / "store"))
    reference = store.write_file(layout.records_of_loop(EpochKey(MAIN, 7), "again", 0), b"records", 3)
    held = RecordsInFlight(columns=COLUMNS, files=(FileInFlight(file=reference, first=1, last=3),))
    snapshot = store.write_manifest(plain_manifest(7, branch=MAIN, loops={"again": held}))
    _write_bundle(tmp_path, store, snapshot)
    (tmp_path / "unpacked").mkdir()
    with BundleReader(tmp_path / BUNDLE, tmp_path / "unpacked") as bundle:
        assert len(list(bundle.epochs())) == 1
        members = list(bundle.members())
    (file,) = (member for member in members if member.kind == "files")
    assert file.paths == (reference.path,) and file.file.read_bytes() == b"records"


def test_stream_that_closes_a_loop_must_have_its_columns() -> None:
    closing = Closing(feedback("again", "name string, n bigint", max_hops=3, aligned=False))
    rows = pa.table({"n": [1], "name": ["a"], "_hop": pa.array([None], pa.int32())})
    assert closing.table(rows).to_pylist() == [{"name": "a", "n": 1, "_hop": 1}]
    for columns, message in [
        (["name", "_hop"], "no column 'n'; it has name, _hop. Select it"),
        (["name", "n"], r"column '_hop' does not reach close\(\): keep it in select"),
    ]:
        with pytest.raises(PipelineError, match=message):
            closing.table(rows.select(columns))
    with pytest.raises(PipelineError, match=r"a column 'more', which is not in the schema.*select\('name', 'n'\)"):
        closing.table(rows.append_column("more", [[1]]))


@pytest.mark.alternating(3)
@pytest.mark.claim("SDG, table 1, iteration")
def test_loop_on_spark_equals_a_search_in_memory(spark: SparkSession) -> None:
    """A column of another type is refused."""
    pipeline, rows, loop = begun()
    rows.write("out", console.sink())
    loop.close(rows.union(loop).select("name", "CAST(n AS INT) AS n"))
    with pytest.raises(PipelineError, match=r"'n' is int in the stream that closes it, and bigint .*with_columns\(n="):
        analyse(pipeline.graph(), spark)

    edges = [(0, 1), (1, 2), (10, 12)]
    graph = components(max_hops=2).graph()
    with Harness(graph, spark=spark) as test:
        test.epoch(edges=rows_of_edges(edges))
        assert test.in_flight == {"messages": 2 * len(edges)}
        with pytest.raises(InvalidInput, match="Records are in flight in messages"):
            test.drain()
        test.restart(parallelism=3)
        shown = test.settle()
        labels = {row["vertex"]: row["label"] for row in test.state("components.component").to_pylist()}
        assert labels == connected(edges)
        dead = pa.concat_tables(tables["dead"] for tables in shown).to_pylist()
        assert dead == [{"vertex": 1, "neighbour": None, "label": 0, "_hop": 3}]


@pytest.mark.slow
@pytest.mark.long
def test_records_of_each_round_on_spark_carry_its_hop_number(spark: SparkSession) -> None:
    """Other tests run the same loop on the engine without Spark. Here Spark computes the hop."""
    with Harness(rounds(max_hops=1).graph(), spark=spark) as test:
        test.epoch(rows=[{"name": "a", "n": 9}, {"name": "b", "n": 1}])
        shown = test.settle()
        hops = [sorted((row["name"], row["n"], row["hop"]) for row in tables["said"].to_pylist()) for tables in shown]
        assert hops == [[("a", 8, 1), ("b", 0, 1)], [], []]
        assert [tables["dead"].to_pylist() for tables in shown] == [[], [{"name": "a", "n": 7, "_hop": 2}], []]
