"""Cost of driver calls for the process that answers them, and the number of applications that it can serve."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.result import Result, at_least, at_most, number
from epochal.contracts.catalog import DriverStatus, EpochCounts, ManifestReference
from epochal.contracts.identity import EpochKey
from epochal.driver.http_catalog import HttpCatalog
from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Attempt
from epochal.service.catalog.standalone import standalone_catalog
from epochal.service.domain.secrets import DriverToken
from epochal.service.domain.settings import Settings
from epochal.service.runtime.internal_server import InternalServer
from epochal.testing.servers.postgresql import postgresql

DRIVERS, THREADS = 50, 8
EPOCHS, WARM_EPOCHS = 20, 2
CALLS_OF_AN_EPOCH = 3
HEARTBEATS = 0.5
"""Heartbeats, and as many requests for directives, of each driver a second."""
ACTIVE = 50


class ScriptedDriver:
    """Runs empty epochs one after the other."""

    def __init__(self, url: str, database: str, name: str) -> None:
        rows = standalone_catalog(database, name, "a" * 64)
        token = DriverToken.make(rows.execution, rows.attempt)
        own = Database(database)
        with own.writing() as session:
            session.get_one(Attempt, (rows.execution, rows.attempt)).token_sha256 = token.sha256
        own.close()
        self._catalog = HttpCatalog([url], token.text, rows.execution, rows.attempt)
        self._branch = self._catalog.begin_attempt().branch
        self._epoch = 0

    def epochs(self, count: int) -> int:
        """Run epochs with half as many heartbeats. Returns the number of calls."""
        for _ in range(count):
            parent = EpochKey(self._branch, self._epoch) if self._epoch else None
            self._epoch += 1
            path = f"{self._branch}/manifests/{self._epoch}.json"
            reference = ManifestReference(branch=self._branch, epoch=self._epoch, path=path, sha256="c" * 64)
            self._catalog.open_epoch(self._epoch, parent)
            self._catalog.prepare_epoch(self._epoch, parent, reference, EpochCounts(rows_in=1))
            self._catalog.commit_epoch(self._epoch)
        for _ in range(count // 2):
            self._catalog.heartbeat(DriverStatus(phase="running", epoch=self._epoch))
        return count * CALLS_OF_AN_EPOCH + count // 2


def run(folder: Path) -> list[Result]:
    results = _measured("SQLite", f"sqlite:///{folder / 'catalog.sqlite'}", folder / "sqlite")
    with postgresql() as server:
        return results + _measured("PostgreSQL", server.create_database(), folder / "postgresql")


def _measured(kind: str, database: str, data: Path) -> list[Result]:
    data.mkdir(parents=True)
    standalone_catalog(database, "first", "a" * 64)
    with _internal(database, data) as (url, process):
        drivers = [ScriptedDriver(url, database, f"app-{number}") for number in range(DRIVERS)]
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda driver: driver.epochs(WARM_EPOCHS), drivers))
            before = _seconds(process)
            calls = sum(pool.map(lambda driver: driver.epochs(EPOCHS), drivers))
        each = (_seconds(process) - before) / calls
        memory = _resident_megabytes(process)
    held = 1 / (each * (CALLS_OF_AN_EPOCH + 2 * HEARTBEATS))
    how = f"{DRIVERS} drivers without Spark, {calls:,} calls; opened, prepared, committed, heartbeats"
    return [
        at_most(f"CPU of an internal call, {kind}", each * 1000, 1.5, "ms", how),
        at_least(
            f"active applications of 1 s epochs for one core, {kind}",
            held,
            ACTIVE,
            "",
            "derived from the CPU of a call",
            digits=0,
        ),
        number(f"memory of the internal process, {kind}", memory, "MB", "after these calls", digits=0),
    ]


@contextmanager
def _internal(database: str, data: Path) -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        settings = Settings(data=data, database=database, internal_port=listener.getsockname()[1])
        with closing(InternalServer(settings, listener)) as server:
            server.begin()
            server.open()
            assert server.process is not None
            yield settings.internal_url, server.process


def _seconds(process: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_megabytes(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
