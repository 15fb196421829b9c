"""Applications whose artifact is a file with a program. Its code is analysed and run, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path
from threading import Event
from typing import Any

from epochal.contracts.catalog import DriverStatus
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.declarations.entry import CALL_SCHEMA, ENTRIES
from epochal.driver.http_catalog import HttpCatalog
from epochal.driver.inbox import HttpInbox
from epochal.engine.job import Participants
from epochal.operators.entries.plan import EntrySource
from epochal.pipeline.artifact import load
from epochal.pipeline.description import GraphDescription, describe
from epochal.programs.translation import programs_in
from epochal.snapshots.store import SnapshotStore
from tests.kit.local_engine.attempt import LocalAttempt
from tests.kit.local_engine.engine import LocalPipeline, local_program
from tests.kit.local_engine.plans import local_pipeline
from tests.service.conftest import Plane, StandInBuilder

CONFIGURATION: dict[str, Any] = {"state_backend": "heap", "parallelism": 2, "max_parallelism": 8}
Call = tuple[str, Mapping[str, Any]]
"""An entry and its arguments."""


class ProgramBuilder(StandInBuilder):
    """Loads the code of the artifact, and plans it without Spark."""

    def describe(
        self, project: str, artifact: Path, parameters: Mapping[str, Any], configuration: object = None
    ) -> GraphDescription:
        return describe(load(artifact).graph(parameters))

    def analyse(
        self, project: str, artifact: Path, parameters: Mapping[str, Any], configuration: object
    ) -> GraphDescription:
        graph = load(artifact).graph(parameters)
        return describe(graph).model_copy(update={"tables": planned(artifact).tables})


def planned(artifact: Path) -> LocalPipeline:
    return local_pipeline(load(artifact).graph(), {ENTRIES: CALL_SCHEMA})


def plainly(file: Path, calls: Sequence[Call]) -> list[tuple[Any, str | None]]:
    """Run the calls one after another on an instance of the plain class; return the answer and the error of each."""
    (program,) = programs_in(load(file).module)
    running, found = program(), list[tuple[Any, str | None]]()
    for entry, arguments in calls:
        try:
            found.append((getattr(running, entry)(**arguments), None))
        except ValueError as error:
            found.append((None, f"{type(error).__name__}: {error}"))
    return found


class ServedProgram:
    """One application. ``file`` has its current code."""

    def __init__(self, plane: Plane, folder: Path, name: str = "accounts") -> None:
        self.plane, self.name = plane, name
        self.file = folder / "program.py"

    @property
    def path(self) -> str:
        return f"/v1/applications/{self.name}"

    def create(self, code: str) -> None:
        body = {"name": self.name, "artifact": self.upload(code), "configuration": CONFIGURATION, "start": False}
        self.plane.post("/v1/applications", 201, **body)

    def upload(self, code: str) -> str:
        self.file.write_text(code)
        answer = self.plane.client.post("/v1/artifacts", params={"filename": "program.py"}, content=code.encode())
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["sha256"])

    def upgrade(self, code: str, **more: Any) -> dict[str, Any]:
        """Takes effect at the next start."""
        return dict(self.plane.post(f"{self.path}/versions", 201, artifact=self.upload(code), **more))

    def preflight(self, code: str, **more: Any) -> dict[str, Any]:
        before = self.file.read_text()
        answer = self.plane.post("/v1/preflight", 200, application=self.name, artifact=self.upload(code), **more)
        self.file.write_text(before)
        return dict(answer)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run a driver, and stop it when the block ends."""
        self.plane.post(f"{self.path}/start")
        execution = self.plane.get(self.path)["execution"]
        ledger = self.plane.control.ledger
        ticket = ledger.new_attempt(execution)
        urls, number = [self.plane.settings.internal_url], ticket.attempt
        catalog = HttpCatalog(urls, ticket.token, execution, number, patience_seconds=5.0)
        inbox, lost = HttpInbox(catalog), Event()
        attempt = self._attempt(execution, number, catalog, inbox)
        with ThreadPoolExecutor(1) as thread:
            driver = thread.submit(_drive, attempt, catalog, inbox, lost)
            try:
                yield
                self.plane.post(f"{self.path}/stop")
                driver.result()
            except BaseException:
                lost.set()
                raise
            finally:
                wait([driver])
                inbox.close()
                if lost.is_set():
                    ledger.attempt_ended(execution, number, "lost", None)

    def _attempt(self, execution: str, number: int, catalog: HttpCatalog, inbox: HttpInbox) -> LocalAttempt:
        pipeline, settings = planned(self.file), self.plane.settings
        store, make_state = SnapshotStore(settings.store_url), find(STATE_BACKENDS, "heap")
        orders = ExecutionOrders(
            application=self.name,
            execution=execution,
            attempt=number,
            artifact=self.plane.get(self.path)["artifact"],
            configuration=Configuration.model_validate(CONFIGURATION),
            store=settings.store_url,
            cache_directory=str(settings.data / "cache"),
        )
        source = EntrySource()
        source.connect(inbox)
        participants = Participants(
            sources={ENTRIES: source},
            operators={each.name: make_state(each.name, store, orders.cache_directory) for each in pipeline.operators},
            sinks={},
            tables=pipeline.tables,
        )
        return LocalAttempt(local_program(orders, pipeline, participants), catalog)

    def call(self, *calls: Call, request_ids: str | None = None) -> list[tuple[Any, str | None]]:
        """Send the calls in order, consecutive calls of one entry in one request; return the value and the error of
        each. ``request_ids`` is the prefix of the calls' request ids."""
        found, numbers = list[tuple[Any, str | None]](), count()
        for entry, group in groupby(calls, key=itemgetter(0)):
            ids = ({} if request_ids is None else {"request_id": f"{request_ids}{next(numbers)}"} for _ in count())
            body = {"calls": [{**id, "arguments": arguments} for id, (_, arguments) in zip(ids, group, strict=False)]}
            answer = self.plane.client.post(f"{self.path}/entries/{entry}", json=body, params={"wait": 60})
            assert answer.status_code == 200, answer.text
            found += [(each["value"], each["error"]) for each in answer.json()["calls"]]
        return found

    def state(self, table: str) -> dict[str, Any]:
        """All values that are not zero, by the first column of the key, summed over instances."""
        rows = self.plane.get(f"{self.path}/state/{table}/scan", limit=100)["items"]
        found: dict[str, Any] = {}
        for row in rows:
            (key,) = (value for name, value in row["key"].items() if name != "_group")
            (value,) = row["value"].values()
            found[key] = found.get(key, 0) + value
        return {key: value for key, value in found.items() if value}

    def parts(self, table: str, key: str) -> dict[int, Any]:
        """The value of one key of partial state in each instance that has one, as scans of single instances return
        it. The key has one column."""
        found = {}
        for instance in range(CONFIGURATION["parallelism"]):
            rows = self.plane.get(f"{self.path}/state/{table}/scan", prefix=str(instance), limit=100)["items"]
            assert all(row["key"]["_group"] == instance for row in rows)
            for row in rows:
                if [each for name, each in row["key"].items() if name != "_group"] == [key]:
                    (found[instance],) = row["value"].values()
        return found

    def merged_and_parts(self, table: str, key: str) -> tuple[Any, dict[int, Any]]:
        """The merged value that a look-up of a key returns, and the value of each instance."""
        answer = self.plane.get(f"{self.path}/state/{table}/keys/{key}")
        return answer["value"], {each["instance"]: next(iter(each["value"].values())) for each in answer["instances"]}

    def merged(self, table: str, keys: Sequence[str]) -> list[dict[str, Any] | None]:
        """The merged values that a look-up of several keys returns."""
        answer = self.plane.post(f"{self.path}/state/{table}/lookup", 200, keys=[{"key": key} for key in keys])
        return list(answer["values"])


def _drive(attempt: LocalAttempt, catalog: HttpCatalog, inbox: HttpInbox, lost: Event) -> None:
    while not lost.is_set():
        for directive in catalog.heartbeat(DriverStatus(phase="running")):
            attempt.commit_all()
            catalog.complete(directive.id, attempt.coordinator.position.head)
            if directive.kind == "stop":
                attempt.finish()
                return
        if attempt.epoch() is None:
            inbox.wait(0.05)
        attempt.commit_all()
