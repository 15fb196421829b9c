"""The Iceberg sink: what it refuses, what stops it, and that nothing is written twice or lost beside other writers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ServiceUnavailableError
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, LongType, StringType

from epochal.backends.iceberg.address import IcebergAddress
from epochal.backends.iceberg.append import staged_append
from epochal.backends.iceberg.schema import partition_of
from epochal.backends.iceberg.sink import IcebergSink
from epochal.connectors import iceberg
from epochal.contracts.backend import DecidedEpoch, SinkPlace
from epochal.errors import OptionError, OutcomeUnknown, RowRejected, SchemaError, SinkAhead, SinkError, SinkUnavailable
from epochal.faults import FaultPoint, injected
from epochal.secrets import secret
from epochal.testing.sink_contract import SCHEMA, DecidedEpochs, epoch, pre_commit, rows, same
from tests.kit.iceberg_tables import IcebergCatalog, sqlite_catalog

Change = Callable[[Table], None]


@pytest.fixture
def orders(tmp_path: Path) -> IcebergCatalog:
    return sqlite_catalog(tmp_path)


@pytest.fixture
def decided() -> DecidedEpochs:
    return DecidedEpochs()


def started(orders: IcebergCatalog, attempt: int = 1, at: int = 0) -> IcebergSink:
    sink = orders.make()
    sink.check(SCHEMA)
    sink.recover(epoch(at, attempt))
    return sink


def opened(orders: IcebergCatalog) -> Table:
    table = orders.table()
    assert table is not None
    return table


def test_another_writer_commits_between_marker_and_commit(orders: IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(orders)
    handle = pre_commit(sink, epoch(1), rows(1))
    others = 0

    def write(point: FaultPoint, number: int | None) -> None:
        nonlocal others
        if point.name == "E5.table.loaded" and others < 3:
            others += 1
            opened(orders).append(pa.Table.from_pylist(rows(100 + others), SCHEMA))

    with injected(write):
        decided.commit(sink, epoch(1), [handle])
    assert others == 3
    assert same(orders.visible(), rows(1, 101, 102, 103))


def test_two_drivers_commit_the_same_epoch(orders: IcebergCatalog, decided: DecidedEpochs) -> None:
    first, second = started(orders), started(orders, attempt=2)
    handle = pre_commit(first, epoch(1), rows(1, 2))
    raced = False

    def race(point: FaultPoint, number: int | None) -> None:
        nonlocal raced
        if point.name == "E5.table.loaded" and not raced:
            raced = True
            decided.commit(second, epoch(1), [handle])

    with injected(race):
        decided.commit(first, epoch(1), [handle])
    assert raced
    assert same(orders.visible(), rows(1, 2))


class LostCommits:
    """Makes the catalog's next commits land and then fail with an error."""

    def __init__(self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit = catalog.commit_table
        self._catalog = catalog
        self._monkeypatch = monkeypatch
        self.calls = 0

    def fail(self, error: Exception, lands: bool, times: int = 1) -> None:
        def commit(*arguments: Any) -> Any:
            self.calls += 1
            if self.calls > times:
                return self._commit(*arguments)
            if lands:
                self._commit(*arguments)
            raise error

        self._monkeypatch.setattr(self._catalog, "commit_table", commit)


@pytest.fixture
def lost(orders: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> LostCommits:
    return LostCommits(orders.catalog, monkeypatch)


@pytest.mark.parametrize(
    "error", [CommitFailedException("409"), ServiceUnavailableError("503"), ConnectionError("cut")]
)
def test_an_error_after_the_commit_has_landed(
    orders: IcebergCatalog, decided: DecidedEpochs, lost: LostCommits, error: Exception
) -> None:
    sink = started(orders)
    handles = [pre_commit(sink, epoch(number), rows(number)) for number in (1, 2)]
    lost.fail(error, lands=True)
    decided.commit(sink, epoch(1), handles[:1])
    decided.commit(sink, epoch(2), handles[1:])
    assert lost.calls == 2
    assert same(orders.visible(), rows(1, 2))


def test_an_error_before_the_commit_lands_is_retried(
    orders: IcebergCatalog, decided: DecidedEpochs, lost: LostCommits
) -> None:
    sink = started(orders)
    handle = pre_commit(sink, epoch(1), rows(1))
    lost.fail(ConnectionError("cut"), lands=False)
    with pytest.raises(OutcomeUnknown, match="whether epoch 1 is committed is not known yet"):
        decided.commit(sink, epoch(1), [handle])
    decided.commit(sink, epoch(1), [handle])
    assert same(orders.visible(), rows(1))


def test_the_catalog_is_away(orders: IcebergCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise ConnectionError("Connection refused")

    monkeypatch.setattr(orders.catalog, "load_table", away)
    with pytest.raises(SinkUnavailable, match=r"Sink 'out' \(iceberg:sqlite.*could not read the table: Connection ref"):
        orders.make().check(SCHEMA)


def test_an_epoch_can_be_given_up(orders: IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(orders)
    decided.commit(sink, epoch(1), [pre_commit(sink, epoch(1), rows(1))])
    handle = pre_commit(sink, epoch(2), rows(2))
    late = False

    def give_up(point: FaultPoint, number: int | None) -> None:
        """Another driver gives the epoch up while this one commits it."""
        nonlocal late
        if point.name == "E5.table.loaded" and not late:
            late = True
            other = started(orders, attempt=2, at=2)
            other.commit_decided([DecidedEpoch(epoch(2), (), 1, given_up=True)])
            other.abort(epoch(2), [handle])

    with injected(give_up):
        sink.commit_decided([DecidedEpoch(epoch(2), (handle,), 1)])
    sink.commit_decided([DecidedEpoch(epoch(3), (pre_commit(sink, epoch(3), rows(3)),), 2)])
    assert late
    assert same(orders.visible(), rows(1, 3))
    assert len(orders.leftovers()) == 1  # a snapshot could name a file of a decided epoch


def test_an_epoch_that_was_committed_before_it_is_given_up_stays(
    orders: IcebergCatalog, decided: DecidedEpochs
) -> None:
    sink = started(orders)
    handle = pre_commit(sink, epoch(1), rows(1))
    decided.commit(sink, epoch(1), [handle])
    sink.commit_decided([DecidedEpoch(epoch(1), (), None, given_up=True)])
    sink.abort(epoch(1), [handle])
    assert same(orders.visible(), rows(1))


def test_rolling_the_table_back_does_not_write_epochs_again(orders: IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(orders)
    for number in (1, 2):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    table = opened(orders)
    table.manage_snapshots().rollback_to_snapshot(table.history()[0].snapshot_id).commit()
    decided.commit(sink, epoch(2), [])
    decided.commit(sink, epoch(3), [pre_commit(sink, epoch(3), rows(3))])
    assert same(orders.visible(), rows(1, 3))


def test_expired_snapshots_do_not_matter(orders: IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(orders)
    for number in (1, 2, 3):
        decided.commit(sink, epoch(number), [pre_commit(sink, epoch(number), rows(number))])
    opened(orders).maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    decided.commit(sink, epoch(4), [pre_commit(sink, epoch(4), rows(4))])
    assert same(orders.visible(), rows(1, 2, 3, 4))


def test_a_table_that_was_replaced_stops_the_sink(orders: IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(orders)
    decided.commit(sink, epoch(1), [pre_commit(sink, epoch(1), rows(1))])
    handle = pre_commit(sink, epoch(2), rows(2))
    orders.catalog.drop_table(orders.address.table)
    with pytest.raises(SinkError, match="the table does not exist any more"):
        decided.commit(sink, epoch(2), [handle])
    orders.catalog.create_table(orders.address.table, SCHEMA)
    with pytest.raises(SinkError, match=r"cannot commit epoch 2: it has no marker.*epoch 1 was committed"):
        decided.commit(sink, epoch(2), [handle])


def test_a_marker_that_is_no_number_stops_the_sink(orders: IcebergCatalog) -> None:
    sink = started(orders)
    handle = pre_commit(sink, epoch(1), rows(1))
    with opened(orders).transaction() as transaction:
        transaction.set_properties({"epochal.epoch.main.out": "x"})
    with pytest.raises(SinkError, match="is 'x', and not the number of an epoch"):
        sink.commit_decided([DecidedEpoch(epoch(1), (handle,))])


def test_applications_that_share_a_table_have_markers_of_their_own(orders: IcebergCatalog) -> None:
    one, other = started(orders), IcebergSink(SinkPlace("other"), orders.address)
    other.check(SCHEMA)
    other.recover(epoch(0))
    one.commit_decided([DecidedEpoch(epoch(5), (pre_commit(one, epoch(5), rows(5)),))])
    other.commit_decided([DecidedEpoch(epoch(2), (pre_commit(other, epoch(2), rows(2)),))])
    assert same(orders.visible(), rows(2, 5))
    with pytest.raises(SinkAhead):
        started(orders, attempt=2, at=4)


def _drop(table: Table) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("name")


def _repartition(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("name", IdentityTransform(), "name")


@pytest.mark.parametrize(
    ("change", "message"), [(_drop, "column 'name' was dropped"), (_repartition, "its partitions were changed")]
)
def test_a_table_that_changes_stops_the_sink(
    orders: IcebergCatalog, decided: DecidedEpochs, change: Change, message: str
) -> None:
    sink = started(orders)
    handle = pre_commit(sink, epoch(1), rows(1))
    change(opened(orders))
    with pytest.raises(
        SinkError, match=f"cannot commit epoch 1: the table was changed.*{message}.*abort application out 1"
    ):
        decided.commit(sink, epoch(1), [handle])
    assert orders.visible() == []


def test_a_table_may_gain_and_rename_columns(orders: IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(orders)
    handle = pre_commit(sink, epoch(1), rows(1))
    with opened(orders).update_schema() as update:
        update.add_column("day", DateType())
        update.rename_column("name", "title")
    decided.commit(sink, epoch(1), [handle])
    assert orders.visible() == [{"id": row["id"], "title": row["name"], "day": None} for row in rows(1)]
    with pytest.raises(SchemaError, match="cannot append these rows"):
        orders.make().check(SCHEMA)


def test_missing_files_stop_the_sink(orders: IcebergCatalog, decided: DecidedEpochs) -> None:
    sink = started(orders)
    handle = pre_commit(sink, epoch(1), rows(1))
    path = Path(handle.payload["files"][0]["path"].removeprefix("file://"))
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(
        SinkError, match=r"has lost 1 of 1 files of epoch 1.*`epochal transaction abort application out 1`"
    ):
        decided.commit(sink, epoch(1), [handle])
    path.write_bytes(data)
    decided.commit(sink, epoch(1), [handle])
    assert same(orders.visible(), rows(1))


def test_a_required_column_is_checked_by_tasks(orders: IcebergCatalog) -> None:
    required = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), nullable=False)])
    orders.catalog.create_table(orders.address.table, required)
    sink = started(orders)
    with pytest.raises(RowRejected, match=r"a row has no value for column 'name', which the table requires"):
        pre_commit(sink, epoch(1), rows(5))
    sink.commit_decided([DecidedEpoch(epoch(1), (pre_commit(sink, epoch(1), rows(1)),))])
    assert same(orders.visible(), rows(1))


@pytest.mark.parametrize(
    ("schema", "partition_by", "message"),
    [
        (SCHEMA, ["day(time)"], "'time' is not a column of the rows"),
        (SCHEMA, ["day(name)"], "cannot be partitioned by 'day.name.': 'name' is string"),
        (pa.schema([("id", pa.duration("us"))]), [], "cannot write these columns"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, schema: pa.Schema, partition_by: list[str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        sqlite_catalog(tmp_path, partition_by=partition_by).make().check(schema)


@pytest.mark.parametrize("text", ["days(time)", "bucket(id)", "bucket(0, id)", "day(3, time)"])
def test_unknown_partitions_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not a partition\. Write a column, or year, month, day"):
        partition_of("iceberg.sink", text)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "needs a catalog"),
        ({"type": "rest", "uri": "catalog:8181"}, "uri must be a URL"),
        ({"type": "rest", "uri": "http://catalog:8181", "token": "plain"}, "'token' must be a secret"),
        ({"type": "rest", "uri": "http://catalog:8181", "py-io-impl": "a.B"}, "'py-io-impl' is not supported"),
        ({"type": "sql", "uri": "postgresql://me:plain@db/catalog"}, "the catalog's uri has a password"),
        ({"type": "nessie", "uri": "http://catalog:8181"}, "types are rest, sql, glue, hive"),
    ],
)
def test_catalogs_that_are_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        IcebergAddress.checked("iceberg.sink", "sales.orders", "default", properties)
    assert "plain" not in refused.value.message


def test_secrets_do_not_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "very secret")
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path / 'catalog.sqlite'}",
        "warehouse": f"file://{tmp_path}",
        "s3.secret-access-key": secret("env:SECRET"),
    }
    sink = started(IcebergCatalog(properties))
    from pyspark import cloudpickle

    assert b"very secret" not in cloudpickle.dumps(sink)  # type: ignore[no-untyped-call]
    assert "very secret" not in str(sink.target)


def test_other_partitions_than_those_of_the_table_are_refused(tmp_path: Path) -> None:
    started(sqlite_catalog(tmp_path, partition_by=["bucket(4, id)"]))
    started(sqlite_catalog(tmp_path, partition_by=["bucket(4, id)"]), attempt=2)
    with pytest.raises(SinkError, match=r"partition_by is bucket\(8, id\), and the table has other partitions"):
        started(sqlite_catalog(tmp_path, partition_by=["bucket(8, id)"]), attempt=3)


def test_a_missing_namespace_is_named(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'c.sqlite'}", "warehouse": f"file://{tmp_path}"}
    address = IcebergAddress.checked("iceberg.sink", "sales.orders", "default", properties)
    sink = IcebergSink(SinkPlace("out"), address)
    sink.check(SCHEMA)
    with pytest.raises(SinkError, match=r"the catalog has no namespace 'sales'\. Create it"):
        sink.recover(epoch(0))


@pytest.mark.parametrize(
    ("properties", "warned"),
    [
        ({"history.expire.max-snapshot-age-ms": "3600000"}, True),
        ({"history.expire.max-snapshot-age-ms": "3600000", "gc.enabled": "false"}, False),
        ({"history.expire.max-snapshot-age-ms": "86400000"}, False),
        ({}, False),
    ],
)
def test_snapshots_that_expire_within_a_day_are_a_warning(
    orders: IcebergCatalog, properties: dict[str, str], warned: bool
) -> None:
    started(orders)
    if properties:
        with opened(orders).transaction() as transaction:
            transaction.set_properties(properties)
    warnings = orders.make().warnings()
    assert len(warnings) == warned
    for warning in warnings:
        assert "history.expire.max-snapshot-age-ms of the table is 3600000" in warning
        assert "Set it to at least 86400000." in warning


def test_a_missing_table_has_no_warnings(orders: IcebergCatalog) -> None:
    assert orders.make().warnings() == []


@pytest.mark.parametrize(
    ("commit_every", "note"),
    [(None, "for each epoch"), ("5 s", "more often than once a minute"), ("59 s", "more often"), ("1 min", None)],
)
def test_frequent_snapshots_are_noted(commit_every: str | None, note: str | None) -> None:
    found = iceberg.sink("a.b", catalog={"type": "sql", "uri": "sqlite:///c.sqlite"}, commit_every=commit_every).note
    assert (found is None) == (note is None)
    assert note is None or note in str(found)


def test_private_parts_of_the_library(orders: IcebergCatalog) -> None:
    """Private functions of the library that the sink calls. A new version must be read before it is allowed."""
    from importlib.metadata import version

    from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate

    assert version("pyiceberg").startswith("0.12.")
    started(orders)
    append = staged_append(opened(orders), [], {}, merge=True)
    assert [type(each) for each in append.updates] == [AddSnapshotUpdate, SetSnapshotRefUpdate]
    assert [type(each) for each in append.requirements] == [AssertRefSnapshotId]
    assert not append.merge_failed
    assert opened(orders).schema().find_type("id") == LongType()
    assert opened(orders).schema().find_type("name") == StringType()
