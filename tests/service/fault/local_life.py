"""One life of a driver without Spark, as a process: see ``tests.kit.local_engine.attempt``.

The application resembles ``application.py``: two stateful operators over one source, and the sinks of the given
``kind``. The first argument contains the parameters of :func:`run` as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochal import KeyedProcess, ValueState, secret
from epochal.connectors import dbms, files, hdfs, kafka
from epochal.contracts.backend import SinkPlace
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.engine.job import Participants
from epochal.faults import Fault
from epochal.pipeline.definitions import SinkDefinition
from epochal.service.catalog.standalone import standalone_catalog
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import Column
from tests.kit.local_engine.attempt import attempt
from tests.kit.local_engine.engine import LocalPipeline, local_process
from tests.kit.local_engine.tasks import LocalTasks

NAME = "faults"
SOURCE = "events"
ROWS = pa.schema([("event", pa.int64()), ("sensor", pa.string()), ("value", pa.int32())])
KEY = (Column(name="sensor", type="string"),)


class Totals(KeyedProcess):
    """The aggregate of the applications."""

    state = ValueState("events bigint, total bigint, highest int")
    output = "sensor string, events bigint, total bigint, highest int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        values = [row.value for row in rows]
        events, total, highest = self.state.get() or (0, 0, max(values))
        after = events + len(values), total + sum(values), max(highest, *values)
        self.state.set(*after)
        yield key.sensor, *after


class Sums(Totals):
    """Totals without the highest value, which two of the applications do not write."""

    output = "sensor string, events bigint, total bigint"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        for row in super().process(key, rows, ctx):
            yield row[:3]


class Streaks(KeyedProcess):
    state = ValueState("late int, longest int")
    output = "event bigint, sensor string, late int"
    order_by = "event"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        late, longest = self.state.get() or (0, 0)
        for row in rows:
            late = late + 1 if row.value > 50 else 0
            longest = max(longest, late)
            yield row.event, key.sensor, late
        self.state.set(late, longest)


class Late(KeyedProcess):
    """A filter of the source, without state."""

    output = "event bigint, sensor string, value int"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterable[Any]:
        return [(row.event, key.sensor, row.value) for row in rows if row.value > 50]


SUMS = pa.schema([("sensor", pa.string()), ("events", pa.int64()), ("total", pa.int64())])
OUTPUTS: Mapping[type[KeyedProcess], pa.Schema] = {
    Totals: pa.schema([*SUMS, ("highest", pa.int32())]),
    Sums: SUMS,
    Streaks: pa.schema([("event", pa.int64()), ("sensor", pa.string()), ("late", pa.int32())]),
    Late: ROWS,
}

Sinks = dict[str, tuple[str, SinkDefinition]]
"""The written stream and the sink, by the name of the sink."""


def to_files(parameters: Mapping[str, Any]) -> tuple[tuple[type[KeyedProcess], ...], Sinks]:
    folder = parameters["output"]
    sinks = {name: (name, files.sink(f"{folder}/{name}")) for name in ("totals", "streaks")}
    return (Totals, Streaks), sinks


def to_hdfs(parameters: Mapping[str, Any]) -> tuple[tuple[type[KeyedProcess], ...], Sinks]:
    where = {"user": parameters["user"], "timeout_seconds": 10}
    url, folder = parameters["url"], parameters["output"]
    sinks = {name: (name, hdfs.sink(url, f"{folder}/{name}", **where)) for name in ("totals", "late")}
    return (Totals, Late), sinks


def to_objects(parameters: Mapping[str, Any]) -> tuple[tuple[type[KeyedProcess], ...], Sinks]:
    where = {
        "endpoint": parameters["endpoint"],
        "region": parameters["region"],
        "access_key_id": secret(f"file:{parameters['key']}"),
        "secret_access_key": secret(f"file:{parameters['secret']}"),
    }
    folder = parameters["output"]
    sinks = {name: (name, files.sink(f"{folder}/{name}", **where)) for name in ("totals", "late")}
    return (Totals, Late), sinks


def to_kafka(parameters: Mapping[str, Any]) -> tuple[tuple[type[KeyedProcess], ...], Sinks]:
    servers = parameters["servers"]
    rows = kafka.sink(servers, parameters["rows"], key="sensor")
    totals = kafka.sink(servers, parameters["totals"], key="sensor", transaction_records=1)
    return (Sums,), {"rows": (SOURCE, rows), "totals": ("totals", totals)}


def to_dbms(parameters: Mapping[str, Any]) -> tuple[tuple[type[KeyedProcess], ...], Sinks]:
    database = {"url": parameters["url"], "password": secret(f"file:{parameters['password']}"), "create": True}
    return (Sums,), {
        "rows": (SOURCE, dbms.sink(table="rows_of_epochs", **database)),
        "checked": (SOURCE, dbms.two_phase_sink(table="checked_rows", **database)),
        "totals": ("totals", dbms.sink(table="totals", keys="sensor", **database)),
    }


def to_dbms_shards(parameters: Mapping[str, Any]) -> tuple[tuple[type[KeyedProcess], ...], Sinks]:
    database = {
        "url": parameters["url"],
        "password": secret(f"file:{parameters['password']}"),
        "create": True,
        "shards": parameters["shards"],
    }
    return (Sums,), {
        "spread": (SOURCE, dbms.sink(table="spread_rows", keys="event", **database)),
        "totals": ("totals", dbms.sink(table="totals", keys="sensor", **database)),
    }


KINDS: Mapping[str, Callable[[Mapping[str, Any]], tuple[tuple[type[KeyedProcess], ...], Sinks]]] = {
    "files": to_files,
    "hdfs": to_hdfs,
    "objects": to_objects,
    "kafka": to_kafka,
    "dbms": to_dbms,
    "dbms_shards": to_dbms_shards,
}


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run(**json.loads(sys.argv[1]))


def run(
    kind: str,
    folder: str,
    parameters: dict[str, Any],
    configuration: dict[str, Any],
    task_faults: list[dict[str, Any]],
    epochs: int | None,
) -> None:
    """Run one attempt of the application in ``folder``."""
    processes, sinks = KINDS[kind](parameters)
    operators = tuple(local_process(name_of(process), process, KEY, ROWS, OUTPUTS[process]) for process in processes)
    pipeline = LocalPipeline({SOURCE: ROWS}, operators, {name: input for name, (input, _) in sinks.items()})
    settings = Configuration.model_validate(configuration)
    catalog = standalone_catalog(f"sqlite:///{folder}/catalog.sqlite", NAME, "local", parameters, configuration)
    orders = ExecutionOrders(
        application=NAME,
        execution=catalog.execution,
        attempt=catalog.attempt,
        artifact="local",
        configuration=settings,
        store=f"{folder}/store",
        cache_directory=f"{folder}/cache",
    )
    store = SnapshotStore(orders.store)
    schema = "event bigint, sensor string, value int"
    source = files.source(parameters["input"], format="json", schema=schema, max_files=1)
    make_state = find(STATE_BACKENDS, settings.state_backend)
    participants = Participants(
        sources={SOURCE: source.make()},
        operators={each.name: make_state(each.name, store, orders.cache_directory) for each in operators},
        sinks={name: sink.make(SinkPlace(name, store)) for name, (_, sink) in sinks.items()},
        tables=pipeline.tables,
    )
    Path(orders.cache_directory).mkdir(exist_ok=True)
    tasks = LocalTasks([Fault(**fault) for fault in task_faults], tries_of(settings.master))
    attempt(orders, pipeline, participants, catalog, tasks, epochs)


def tries_of(master: str) -> int:
    """Number of attempts of a Spark task: 1 for ``local[CORES]``, TRIES for ``local[CORES,TRIES]``."""
    return int(master.rstrip("]").partition(",")[2] or 1)


def name_of(process: type[KeyedProcess]) -> str:
    return process.__name__.lower() if process is not Sums else "totals"
