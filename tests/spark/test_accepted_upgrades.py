"""Upgrade differences that are refused unless accepted by name, and the values of the runs that follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal.cli.lineage import _accepted
from epochal.connectors import console, files
from epochal.contracts.configuration import Acceptance, Configuration, ExecutionOrders
from epochal.engine.execution import run
from epochal.engine.trial import Tried, run_trial
from epochal.errors import IncompatibleState, InvalidInput
from epochal.pipeline.graph import Graph
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.reader import SnapshotReader
from epochal.snapshots.store import SnapshotStore
from epochal.state.accepted_differences import accepted_differences, unused_acceptance
from epochal.state.continuing import continued
from epochal.state.definition import ColumnDefinition, Definition, InputDefinition, Leaf, OperatorDefinition
from epochal.state.evolution import compare
from epochal.state.table import Column, Quotient, StateKind, StateTable
from epochal.testing.memory_catalog import MemoryCatalog, MemoryCatalogState

COUNT = {"n": "count(*)", "lo": "min(v)"}


@dataclass
class Application:
    """Runs of versions of one application over the files received so far, each as a driver runs it."""

    spark: SparkSession
    folder: Path
    catalog: MemoryCatalogState = field(default_factory=MemoryCatalogState)
    attempts: int = 0

    def graph(self, **aggregates: str) -> Graph:
        pipeline = Pipeline("totals")
        source = files.source(str(self.folder / "in"), format="json", schema="k string, v bigint")
        totals = pipeline.read("rows", source).key_by("k").aggregate("totals", **aggregates)
        totals.write("out", console.sink())
        return pipeline.graph()

    def receive(self, *rows: tuple[str, int]) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        text = "\n".join(json.dumps({"k": k, "v": v}) for k, v in rows)
        (self.folder / "in" / f"{len(list((self.folder / 'in').iterdir()))}.json").write_text(text)

    def orders(self, changed: Sequence[str] = (), partial: Sequence[str] = (), **more: Any) -> ExecutionOrders:
        self.attempts += 1
        return ExecutionOrders(
            application="totals",
            execution="one",
            attempt=self.attempts,
            artifact=f"{self.attempts:064x}",
            configuration=Configuration(state_backend="heap", epoch_interval_seconds=0),
            acceptance=Acceptance(changed=tuple(changed), partial=tuple(partial)),
            available_now=True,
            shadow=True,
            store=str(self.folder / "store"),
            cache_directory=str(self.folder / f"cache-{self.attempts}"),
            **more,
        )

    def run(
        self,
        aggregates: dict[str, str],
        changed: Sequence[str] = (),
        partial: Sequence[str] = (),
        version: int | None = None,
    ) -> Manifest:
        orders = self.orders(changed, partial, version=version)
        run(orders, self.graph(**aggregates), self.spark, MemoryCatalog(self.catalog, orders.attempt))
        return self.head

    @property
    def head(self) -> Manifest:
        assert self.catalog.head is not None
        return SnapshotStore(str(self.folder / "store")).read_manifest(self.catalog.head)

    def state(self) -> dict[str, dict[str, Any]]:
        assert self.catalog.head is not None
        reader = SnapshotReader(SnapshotStore(str(self.folder / "store")), self.catalog.head)
        table = reader.table("totals")
        rows = reader.read("totals").to_pylist()
        return {row["k"]: {**row, **{shown.name: value for shown, value in table.shown_of(row)}} for row in rows}


@pytest.mark.alternating(3)
def test_added_mean_counts_rows_since_the_upgrade(spark: SparkSession, tmp_path: Path) -> None:
    application = Application(spark, tmp_path)
    application.receive(("a", 10), ("a", 20))
    application.run(COUNT)
    application.receive(("a", 60), ("b", 1), ("b", 2))
    with_mean = {**COUNT, "mean": "avg(v)"}
    with pytest.raises(IncompatibleState, match=r"--accept-partial totals\.mean"):
        application.run(with_mean)
    with pytest.raises(IncompatibleState, match=r"--accept-partial totals\.mean"):
        application.run({**with_mean, "top": "max(v)"}, partial=["totals.top"])
    before = application.head.epoch
    head = application.run(with_mean, partial=["totals.mean"])
    (table,) = head.tables
    assert (table.since("n"), table.since("lo"), table.since("mean")) == (None, None, head.epoch)
    assert table.partial_since == dict.fromkeys(("mean_sum", "mean_count", "mean"), head.epoch)
    state = application.state()
    assert (state["a"]["n"], state["a"]["lo"], state["a"]["mean"]) == (3, 10, 60.0), "the mean of all rows is 30"
    assert (state["b"]["n"], state["b"]["mean"]) == (2, 1.5), "a key of a later epoch is complete"
    (change,) = head.changes
    accepted = [{"name": "totals.mean", "what": "partial", "since": head.epoch}]
    assert (change.kind, change.detail["accepted"]) == ("upgrade", accepted) and head.epoch > before
    assert list(_accepted(change.detail)) == [f"accepted totals.mean (counts rows since epoch {head.epoch})"]
    # The acceptance is valid for this upgrade only; the epoch stays recorded.
    with pytest.raises(InvalidInput, match="There is no difference to accept"):
        application.run(with_mean, partial=["totals.mean"])
    application.receive(("a", 0))
    later = application.run(with_mean)
    assert later.tables[0].since("mean") == head.epoch and later.epoch > head.epoch
    assert application.state()["a"]["mean"] == 30.0


@pytest.mark.alternating(3)
def test_another_argument_is_accepted_for_one_upgrade(spark: SparkSession, tmp_path: Path) -> None:
    application = Application(spark, tmp_path)
    application.receive(("a", 5), ("a", 9))
    first = application.run({"n": "count(*)", "lo": "min(v)"})
    application.receive(("a", 7))
    changed = {"n": "count(*)", "lo": "min(v * 10)"}
    with pytest.raises(IncompatibleState, match=r"--accept-changed totals\.lo"):
        application.run(changed)
    with pytest.raises(InvalidInput, match=r"'totals\.n' is accepted, .* The differences are: totals\.lo\."):
        application.run(changed, changed=["totals.n", "totals.lo"])
    with pytest.raises(IncompatibleState, match="Partial values of one function"):
        application.run({"n": "count(*)", "lo": "max(v)"}, changed=["totals"], version=2)
    assert application.head == first
    head = application.run(changed, changed=["totals.lo"], version=2)
    (accepted,) = head.changes[0].detail["accepted"]
    assert (accepted["name"], accepted["what"]) == ("totals.lo", "argument")
    assert application.state()["a"]["lo"] == 5
    # A later attempt of the same version has the same orders and finds no difference; the next version has no
    # acceptance.
    application.receive(("a", 0))
    application.run(changed, changed=["totals.lo"], version=2)
    assert application.state()["a"]["lo"] == 0
    with pytest.raises(IncompatibleState, match=r"--accept-changed totals\.lo"):
        application.run({"n": "count(*)", "lo": "min(v * 100)"})
    (tmp_path / "new").mkdir()
    other = Application(spark, tmp_path / "new")
    other.receive(("a", 1))
    with pytest.raises(InvalidInput, match="There is no difference to accept"):
        other.run(changed, changed=["totals.lo"])


@pytest.mark.long
def test_a_trial_compares_versions_that_an_upgrade_has_accepted(spark: SparkSession, tmp_path: Path) -> None:
    application = Application(spark, tmp_path)
    application.receive(("a", 5))
    application.run(COUNT)
    application.receive(("a", 7))
    application.run({**COUNT, "hi": "max(v)"}, partial=["totals.hi"])
    application.receive(("a", 9))
    application.run({**COUNT, "hi": "max(v)"})
    assert application.catalog.head is not None
    before = Tried(application.orders(), application.graph(**COUNT, hi="max(v)"))
    after = Tried(application.orders(partial=["totals.top"]), application.graph(**COUNT, hi="max(v)", top="max(v)"))
    report = run_trial(before, after, spark, application.catalog.head, epochs=2)
    assert report.epochs == 2


def aggregate(*values: str, kind: StateKind = StateKind.AGGREGATE, **more: Any) -> StateTable:
    columns = tuple(Column(name=name, type=type) for name, type in (value.split() for value in values))
    key = (Column(name="k", type="string"),)
    return StateTable(id="totals", operator="totals", kind=kind, key=key, value=columns, **more)


def test_only_aggregates_of_existing_keys_are_partial() -> None:
    before, after = ("n bigint",), ("n bigint", "hi bigint")
    (change,) = compare([aggregate(*before)], [aggregate(*after)])
    assert (change.verdict, change.partial) == ("evolved", ("hi",)) and "--accept-partial totals.hi" in change.problems[
        0
    ]
    (value,) = compare([aggregate(*before, kind=StateKind.VALUE)], [aggregate(*after, kind=StateKind.VALUE)])
    assert (value.partial, value.problems) == ((), ())
    (new,) = compare([], [aggregate(*after)])
    assert (new.partial, new.problems) == ((), ())
    durable, cached = aggregate(*after), aggregate(*before, durable=False, queryable=False)
    (empty,) = compare([cached], [durable])
    assert (empty.partial, empty.problems) == ((), ()) and continued(durable, cached, None, 7) == durable


def test_a_computed_column_is_partial_if_its_parts_are() -> None:
    mean = Quotient(name="mean", dividend="mean_sum", divisor="mean_count")
    table = aggregate("n bigint", "mean_sum bigint", "mean_count bigint", shown=(mean,))
    (change,) = compare([aggregate("n bigint")], [table], acceptance=Acceptance(partial=("totals.mean",)))
    assert (change.partial, change.problems) == (("mean",), ())
    windowed = aggregate("n bigint", windows={}), table.model_copy(update={"windows": {}})
    (of_windows,) = compare(windowed[:1], windowed[1:])
    assert "only windows that open after the upgrade are complete" in of_windows.problems[0]
    first = continued(table, aggregate("n bigint"), None, 6)
    assert (first.since("mean"), first.since("mean_sum"), first.since("n")) == (6, 6, None)
    assert continued(table, first, None, 9) == first, "a later version of the same columns"
    again = continued(table, aggregate("n bigint"), None, 9)
    assert again.since("mean") == 9, "after a rollback to before the upgrade"
    assert StateTable.model_validate_json(first.model_dump_json()) == first
    assert "since" not in table.model_dump_json()


def quotient(of: tuple[str, str] | None = ("sum(a)", "count(b)"), **more: str) -> StateTable:
    """The table of ``aggregate("totals", r="sum(a) / count(b)", ..)``, which stores the author's column as two."""
    parts = {} if of is None else {f"r_{number}": text for number, text in enumerate(of, 1)}
    columns = {
        name: ColumnDefinition(merge=text.partition("(")[0], aggregate=text, column=None if name in more else "r")
        for name, text in {**parts, **more}.items()
    }
    rows = Leaf(kind="source", name="rows", columns={"k": "string", "a": "bigint", "b": "bigint"})
    operator = OperatorDefinition(inputs=(InputDefinition(rows=rows, keys=("k",), reads=()),))
    return aggregate(*(f"{name} bigint" for name in columns), definition=Definition(columns=columns, operator=operator))


def test_column_of_several_aggregates_has_its_declared_name() -> None:
    before, other = quotient(), quotient(("sum(b)", "count(a)"))
    (change,) = compare([before], [other])
    (meaning,) = change.changed
    assert (meaning.column, meaning.what, meaning.accepted) == ("r", "argument", False)
    assert (meaning.before, meaning.after) == ("sum(a) and count(b)", "sum(b) and count(a)")
    assert "--accept-changed totals.r," in change.problems[0]
    accepted = compare([before], [other], acceptance=Acceptance(changed=("totals.r",)))
    assert accepted[0].problems == () and accepted[0].changed[0].accepted
    assert [each["name"] for each in accepted_differences(accepted, [other])] == ["totals.r"]

    (added,) = compare([quotient(None, n="count(*)")], [quotient(n="count(*)")])
    assert added.partial == ("r",) and "--accept-partial totals.r," in added.problems[0]
    table = continued(quotient(n="count(*)"), quotient(None, n="count(*)"), None, 6)
    assert (table.since("r"), table.since("n")) == (6, None)

    dropping = [quotient(n="count(*)")], [quotient(None, n="count(*)")]
    (dropped,) = compare(*dropping)
    assert [problem.count("--allow-dropped-state totals.r.") for problem in dropped.problems] == [1]
    assert not any(change.problems for change in compare(*dropping, may_drop=["totals.r"]))
    assert not any(change.problems for change in compare(*dropping, may_drop=["totals.r_1", "totals.r_2"]))
    (otherwise,) = compare([quotient(None, r="sum(a)")], [quotient()])
    assert "column 'r' is computed from other aggregates, which begin empty" in otherwise.problems[0]


def test_another_function_is_refused_even_if_accepted() -> None:
    """The message reports the function, not that there is no difference."""
    (change,) = changes = compare([quotient()], [quotient(("max(a)", "count(b)"))])
    assert change.verdict == "refused" and [each.column for each in change.changed] == ["r"]
    assert "Give the column another name, dropping its state with --allow-dropped-state totals.r," in change.problems[0]
    for name in ("totals", "totals.r"):
        assert unused_acceptance(changes, Acceptance(changed=(name,))) == ()
    (problem,) = unused_acceptance(changes, Acceptance(changed=("totals.s",)))
    assert "There is no difference to accept" in problem
