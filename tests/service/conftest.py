"""A control plane behind a real socket, with stand-ins for the builder and the supervisor: no Spark is needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import func, select

from epochal.backends.files import FilesBackend
from epochal.contracts.catalog import (
    Change,
    DriverStatus,
    EpochCounts,
    EpochTerms,
    ManifestReference,
    RecoveryPoint,
    RestorePoint,
)
from epochal.contracts.conditions import Clock, EpochConditions, Trigger
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.driver.http_catalog import HttpCatalog
from epochal.errors import PipelineError
from epochal.pipeline.description import GraphDescription, NodeDescription
from epochal.service.api.context import ControlPlane
from epochal.service.app import create_app
from epochal.service.catalog.metrics import CountRepository
from epochal.service.catalog.models import Epoch
from epochal.service.domain.building import RestorePointsOf, ShownOf
from epochal.service.domain.events import ControlEvent
from epochal.service.domain.ports import SpareFigures
from epochal.service.domain.settings import Settings
from epochal.snapshots import layout
from epochal.snapshots.manifest import FileInFlight, FileReference, RecordsInFlight, SinkHandles
from epochal.snapshots.store import SnapshotStore
from epochal.state.table import StateTable
from epochal.testing.servers.process import free_port as free_port
from tests.kit.catalogs import new_sqlite_catalog
from tests.kit.manifests import plain_manifest
from tests.service.browser import Browser
from tests.service.listed_problems import ListedProblems
from tests.service.listening import listening


class StandInBuilder:
    """Reads the description of a pipeline as JSON from a comment in the artifact's first line.

    Its fields: ``sinks``, whose targets may use parameters; ``wrong``, the error to raise; ``warnings``, ``loops``,
    ``entries`` and ``nodes``; ``tables``, the state tables, which only an analysis returns, as in a real builder;
    ``tables_of``, the state tables for each value of the parameter ``tables``."""

    @property
    def spares(self) -> SpareFigures:
        return SpareFigures()

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def describe(
        self, project: str, artifact: Path, parameters: Mapping[str, Any], configuration: object = None
    ) -> GraphDescription:
        content = json.loads(artifact.read_text().splitlines()[0].removeprefix("# "))
        if "wrong" in content:
            raise PipelineError(content["wrong"])
        sinks = {name: target.format(**parameters) for name, target in content["sinks"].items()}
        nodes = [NodeDescription(id=0, name="in", type="source")]
        for name in content.get("loops", ()):
            nodes.append(NodeDescription(id=len(nodes), name=name, type="feedback", description={"columns": {}}))
        if "entries" in content:
            described = {"kind": "entries", "entries": content["entries"]}
            nodes.append(NodeDescription(id=len(nodes), name="entries", type="source", description=described))
        nodes += [NodeDescription.model_validate(node) for node in content.get("nodes", ())]
        return GraphDescription(
            name="flights", nodes=tuple(nodes), sinks=sinks, warnings=tuple(content.get("warnings", ()))
        )

    def analyse(
        self, project: str, artifact: Path, parameters: Mapping[str, Any], configuration: object
    ) -> GraphDescription:
        graph = self.describe(project, artifact, parameters)
        content = json.loads(artifact.read_text().splitlines()[0].removeprefix("# "))
        tables = content.get("tables_of", {}).get(parameters.get("tables"), content.get("tables"))
        return graph if tables is None else GraphDescription.model_validate({**graph.model_dump(), "tables": tables})

    def shown(
        self, project: str, artifact: Path, parameters: Mapping[str, Any], branch: ShownOf, configuration: object = None
    ) -> dict[str, int | None]:
        scope = EpochScope(branch.application, branch.at, branch.attempt, None)
        targets = self.describe(project, artifact, parameters).sinks
        return {
            name: FilesBackend(target.removeprefix("files:")).shown(scope) if target.startswith("files:") else None
            for name, target in targets.items()
        }

    def restore_points(
        self,
        project: str,
        artifact: Path,
        parameters: Mapping[str, Any],
        tables: RestorePointsOf,
        configuration: object = None,
    ) -> dict[str, RestorePoint]:
        """The first epoch left behind, as a version; an error in the artifact's field ``unreadable``."""
        content = json.loads(artifact.read_text().splitlines()[0].removeprefix("# "))
        if "unreadable" in content:
            raise PipelineError(content["unreadable"])
        ((_, span),) = tables.left.items()
        if "shared" in content:
            return {sink: RestorePoint(reason=content["shared"]) for sink in tables.sinks}
        return {sink: RestorePoint(version=str(span.first)) for sink in tables.sinks}


@dataclass
class StandInSupervisor:
    woken: list[str | None] = field(default_factory=list)
    spares: SpareFigures = field(default_factory=SpareFigures)

    def open(self) -> None:
        pass

    def close(self) -> None:
        pass

    def bring_log(self, process: str) -> None: ...

    def wake(self, execution: str | None = None) -> None:
        self.woken.append(execution)


@dataclass
class Plane:
    """A running control plane, a client with its admin token, and the calls that its stand-ins received."""

    control: ControlPlane
    client: httpx.Client
    settings: Settings
    supervisor: StandInSupervisor
    events: list[ControlEvent]

    @property
    def admin_token(self) -> str:
        return self.settings.admin_token_file.read_text().strip()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that configure the command line for this control plane."""
        return {"EPOCHAL_URL": self.settings.url, "EPOCHAL_TOKEN": self.admin_token}

    def token(self, role: str, name: str | None = None) -> str:
        answer = self.client.post("/v1/tokens", json={"name": name or f"a-{role}", "role": role})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def as_bearer(self, token: str | None) -> httpx.Client:
        return http_client(self.settings, token)

    def artifact(self, sinks: Mapping[str, str] | None = None, **content: Any) -> str:
        text = "# " + json.dumps({"sinks": dict(sinks or {"out": "files:{out}"}), **content})
        answer = self.client.post("/v1/artifacts", params={"filename": "flights.py"}, content=text.encode())
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["sha256"])

    def application(self, name: str = "flights", **more: Any) -> dict[str, Any]:
        body = {"name": name, "artifact": self.artifact(), "parameters": {"out": f"/data/{name}"}, **more}
        answer = self.client.post("/v1/applications", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def get(self, path: str, **query: Any) -> Any:
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, expect: int = 202, **body: Any) -> Any:
        answer = self.client.post(path, json=body)
        assert answer.status_code == expect, answer.text
        return answer.json()

    def check_counters(self) -> None:
        """Check that the counters of branches equal the numbers of epochs in the catalog."""
        with self.control.database.reading() as session:
            found = session.execute(select(Epoch.state, func.count()).group_by(Epoch.state)).all()
            counted = CountRepository(session).epochs()
        assert {state: count for state, count in counted.items() if count} == {row[0]: row[1] for row in found}

    def driver(self, application: str = "flights") -> Driver:
        """Begin the next attempt over HTTP with its own token, as the supervisor and a driver process would."""
        return Driver(self, application)


class Driver:
    def __init__(self, plane: Plane, application: str) -> None:
        self.execution = plane.get(f"/v1/applications/{application}")["execution"]
        self.ticket = plane.control.ledger.new_attempt(self.execution)
        self.catalog = HttpCatalog(
            [plane.settings.internal_url], self.ticket.token, self.execution, self.ticket.attempt, patience_seconds=5.0
        )
        self.point: RecoveryPoint = self.catalog.begin_attempt()
        self.head = self.point.head
        self._next = self.point.next_epoch
        self._store = SnapshotStore(plane.settings.store_url)
        self._artifact = plane.get(f"/v1/applications/{application}")["artifact"]
        newest = plane.get(f"/v1/applications/{application}/versions")["items"][0]
        self._tables = tuple(StateTable.model_validate(table) for table in newest["graph"]["tables"] or ())
        self.sink_kind = "files"

    @property
    def attempt(self) -> int:
        return self.ticket.attempt

    def running(self) -> list[Any]:
        return list(self.catalog.heartbeat(DriverStatus(phase="running", epoch=self._next)))

    def epoch(
        self,
        commit: bool = True,
        sinks: Mapping[str, int] | None = None,
        opened_for: tuple[Trigger, ...] = (),
        checkpoints: bool = False,
        in_flight: Mapping[str, int] | None = None,
        conditions: EpochConditions | None = None,
        changes: tuple[Change, ...] = (),
    ) -> int:
        """Run an epoch with a real manifest in the store.

        ``sinks``: the number of rows for each sink. ``checkpoints``: store checkpoints of the sources, so that
        recovery needs no earlier epoch. ``in_flight``: the number of records that each loop holds afterwards."""
        number, parent = self._next, self.head.key if self.head else None
        self.catalog.open_epoch(number, parent)
        reference = self.manifest(number, sinks, opened_for, checkpoints, in_flight, conditions, changes)
        counts, terms = EpochCounts(rows_in=number), EpochTerms(opened_for=opened_for, changes=changes)
        self.catalog.prepare_epoch(number, parent, reference, counts, terms)
        if commit:
            self.catalog.commit_epoch(number)
        self.head, self._next = reference, number + 1
        return number

    def epochs(self, count: int, checkpoints: bool = False) -> list[int]:
        return [self.epoch(checkpoints=checkpoints) for _ in range(count)]

    def manifest(
        self,
        number: int,
        sinks: Mapping[str, int] | None = None,
        opened_for: tuple[Trigger, ...] = (),
        checkpoints: bool = False,
        in_flight: Mapping[str, int] | None = None,
        conditions: EpochConditions | None = None,
        changes: tuple[Change, ...] = (),
    ) -> ManifestReference:
        if conditions is None:
            conditions = EpochConditions(clock=Clock(epoch_time=0), opened_for=opened_for)
        handles = {
            name: Handle(owner=name, subtask=0, rows=rows, bytes=1, payload={}) for name, rows in (sinks or {}).items()
        }
        return self._store.write_manifest(
            plain_manifest(
                number,
                application=self.point.application,
                branch=self.point.branch,
                parent=self.head,
                execution=self.execution,
                attempt=self.attempt,
                artifact=self._artifact,
                parallelism=2,
                max_parallelism=128,
                tables=self._tables,
                source_checkpoints={"in": {}} if checkpoints else {},
                loops={
                    name: _records_in_flight(EpochKey(self.point.branch, number), name, records)
                    for name, records in (in_flight or {}).items()
                },
                conditions=conditions,
                changes=changes,
                sinks={
                    name: SinkHandles(kind=self.sink_kind, target=f"{self.sink_kind}:/{name}", handles=(handle,))
                    for name, handle in handles.items()
                },
            )
        )

    @property
    def next_key(self) -> EpochKey:
        return EpochKey(self.point.branch, self._next)

    @property
    def head_key(self) -> EpochKey | None:
        return self.head.key if self.head else None

    def stop(self) -> None:
        """Carry out a requested stop."""
        for directive in self.running():
            self.catalog.complete(directive.id, self.head)
        self.catalog.finish(None)


def _records_in_flight(at: EpochKey, loop: str, records: int) -> RecordsInFlight:
    """Names files that do not exist; no code of the control plane reads them."""
    file = FileReference(path=layout.records_of_loop(at, loop, 0), sha256="0" * 64, bytes=1, rows=records)
    return RecordsInFlight(columns=(), files=(FileInFlight(file=file, first=0, last=records),) if records else ())


def http_client(settings: Settings, token: str | None) -> httpx.Client:
    """A client for the control plane of ``settings``, anonymous without a token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # Without TLS, loading certificates would only cost time, more than most requests take.
    return httpx.Client(base_url=settings.url, headers=headers, trust_env=False, timeout=120, verify=False)


@contextmanager
def serving(
    settings: Settings, supervisor: StandInSupervisor | None = None, builder: StandInBuilder | None = None
) -> Iterator[tuple[ControlPlane, str]]:
    """Run the control plane of ``settings`` within the block; yields it with its admin token."""
    supervisor = supervisor or StandInSupervisor()
    builder = builder or StandInBuilder()
    with serving_app(create_app(settings, lambda *_: builder, lambda *_: supervisor), settings) as running:
        yield running


@contextmanager
def serving_app(app: FastAPI, settings: Settings) -> Iterator[tuple[ControlPlane, str]]:
    """Like :func:`serving`, for any application object."""
    catalog = settings.data / "catalog.sqlite"
    if settings.database is None and not catalog.exists():
        new_sqlite_catalog(catalog)
    unlisted: set[str] = set()
    app.add_middleware(ListedProblems, document=app, unlisted=unlisted)
    with listening(app, settings):
        file = settings.admin_token_file
        yield app.state.control_plane, file.read_text().strip() if file.exists() else ""
    assert not unlisted, f"add them with @answers: {sorted(unlisted)}"


@pytest.fixture
def serve() -> Callable[..., Any]:
    return serving


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=tmp_path / "data", port=free_port())


@pytest.fixture
def plane(settings: Settings) -> Iterator[Plane]:
    """An empty control plane for one test."""
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token):
        events: list[ControlEvent] = []
        assert control.drivers is not None
        for database in (control.database, control.supervision, control.drivers.database):
            database.listen(events.extend)
        with http_client(settings, token) as client:
            yield Plane(control, client, settings, supervisor, events)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Plane]:
    """A second control plane, with a catalog and a store of its own."""
    settings = Settings(data=tmp_path / "other", port=free_port())
    supervisor = StandInSupervisor()
    with serving(settings, supervisor) as (control, token), http_client(settings, token) as client:
        yield Plane(control, client, settings, supervisor, [])


@pytest.fixture
def browser(plane: Plane) -> Iterator[Browser]:
    browser = Browser(plane.settings)
    yield browser
    browser.client.close()
