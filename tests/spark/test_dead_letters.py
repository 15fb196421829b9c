"""Dead letters of sinks on Spark: a sink behind a stateless verb, and one in the task of an operator."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, Field, Schema

from epochal import Pipeline
from epochal.connectors import dbms, delta, files
from epochal.errors import EpochAborted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id bigint, name string"
NAMES = (None, "ann", "bob", "é漢", "\n")


class Orders:
    """Files of orders, a Delta table in which names are NOT NULL, and totals by name in a database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        self.input = folder / "input"
        self.input.mkdir()
        fields = [Field("id", "long"), Field("name", "string", nullable=False)]
        DeltaTable.create(str(folder / "orders"), Schema(fields))

    def feed(self, names: list[str | None]) -> None:
        rows = [{"id": len(self.rows) + number, "name": name} for number, name in enumerate(names)]
        path = self.input / f"{len(list(self.input.iterdir())):03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.rows += rows

    def run(self, spark: SparkSession, max_rejects: int = 1_000) -> None:
        pipeline = Pipeline("orders")
        source = files.source(str(self.input), format="json", schema=SCHEMA, max_files=1)
        orders = pipeline.read("orders", source).where("id >= 0")
        orders.write(
            "orders",
            delta.sink(str(self.folder / "orders")),
            on_reject="dead_letter",
            dead_letters=files.sink(str(self.folder / "rejected"), format="json"),
            max_rejects=max_rejects,
        )
        totals = orders.key_by("name").aggregate("totals", n="count(*)")
        totals.write(
            "totals",
            dbms.sink(f"sqlite:///{self.folder}/totals.sqlite", "totals", keys="name", create=True),
            on_reject="dead_letter",
            dead_letters=delta.sink(str(self.folder / "rejected-totals")),
        )
        settings = {"parallelism": 2, "epoch_interval_seconds": 0, "max_records_per_epoch": 1_000_000}
        pipeline.run(available_now=True, directory=self.folder / "state", configuration=settings, spark=spark)

    @property
    def written(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = DeltaTable(str(self.folder / "orders")).to_pyarrow_table().to_pylist()
        return sorted(found, key=lambda row: int(row["id"]))

    @property
    def totals(self) -> dict[str, int]:
        engine = sa.create_engine(f"sqlite:///{self.folder}/totals.sqlite", poolclass=sa.NullPool)
        with engine.connect() as connection:
            return {row.name: row.n for row in connection.execute(sa.text("SELECT name, n FROM totals"))}

    @property
    def rejected(self) -> list[dict[str, Any]]:
        lines = [
            json.loads(line)
            for file in (self.folder / "rejected").glob("epoch=*/*.json")
            for line in file.read_text().splitlines()
        ]
        assert all(line["sink"] == "orders" and "NOT NULL" in line["reason"] for line in lines)
        return sorted((json.loads(line["rejected_row"]) for line in lines), key=lambda row: int(row["id"]))

    @property
    def rejected_totals(self) -> pa.Table:
        return DeltaTable(str(self.folder / "rejected-totals")).to_pyarrow_table().sort_by("rejected_in_epoch")

    def check(self) -> None:
        """Compare both sinks and their dead letters with the batch result."""
        assert self.written == [row for row in self.rows if row["name"] is not None]
        assert self.rejected == [row for row in self.rows if row["name"] is None]
        counts = Counter(row["name"] for row in self.rows)
        without_name = counts.pop(None, 0)
        assert self.totals == counts
        last = json.loads(self.rejected_totals["rejected_row"][-1].as_py())
        assert last == {"name": None, "n": without_name}


@pytest.mark.claim("docs/reference/sources-and-sinks.md: each row is in exactly one of the two sinks")
def test_rejected_rows_are_dead_letters_of_the_same_epoch(spark: SparkSession, tmp_path: Path, run_seed: int) -> None:
    chance = random.Random(run_seed)
    orders = Orders(tmp_path)
    for rows in (40, 1, 25):
        orders.feed([None, *chance.choices(NAMES, k=rows)])
    orders.run(spark)
    orders.check()
    assert len(set(orders.rejected_totals["rejected_in_epoch"].to_pylist())) == 3

    orders.feed(["ann"] * 5)
    orders.run(spark)
    orders.check()


@pytest.mark.claim("docs/reference/sources-and-sinks.md: An epoch with more than `max_rejects` rejected rows fails")
def test_an_epoch_with_too_many_rejected_rows_fails_and_can_be_run_again(spark: SparkSession, tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.feed(["ann", None])
    orders.run(spark, max_rejects=1)
    orders.feed(["bob", None, None])
    with pytest.raises(EpochAborted, match=r"Sink 'orders' rejects 2 rows or more.* max_rejects is 1.*NOT NULL"):
        orders.run(spark, max_rejects=1)
    assert [row["id"] for row in orders.written] == [0]
    assert [row["id"] for row in orders.rejected] == [1]
    orders.run(spark, max_rejects=2)
    orders.check()
