"""Drivers of an application with event time are killed (SIGKILL) one after another. The final output, including late
rows, timers and answers of a standing query, equals that of an application without kills."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from epochal.contracts.conditions import microseconds
from epochal.faults import Fault
from epochal.testing.drivers import WatchedProcess, planned, without_faults
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.lives import at
from tests.service.fault.faulty_application import TIME_LIFE, Drivers
from tests.simulation.test_event_time_faults import EPOCHS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

BATCHES = (*EPOCHS, [75])
"""With the last batch a window closes for which the query needs values of earlier windows, which earlier drivers
have closed."""
KILLED_AT = (
    ("E2.ran",),
    ("E4.manifest-written",),
    ("E1.opened", "E1.queries-written", "E4.prepared"),
    ("E5.files.renamed",),
    ("E1.opened",),
    ("E4.prepared", "E2.ran"),
)
"""The points at which drivers are killed, for each batch. For the last batch, once after its rows are decided, and
once after the next epoch has run, in which the query uses stored values; that epoch runs again in three subtasks."""
ANSWERED = [{"rows": 2, "before": None}, {"rows": 1, "before": 2}, {"rows": 1, "before": 1}]
"""Answers of the query for even seconds in the windows from 30, 40 and 60 s on."""
QUERY_BATCH = 2
"""The batch with which the standing query begins."""


def live(
    drivers: Drivers, folder: Path, seconds: float, parallelism: int, *faults: Fault, with_query: bool = False
) -> int:
    assert drivers.server is not None
    environment = without_faults(dict(os.environ)) | planned(faults)
    life = {"folder": str(folder), "seconds": seconds, "parallelism": parallelism, "with_query": with_query}
    arguments = [json.dumps(life)]
    log = folder / "driver.log"
    code = WatchedProcess(drivers.server.start(TIME_LIFE, arguments, environment, log), log).wait()
    assert faults or code == 0, log.read_text()[-3000:]
    return code


def run(drivers: Drivers, folder: Path, killed: bool) -> dict[str, Any]:
    """The output of the sinks over all epochs."""
    (folder / "input").mkdir(parents=True)
    new_sqlite_catalog(folder / "catalog.sqlite")
    for number, (seconds, killed_at) in enumerate(zip(BATCHES, KILLED_AT, strict=True)):
        with_query = number == QUERY_BATCH
        rows = [{"key": "ab"[n % 2], "at": microseconds(at(n)), "n": n} for n in seconds]
        (folder / "input" / f"{number}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for point in killed_at if killed else ():
            code = live(drivers, folder, number, 2, Fault(point, "kill"), with_query=with_query)
            assert code < 0, f"no driver was killed at {point}"
        live(drivers, folder, number, 3 if killed and number % 2 else 2, with_query=with_query)
    live(drivers, folder, 100, 2)
    return {sink.name: Counter(map(repr, output_rows(sink))) for sink in (folder / "output").iterdir()}


def output_rows(sink: Path) -> list[Any]:
    """Output rows without the times of epochs."""
    rows = [row for file in sorted(sink.glob("epoch=*/*.parquet")) for row in pq.read_table(file).to_pylist()]
    return [row["what"] for row in rows] if sink.name == "alarms" else rows


def answers(folder: Path) -> list[Any]:
    """The answers of the query for even seconds, window by window."""
    rows = sorted(output_rows(folder / "output" / "answers"), key=lambda row: row["window_start"])
    assert {row["group"] for row in rows} == {'{"key":"a"}'}
    return [json.loads(row["values"]) for row in rows]


def test_kills_change_no_windows_timers_or_answers(without_spark: Drivers, tmp_path: Path) -> None:
    undisturbed = run(without_spark, tmp_path / "undisturbed", killed=False)
    assert {name: rows.total() for name, rows in undisturbed.items() if name == "late"} == {"late": 1}
    assert undisturbed["alarms"].total() > 12 and undisturbed["windows"] and undisturbed["longer"]
    assert answers(tmp_path / "undisturbed") == ANSWERED
    assert run(without_spark, tmp_path / "killed", killed=True) == undisturbed
    for folder in (tmp_path / "undisturbed", tmp_path / "killed"):
        assert not list((folder / "store").glob("*/queries/*")), "small standing queries are in packs"
