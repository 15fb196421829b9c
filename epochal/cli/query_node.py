"""``up --role query``: supervises the look-up workers and the applier, which maintains their replicas."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from epochal.cli.listening import listen
from epochal.errors import EnvironmentProblem, EpochalError
from epochal.service.api.gate import check_binding
from epochal.service.catalog.database import Database
from epochal.service.catalog.migration import wait_until_current
from epochal.service.domain.settings import Settings
from epochal.service.query_composition import QueryOrders
from epochal.service.runtime.kept_process import KeptProcess, stop_all
from epochal.service.runtime.metrics import SHARED_VARIABLE
from epochal.service.runtime.nodes import NodeHeartbeat, this_node
from epochal.service.runtime.replicas.claim import claim
from epochal.service.runtime.service_logs import configure_logs
from epochal.service.runtime.store_claim import await_store
from epochal.service.runtime.undumpable import close_process
from epochal.snapshots.store import SnapshotStore

log = logging.getLogger("epochal.query")

_MEMORY = Path("/dev/shm")
_MIGRATION_SECONDS = 120.0
"""Maximum time for a control plane that starts or is upgraded at the same time to migrate the catalog."""


def serve_query_node(settings: Settings, ready: Callable[[Settings], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``ready`` is called with the chosen port once requests are answered.

    Raises ``CatalogVersion``, ``CatalogUnavailable``, ``EnvironmentProblem``, ``OptionError``, ``StoreMismatch``.
    """
    over = threading.Event()
    for end in (signal.SIGINT, signal.SIGTERM):
        signal.signal(end, lambda *_: over.set())
    close_process()
    configure_logs()
    check_binding(settings)
    _check_places(settings)
    with listen(settings.host, settings.port) as probe:
        # The probe detects another program on this port. The workers share the port and would not detect it.
        settings = settings.model_copy(update={"port": probe.getsockname()[1]})
    database = Database(settings.database_url, 2)
    heartbeat = NodeHeartbeat(database, this_node(settings, "query"))
    claimed = claim(settings.replicas_directory)
    figures = Path(tempfile.mkdtemp(prefix="epochal-metrics-", dir=_MEMORY if _MEMORY.is_dir() else None))
    processes: list[KeptProcess] = []
    try:
        wait_until_current(database, _MIGRATION_SECONDS, over)
        if over.is_set():
            return
        await_store(database, SnapshotStore(settings.store_url), over)
        if over.is_set():
            return
        orders = QueryOrders(settings=settings, folder=claimed.path).model_dump_json().encode()
        applier = KeptProcess("applier", "epochal.service.query_applier", orders, [claimed.descriptor])
        processes.append(applier)
        applier.start()
        applier.wait_until_ready()
        variables = {SHARED_VARIABLE: str(figures)}
        for number in range(1, settings.workers + 1):
            worker = KeptProcess(f"worker {number}", "epochal.service.query_app", orders, variables=variables)
            processes.append(worker)
            worker.start()
        for worker in processes[1:]:
            worker.wait_until_ready()
        _register(heartbeat)
        ready(settings)
        over.wait()
    finally:
        heartbeat.close()
        stop_all(processes[1:])
        stop_all(processes[:1])
        claimed.release()
        database.close()
        shutil.rmtree(figures, ignore_errors=True)


def _register(heartbeat: NodeHeartbeat) -> None:
    """Show the node in the catalog. A node that can only read the catalog also answers look-ups."""
    try:
        heartbeat.open()
    except EpochalError as error:
        log.warning("this query node is not among the nodes of the catalog: %s", error)


def _check_places(settings: Settings) -> None:
    """Check that the catalog and the store of a control plane exist; a query node must not create empty ones."""
    catalog, store = settings.data / "catalog.sqlite", settings.data / "store"
    if settings.database is None and not catalog.exists():
        raise EnvironmentProblem(
            f"There is no catalog at {catalog}. Start a control plane first, and name its catalog with --database-url "
            "(or EPOCHAL_DATABASE_URL), or its data directory with --home."
        )
    if settings.store is None and not store.is_dir():
        raise EnvironmentProblem(
            f"There is no snapshot store at {store}. Name that of the control planes with --store, or the data "
            "directory of one on this machine with --home."
        )
