"""Drivers without Spark on a control plane: the real engine over HTTP, with real state and sinks, in this process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochal import KeyedProcess, ValueState
from epochal.connectors import files
from epochal.contracts.backend import SinkPlace
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.driver.http_catalog import HttpCatalog
from epochal.engine.job import Participants
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column
from tests.kit.local_engine.attempt import LocalAttempt
from tests.kit.local_engine.engine import LocalPipeline, local_process, local_program
from tests.kit.local_engine.tasks import LocalTasks

if TYPE_CHECKING:
    from tests.service.conftest import Plane

SOURCE = "events"
SINK = "out"
COPY = "copy"
ROWS = pa.schema([("event", pa.int64()), ("sensor", pa.string())])
OUTPUT = pa.schema([("sensor", pa.string()), ("events", pa.int64())])


class Counts(KeyedProcess):
    """Number of events of each sensor, output after each epoch with events of it."""

    state = ValueState("events bigint")
    output = "sensor string, events bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        events = self.state.get() or 0
        self.state.set(events + len(rows))
        yield key.sensor, events + len(rows)


def write_inputs(folder: Path, count: int) -> None:
    """One file per epoch; file n holds n events of sensor ``a``."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        rows = [{"event": number * 100 + index, "sensor": "a"} for index in range(number)]
        (folder / f"{number:05}.json").write_text("\n".join(map(json.dumps, rows)))


def shown(folder: Path) -> dict[int, list[int]]:
    """The counts in the sink, by epoch."""
    found: dict[int, list[int]] = {}
    for path in sorted(folder.glob("epoch=*/*.json")):
        counts = [json.loads(line)["events"] for line in path.read_text().splitlines()]
        found.setdefault(int(path.parent.name.partition("=")[2]), []).extend(counts)
    return found


def run_attempt(
    plane: Plane, application: str, inputs: Path, folder: Path, epochs: int | None = None, copy: Path | None = None
) -> None:
    """Run the next attempt of an application until it has committed ``epochs`` epochs, or all input.

    Then the attempt is lost, and the execution goes on. ``copy`` is the folder of a second sink for the same rows."""
    execution = plane.get(f"/v1/applications/{application}")["execution"]
    ticket = plane.control.ledger.new_attempt(execution)
    catalog = HttpCatalog([plane.settings.internal_url], ticket.token, execution, ticket.attempt, patience_seconds=5.0)
    key = (Column(name="sensor", type="string"),)
    operator = local_process("counts", Counts, key, ROWS, OUTPUT)
    folders = {SINK: folder} if copy is None else {SINK: folder, COPY: copy}
    pipeline = LocalPipeline({SOURCE: ROWS}, (operator,), dict.fromkeys(folders, "counts"))
    store = SnapshotStore(plane.settings.store_url)
    configuration = Configuration(state_backend="heap", tolerable_failed_epochs=0)
    orders = ExecutionOrders(
        application=application,
        execution=execution,
        attempt=ticket.attempt,
        artifact=plane.get(f"/v1/applications/{application}")["artifact"],
        configuration=configuration,
        store=plane.settings.store_url,
        cache_directory=str(plane.settings.data / "cache"),
    )
    source = files.source(str(inputs), format="json", schema="event bigint, sensor string", max_files=1)
    participants = Participants(
        sources={SOURCE: source.make()},
        operators={"counts": find(STATE_BACKENDS, "heap")("counts", store, orders.cache_directory)},
        sinks={name: files.sink(str(at), format="json").make(SinkPlace(name, store)) for name, at in folders.items()},
        tables=pipeline.tables,
    )
    try:
        running = LocalAttempt(local_program(orders, pipeline, participants, LocalTasks()), catalog)
        while epochs != 0 and running.epoch() is not None:
            epochs = None if epochs is None else epochs - 1
        running.commit_all()
    finally:
        plane.control.ledger.attempt_ended(execution, ticket.attempt, "lost", None)
        catalog.close()
