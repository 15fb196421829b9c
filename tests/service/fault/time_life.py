"""One life of a driver without Spark, as a process, over the application with event time of the simulation.

The first argument contains the parameters of :func:`run` as JSON: the ``folder``, with the input in ``input``; the
time in seconds since the start of the application; and whether a standing query is added.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from epochal.backends.lmdb import LmdbBackend
from epochal.connectors import files
from epochal.contracts.backend import SinkPlace
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.engine.job import Participants
from epochal.service.catalog.standalone import standalone_catalog
from epochal.snapshots.store import SnapshotStore
from tests.kit.lives import at
from tests.kit.local_engine.attempt import attempt
from tests.kit.local_engine.plans import local_pipeline
from tests.simulation.test_event_time_faults import ROWS, add_query, pipeline


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run(**json.loads(sys.argv[1]))


def run(folder: str, seconds: float, parallelism: int, with_query: bool) -> None:
    graph = pipeline(lambda name: files.sink(f"{folder}/output/{name}")).graph()
    local = local_pipeline(graph, {"rows": ROWS})
    catalog = standalone_catalog(f"sqlite:///{folder}/catalog.sqlite", "deaths", "local")
    orders = ExecutionOrders(
        application="deaths",
        execution=catalog.execution,
        attempt=catalog.attempt,
        artifact="local",
        configuration=Configuration(parallelism=parallelism, max_parallelism=8),
        store=f"{folder}/store",
        cache_directory=f"{folder}/cache-{catalog.attempt}",
    )
    Path(orders.cache_directory).mkdir()
    store = SnapshotStore(orders.store)
    schema = "key string, at timestamp, n bigint"
    participants: Any = Participants(
        sources={"rows": files.source(f"{folder}/input", format="json", schema=schema, max_files=1).make()},
        operators={each.name: LmdbBackend(each.name, store, orders.cache_directory) for each in local.operators},
        sinks={node.name: node.make(SinkPlace(node.name, store)) for node in graph.sinks},
        tables=local.tables,
    )
    begun = add_query if with_query else lambda coordinator: None
    attempt(orders, local, participants, catalog, now=lambda: at(seconds), begun=begun)
