"""1,000 applications, of which 50 commit an epoch each second, on one control plane and PostgreSQL on this machine.

The control plane is a real ``epochal up`` with replicas of all applications. The drivers have no Spark: they make the
calls of real drivers (epochs, heartbeats, requests for directives) and write real files of two rows. They use cores of
the same machine, unlike real drivers in production.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import httpx
from sqlalchemy import func, insert, select, update

from benchmarks.cpu import children, cpu_seconds
from benchmarks.result import Result, at_least, at_most, number, percentile
from benchmarks.running import wait_for
from benchmarks.scripted_drivers import Answer, Line, Orders, write_epoch
from epochal.service.catalog.database import Database
from epochal.service.catalog.migration import migrate
from epochal.service.catalog.models import Application, Artifact, Attempt, Branch, Epoch, Execution, Version
from epochal.service.domain.identifiers import new_branch_id, new_id
from epochal.service.domain.secrets import DriverToken
from epochal.service.runtime.launchers.base import ProcessReference
from epochal.service.runtime.launchers.processes import LocalProcess
from epochal.service.runtime.machine import this_machine
from epochal.snapshots.store import SnapshotStore
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql

PROCESSES = 2
WARM_SECONDS = 15.0
SCRAPE_EVERY_SECONDS, LOOK_UP_EVERY_SECONDS = 5.0, 0.1
ON_TIME = 0.99
"""Minimum share of epochs that are committed within the second in which they are due."""
ARTIFACT = "a" * 64


@dataclass(frozen=True)
class Load:
    """Number of ``registered`` applications, and of ``active`` ones, which commit for ``seconds``."""

    registered: int
    active: int
    seconds: float


FULL = Load(1_000, 50, 30.0)


@dataclass(frozen=True)
class Found:
    """``replicas``: seconds until the replicas of all applications answered; ``restarts``: of drivers."""

    load: Load
    replicas: float
    measured: Measured
    answers: Sequence[Answer]
    restarts: int

    @property
    def late(self) -> list[float]:
        """Seconds from the due time of each epoch to its commit."""
        return [late for answer in self.answers for late in answer.committed_after]


def run(folder: Path) -> list[Result]:
    found = measure(folder, FULL)
    return [
        number(f"replicas of {FULL.registered:,} applications", found.replicas, "s", "built"),
        *_results(found),
        at_most("restarts of drivers", found.restarts, 0, "", digits=0),
    ]


def measure(folder: Path, load: Load) -> Found:
    with postgresql() as server:
        url = server.create_database()
        migrate(url)
        with control_plane(folder, {"EPOCHAL_DATABASE_URL": url}) as plane:
            store = plane.home / "store"
            lines = _register(url, SnapshotStore(str(store)), load.registered)
            reached = _wait_for_replicas(plane, lines)
            with _drivers(url, plane, store, lines[: load.active], load.seconds) as (processes, begin):
                measured = _measure(plane, server, begin, load)
                answers = [_answer_of(process) for process in processes]
                restarts = _restarts(url, load.active) + sum(len(answer.ended) for answer in answers)
                plane.process.stop()  # before its drivers end
            return Found(load, reached, measured, answers, restarts)


@dataclass
class Measured:
    """Used cores by process; seconds of each scrape and look-up."""

    cores: dict[str, float] = field(default_factory=dict)
    scrapes: list[float] = field(default_factory=list)
    lookups: list[float] = field(default_factory=list)
    bytes_of_a_scrape: int = 0
    megabytes: float = 0.0


def _results(found: Found) -> list[Result]:
    load, measured, answers, late = found.load, found.measured, found.answers, found.late
    calls = [call for answer in answers for call in answer.calls]
    beats = [beat for answer in answers for beat in answer.heartbeats]
    what = f"{load.registered:,} applications, {load.active} active"
    on_time = sum(after <= 1.0 for after in late) / (load.active * load.seconds)
    cores, all_of_it = os.cpu_count() or 1, sum(measured.cores.values())
    # Each of the two processes of a control plane uses one core at most, because it has one interpreter.
    held = load.active / max(all_of_it / cores, measured.cores["internal process"], measured.cores["control plane"])
    shares = ", ".join(f"{name} {cores:.2f}" for name, cores in measured.cores.items())
    return [
        at_least(
            "epochs committed within their second", on_time, ON_TIME, "", f"{what}; {len(late):,} epochs", digits=4
        ),
        number("delay of a commit, p99", percentile(late, 0.99) * 1e3, "ms", what, digits=0),
        number("calls of drivers, p50", median(calls) * 1e3, "ms", f"{len(calls):,} calls that write", digits=1),
        number("calls of drivers, p99", percentile(calls, 0.99) * 1e3, "ms", digits=1),
        number("heartbeats, p99", percentile(beats, 0.99) * 1e3, "ms", f"{len(beats):,}", digits=1),
        at_most("cores used", all_of_it, cores, "cores", shares),
        number("active applications that one control plane can serve", held, "", f"derived: {cores} cores", digits=0),
        number(
            "/metrics", median(measured.scrapes) * 1e3, "ms", f"{measured.bytes_of_a_scrape / 1e6:.2f} MB", digits=0
        ),
        number("a look-up during this load, p50", median(measured.lookups) * 1e3, "ms", digits=1),
        number("a look-up during this load, p99", percentile(measured.lookups, 0.99) * 1e3, "ms", digits=1),
        number("memory of the control plane", measured.megabytes, "MB", "both processes", digits=0),
    ]


def _register(url: str, store: SnapshotStore, registered: int) -> list[Line]:
    """Register stopped applications with one epoch each."""
    moment = datetime.now(UTC)
    by = {"created_at": moment, "created_by": "benchmark"}
    over = {"started_at": moment, "ended_at": moment}
    tables: dict[type, list[dict[str, object]]] = {
        Artifact: [{"sha256": ARTIFACT, "filename": "totals.py", "bytes": 0, "uploaded_at": moment, **by}]
    }
    lines = []
    for place in range(registered):
        name, id, execution = f"application-{place}", new_id(), new_id()
        branch, token = new_branch_id(name), DriverToken.make(execution, 1)
        line = Line(application=name, branch=branch, execution=execution, token=token.text)
        written = write_epoch(store, line, ARTIFACT, 1, None)
        lines.append(line)
        rows: dict[type, dict[str, object]] = {
            Application: {
                "id": id,
                "name": name,
                "branch": branch,
                "execution": execution,
                "shadow": False,
                "updated_at": moment,
                **by,
            },
            Version: {
                "application": id,
                "number": 1,
                "artifact": ARTIFACT,
                "parameters": {},
                "configuration": {},
                **by,
            },
            Branch: {
                "id": branch,
                "application": id,
                "kind": "start",
                "head_branch": branch,
                "head_epoch": 1,
                "attempt": 0,
                "owned": False,
                "last_attempt": 1,
                "committed_epochs": 1,
                "attempts": 1,
                **by,
            },
            Execution: {
                "id": execution,
                "application": id,
                "version": 1,
                "branch": branch,
                "state": "stopped",
                "attempt": 1,
                "available_now": False,
                "drain": True,
                **over,
            },
            Attempt: {"execution": execution, "number": 1, "state": "ended", "token_sha256": token.sha256, **over},
            Epoch: {
                "branch": branch,
                "epoch": 1,
                "execution": execution,
                "attempt": 1,
                "state": "committed",
                "manifest_path": written.path,
                "manifest_sha256": written.sha256,
                "rows_in": 2,
                "rows_out": 0,
                "state_rows": 2,
                "state_bytes": 0,
                "version": 1,
                "started_at": moment,
                "prepared_at": moment,
                "committed_at": moment,
            },
        }
        for kind, row in rows.items():
            tables.setdefault(kind, []).append(row)
    database = Database(url, keeps_events=False)
    with database.writing() as session:
        for kind, of_kind in tables.items():
            session.execute(insert(kind), of_kind)
    database.close()
    return lines


def _wait_for_replicas(plane: ControlPlane, lines: Sequence[Line]) -> float:
    with _client(plane) as client:

        def answered(line: Line) -> bool:
            return client.get(_path(line.application), timeout=60).is_success

        began = time.monotonic()
        for line in lines:
            wait_for(lambda line=line: answered(line), f"the replica of {line.application}")  # type: ignore[misc]
        return time.monotonic() - began


@contextmanager
def _drivers(
    url: str, plane: ControlPlane, store: Path, lines: Sequence[Line], seconds: float
) -> Iterator[tuple[list[subprocess.Popen[str]], float]]:
    with _client(plane) as client:
        internal = client.get("/v1/nodes").json()["items"][0]["internal_url"]
    begin = time.time() + WARM_SECONDS
    processes: list[subprocess.Popen[str]] = []
    database = Database(url, keeps_events=False)
    try:
        for part in range(PROCESSES):
            mine = lines[part::PROCESSES]
            orders = Orders(
                control_planes=[internal], store=str(store), artifact=ARTIFACT, lines=mine, begin=begin, seconds=seconds
            )
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.scripted_drivers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            _launched(database, mine, process.pid)
            assert process.stdin is not None
            process.stdin.write(orders.model_dump_json() + "\n")
            process.stdin.flush()
        yield processes, begin
    finally:
        database.close()
        for process in processes:
            process.kill()
            process.wait()


def _launched(database: Database, lines: Sequence[Line], process: int) -> None:
    """Record the applications as launched, with this process as the process of each attempt."""
    reference = ProcessReference(identity=str(LocalProcess.find(process)), machine=this_machine())
    executions, begins = [line.execution for line in lines], {"started_at": datetime.now(UTC), "ended_at": None}
    with database.writing() as session:
        session.execute(update(Execution).where(Execution.id.in_(executions)).values(state="starting", **begins))
        attempts = update(Attempt).where(Attempt.execution.in_(executions))
        session.execute(attempts.values(state="running", process=str(reference), **begins))


def _answer_of(process: subprocess.Popen[str]) -> Answer:
    assert process.stdout is not None
    return Answer.model_validate_json(process.stdout.readline())


def _measure(plane: ControlPlane, server: PostgresqlServer, begin: float, load: Load) -> Measured:
    measured = Measured()
    time.sleep(max(0.0, begin - time.time()))
    before = _cpu_seconds_of_all(plane, server)
    began, over = time.monotonic(), threading.Event()
    looking = threading.Thread(target=_look_up, args=(plane, over, measured.lookups, load.registered))
    looking.start()
    with _client(plane) as client:
        while time.monotonic() < began + load.seconds:
            started = time.perf_counter()
            answer = client.get("/metrics", timeout=60).raise_for_status()
            measured.scrapes.append(time.perf_counter() - started)
            measured.bytes_of_a_scrape = len(answer.content)
            time.sleep(max(0.0, min(SCRAPE_EVERY_SECONDS, began + load.seconds - time.monotonic())))
    over.set()
    seconds = time.monotonic() - began
    after = _cpu_seconds_of_all(plane, server)
    looking.join()
    measured.cores = {name: (after[name] - before[name]) / seconds for name in after}
    measured.megabytes = sum(map(_resident_megabytes, children(plane.process.pid, itself=True)))
    return measured


def _look_up(plane: ControlPlane, over: threading.Event, seconds: list[float], registered: int) -> None:
    with _client(plane) as client:
        place = 0
        while not over.wait(LOOK_UP_EVERY_SECONDS):
            place = (place + 7) % registered
            started = time.perf_counter()
            client.get(_path(f"application-{place}")).raise_for_status()
            seconds.append(time.perf_counter() - started)


def _path(application: str) -> str:
    return f"/v1/applications/{application}/state/totals/keys/all"


def _client(plane: ControlPlane) -> httpx.Client:
    token = (plane.home / "admin.token").read_text().strip()
    return httpx.Client(base_url=plane.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False)


def _restarts(url: str, active: int) -> int:
    """Number of attempts after the first, and of attempts that have ended."""
    database = Database(url, keeps_events=False)
    with database.reading() as session:
        running = select(func.count()).where(Attempt.state == "running")
        more = select(func.count()).where(Attempt.number > 1)
        found = active - (session.scalar(running) or 0) + (session.scalar(more) or 0)
    database.close()
    return found


def _cpu_seconds_of_all(plane: ControlPlane, server: PostgresqlServer) -> dict[str, float]:
    """User and system time of the processes by their role."""
    return {
        "control plane": cpu_seconds(plane.process.pid),
        "internal process": sum(map(cpu_seconds, children(plane.process.pid))),
        # Includes ended processes of connections, for which their parent has waited.
        "PostgreSQL": sum(
            cpu_seconds(process, waited_for=True) for process in children(server.process.pid, itself=True)
        ),
    }


def _resident_megabytes(process: int) -> float:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
