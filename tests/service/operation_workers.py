"""Operations on a real catalog, and control planes' workers that carry them out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel

from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operation_claims import Claim, OperationClaims
from epochal.service.catalog.types import now
from epochal.service.runtime.operations import OperationWorker, Verb
from tests.kit.catalogs import new_sqlite_catalog

CATALOGS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.server)]


class Request(BaseModel):
    application: str = "flights"


class Named(BaseModel):
    name: str


class Checked(BaseModel):
    checked: str


Run = Callable[[Claim, Request], Checked]


def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """The catalog that a fixture with the parameters :data:`CATALOGS` asks for."""
    if request.param == "sqlite":
        url = new_sqlite_catalog(tmp_path / "catalog.sqlite")
    else:
        url = str(request.getfixturevalue("postgresql_catalog_url"))
    database = Database(url)
    yield database
    database.close()


def operation(database: Database, id: str) -> Operation:
    with database.reading() as session:
        return session.get_one(Operation, id)


def claims(database: Database, holder: str) -> OperationClaims:
    """Of another process, which may run still."""
    return OperationClaims(database, holder, lambda holder: False, lambda: False)


def asked_for(database: Database) -> str:
    return claims(database, "nobody").begin("verify", "somebody", lambda session: (None, Request()), "default").id


def claim_is_over(database: Database, id: str) -> None:
    with database.writing() as session:
        session.get_one(Operation, id).claim_until = now() - timedelta(seconds=1)


def worker_of(database: Database, run: Run, sweep: Callable[[Claim, Request], None] | None = None) -> OperationWorker:
    worker = OperationWorker(database, look_seconds=0.05)
    verb = Verb("verify", Request, run) if sweep is None else Verb("verify", Request, run, sweep)
    worker.register("store", [verb])
    return worker


@contextmanager
def control_plane(database: Database, run: Run) -> Iterator[OperationWorker]:
    worker = worker_of(database, run)
    worker.open()
    try:
        yield worker
    finally:
        worker.close()


def answered(claim: Claim, request: Request) -> Checked:
    return Checked(checked=request.application)


class Unending:
    """A run that ends when it is interrupted or cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def __call__(self, claim: Claim, request: Request) -> Checked:
        self.begun.set()
        while True:
            claim.progress("still at it")


def begin(worker: OperationWorker) -> str:
    return worker.begin("verify", "somebody", lambda session: (None, Request()), "default").id
