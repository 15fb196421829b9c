"""Delivery of a sink: the option, the default from the application's guarantee, and what the sink supports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import hypothesis.strategies as st
import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given

from epochal import Pipeline
from epochal.backends.dbms import DatabaseAddress, DbmsBackend, Writing
from epochal.connectors import console, dbms, files, generator, hdfs, kafka
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Configuration, Delivery
from epochal.errors import EpochAborted, OptionError
from epochal.pipeline.graph import SinkNode
from epochal.snapshots.store import SnapshotStore
from epochal.testing.invariants import delivery_violations
from tests.kit.lives import Life, Step, examples, failing_at, steps

COLUMNS = pa.schema([("number", pa.int64()), ("value", pa.string())])


@pytest.mark.claim(
    "docs/concepts/guarantees.md: A `delivery` that a sink cannot provide is refused where the pipeline names it"
)
def test_unsupported_deliveries_are_refused() -> None:
    whole = (
        r"files.sink does not support delivery='at_least_once': .*together, or not at all.* Supported: exactly_once\."
    )
    with pytest.raises(OptionError, match=whole):
        files.sink("/tmp/out", delivery="at_least_once")
    with pytest.raises(OptionError, match=r"hdfs.sink does not support delivery='at_least_once'"):
        hdfs.sink("http://namenode:9870", "/out", delivery="at_least_once")
    with pytest.raises(OptionError, match=r"console.sink does not support delivery='idempotent'"):
        console.sink(delivery="idempotent")
    with pytest.raises(
        OptionError, match=r"kafka.sink does not support delivery='idempotent': a topic keeps every record"
    ):
        kafka.sink("localhost:9092", "topic", delivery="idempotent")
    with pytest.raises(
        OptionError, match=r"two_phase_sink does not support delivery='at_least_once': .*dbms.sink can do less"
    ):
        dbms.two_phase_sink("postgresql://localhost/x", "rows", delivery="at_least_once")
    with pytest.raises(OptionError, match=r"delivery is 'once'; it must be one of"):
        kafka.sink("localhost:9092", "topic", delivery="once")  # type: ignore[arg-type]


@pytest.mark.claim(
    "docs/concepts/guarantees.md: A sink that names its `delivery` keeps it. A sink that can deliver exactly once "
    "only does so with either guarantee."
)
def test_the_guarantee_is_the_default_of_sinks_with_weaker_deliveries(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/out.sqlite"
    pipeline = Pipeline("delivered")
    rows = pipeline.read("rows", generator.source({"number": "id"}))
    rows.write("folder", files.sink(str(tmp_path / "out")))
    rows.write("topic", kafka.sink("localhost:9092", "topic"))
    rows.write("checked", dbms.sink(database, "checked", delivery="exactly_once"))
    rows.write("keyed", dbms.sink(database, "keyed", keys="number", delivery="idempotent"))
    sinks = {node.name: node for node in pipeline.graph().nodes if isinstance(node, SinkNode)}
    strict = {name: node.delivered(Configuration().guarantee) for name, node in sinks.items()}
    assert strict == {
        "folder": "exactly_once",
        "topic": "exactly_once",
        "checked": "exactly_once",
        "keyed": "idempotent",
    }
    loose = {name: node.delivered("at_least_once") for name, node in sinks.items()}
    assert loose == strict | {"topic": "at_least_once"}


class Table:
    """An SQLite table that persists across attempts."""

    def __init__(self, folder: Path, delivery: Delivery) -> None:
        self.url, self.delivery = f"sqlite:///{folder}/{uuid4().hex}.sqlite", delivery
        self.store = SnapshotStore(str(folder / "logs"))

    def sink(self, name: str) -> SinkBackend:
        keys = ("number",) if self.delivery == "idempotent" else ()
        writing = Writing("rows", keys=keys, create=True)
        place = SinkPlace(name, self.store, self.delivery)
        return DbmsBackend(place, DatabaseAddress.parse("dbms.sink", self.url, None, {}), writing)

    @property
    def numbers(self) -> Counter[int]:
        engine = sa.create_engine(self.url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return Counter(row.number for row in connection.execute(sa.text("SELECT number FROM rows")))


def run_epochs(
    folder: Path, delivery: Delivery, counts: Sequence[int], schedule: Sequence[Step]
) -> tuple[Table, list[Any]]:
    pipeline = Pipeline("delivered")
    pipeline.read("rows", generator.source({"number": "id", "value": "''"})).write("out", console.sink())
    table, epochs, first = Table(folder, delivery), [], 0
    for count in counts:
        epochs.append({"rows": [{"number": first + n, "value": "x"} for n in range(count)]})
        first += count
    with Life(pipeline, {"rows": COLUMNS}, make_sink=table.sink) as life:
        life.live(epochs, schedule)
        life.finish()
    return table, epochs


@examples(5)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), steps())
@pytest.mark.claim("Thesis, 4.5.4, sinks")
@pytest.mark.claim("docs/concepts/guarantees.md: its rows appear again; no row is missing")
def test_at_least_once_loses_no_rows_and_repeats_only_rerun_epochs(counts: list[int], schedule: list[Step]) -> None:
    with temporary_folder() as folder:
        table, epochs = run_epochs(folder, "at_least_once", counts, schedule)
        shown = table.numbers
    expected = [Counter(row["number"] for row in epoch["rows"]) for epoch in epochs]
    repeats = [_runs(schedule[number % len(schedule)]) - 1 for number in range(len(epochs))]
    assert delivery_violations(expected, repeats, shown) == []


@examples(4)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), steps())
@pytest.mark.claim("Thesis, 4.5.6")
@pytest.mark.claim("docs/concepts/guarantees.md: its rows replace those that it wrote before")
def test_idempotent_delivery_leaves_the_rows_of_exactly_once(counts: list[int], schedule: list[Step]) -> None:
    with temporary_folder() as folder:
        table, epochs = run_epochs(folder, "idempotent", counts, schedule)
        assert table.numbers == Counter(row["number"] for epoch in epochs for row in epoch["rows"])


@pytest.mark.parametrize("point", ["T3.dbms.direct-applied", "T3.dbms.direct-committed"])
@pytest.mark.parametrize("delivery", ["at_least_once", "idempotent"])
def test_a_task_failure_during_a_write_loses_no_rows(point: str, delivery: Delivery, tmp_path: Path) -> None:
    pipeline = Pipeline("delivered")
    pipeline.read("rows", generator.source({"number": "id", "value": "''"})).write("out", console.sink())
    table = Table(tmp_path, delivery)
    with Life(pipeline, {"rows": COLUMNS}, make_sink=table.sink) as life:
        with failing_at(point, OSError("the network is down")) as fired, pytest.raises(EpochAborted):
            life.epoch(rows=[{"number": number, "value": "x"} for number in range(4)])
        assert fired
        life.epoch()
        life.finish()
    repeats = 1 if point.endswith("committed") and delivery == "at_least_once" else 0
    assert delivery_violations([Counter(range(4))], [repeats], table.numbers) == []


def test_lost_and_repeated_rows_are_reported() -> None:
    expected = [Counter([1, 2]), Counter([3])]
    assert delivery_violations(expected, [0, 1], Counter([1, 2, 3, 3])) == []
    assert delivery_violations(expected, [0, 0], Counter([1, 2, 3, 3])) == ["is there 1 too often: 3"]
    assert delivery_violations(expected, [0, 1], Counter([1, 3])) == ["is lost: 2"]
    assert delivery_violations(expected, [0, 1], Counter([1, 2, 3, 4])) == ["was never given: 4"]


def _runs(step: Step) -> int:
    """Maximum number of times that the tasks of the epoch may have run."""
    return 2 if step.disruption in ("abort", "die") else 1


@contextmanager
def temporary_folder() -> Iterator[Path]:
    with TemporaryDirectory() as name:
        yield Path(name)
