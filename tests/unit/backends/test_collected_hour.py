"""An hour of epochs of a second with ``commit_every="60 s"``, by a simulated clock: few versions, few files, each row
once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochal import Pipeline
from epochal.connectors import console, generator
from tests.kit.delta_tables import DeltaFolder, opened
from tests.kit.iceberg_tables import IcebergCatalog, sqlite_catalog
from tests.kit.lives import Life, Step

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
DEATHS = 3
"""Each recovery, and the end, commits what is collected."""


class Hour:
    """Epochs of a second, some of whose drivers die after the decision."""

    def __init__(self, table: DeltaFolder | IcebergCatalog, minutes: int, chance: random.Random) -> None:
        self._table, self._minutes, self._chance = table, minutes, chance
        self.rows: list[dict[str, Any]] = []

    def run(self) -> None:
        pipeline = Pipeline("hour")
        pipeline.read("rows", generator.source({"id": "id", "name": "''"})).write("out", console.sink())
        seconds = range(1, 60 * self._minutes + 1)
        deaths = set(self._chance.sample(seconds, DEATHS))
        with Life(pipeline, {"rows": COLUMNS}, make_sink=lambda name: self._table.make()) as life:
            self._table.store = life.store  # small logs are in the packs of epochs
            for second in seconds:
                step = Step("die decided" if second in deaths else "nothing", clock=float(second))
                life.epoch(step, rows=self._fed())
                life.commit_due()
            life.finish()

    def _fed(self) -> list[dict[str, Any]]:
        first = len(self.rows)
        self.rows += [{"id": first + n, "name": f"row {first + n}"} for n in range(self._chance.randrange(3))]
        return self.rows[first:]


MINUTES = pytest.mark.parametrize("minutes", [3, pytest.param(60, marks=pytest.mark.long)])


@MINUTES
def test_an_hour_of_epochs_is_sixty_versions_of_a_delta_table(minutes: int, tmp_path: Path, run_seed: int) -> None:
    folder = DeltaFolder(tmp_path / "orders", collects=True)
    hour = Hour(folder, minutes, random.Random(run_seed))
    hour.run()
    table = opened(folder)
    assert sorted(folder.visible(), key=by_id) == hour.rows
    assert table.version() <= minutes + DEATHS + 1
    assert len(table.file_uris()) <= minutes + DEATHS + 1


@MINUTES
def test_an_hour_of_epochs_is_sixty_snapshots_of_an_iceberg_table(minutes: int, tmp_path: Path, run_seed: int) -> None:
    catalog = sqlite_catalog(tmp_path / "tables")
    hour = Hour(catalog, minutes, random.Random(run_seed))
    hour.run()
    table = catalog.table()
    assert table is not None
    assert sorted(catalog.visible(), key=by_id) == hour.rows
    assert len(table.snapshots()) <= minutes + DEATHS + 1
    assert len(list(table.scan().plan_files())) <= minutes + DEATHS + 1


def by_id(row: dict[str, Any]) -> int:
    return int(row["id"])
