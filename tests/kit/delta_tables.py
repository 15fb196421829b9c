"""A Delta table in a local folder for the sink contract."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from epochal.backends.delta_lake.address import DeltaAddress
from epochal.backends.delta_lake.sink import DeltaSink
from epochal.contracts.backend import SinkPlace
from epochal.testing.contract import SinkHarness


class DeltaFolder(SinkHarness):
    """``options``: of the object store, if ``path`` is on one."""

    def __init__(self, path: Path, partition_by: Sequence[str] = ()) -> None:
        self.path, self.partition_by = path, partition_by

    def make(self) -> DeltaSink:
        return DeltaSink(SinkPlace("out"), DeltaAddress(str(self.path)), self.partition_by)

    def table(self) -> DeltaTable | None:
        return DeltaTable(str(self.path)) if (self.path / "_delta_log").exists() else None

    def visible(self) -> list[dict[str, Any]]:
        table = self.table()
        return [] if table is None else list(table.to_pyarrow_table().to_pylist())

    def leftovers(self) -> list[str]:
        table = self.table()
        named = set() if table is None else {uri.removeprefix("file://") for uri in table.file_uris()}
        return sorted(str(path) for path in self.path.glob("epochal/**/*.parquet") if str(path) not in named)
