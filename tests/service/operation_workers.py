"""Operations on a real catalog, and workers of control planes that carry them out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from pydantic import BaseModel

from epochal.service.catalog.database import Database
from epochal.service.catalog.models import Operation
from epochal.service.catalog.operation_claims import Claim, OperationClaims
from epochal.service.catalog.types import now
from epochal.service.runtime.operations import OperationWorker, Verb


class Request(BaseModel):
    application: str = "flights"


class Named(BaseModel):
    name: str


class Checked(BaseModel):
    checked: str


Run = Callable[[Claim, Request], Checked]


def operation(database: Database, id: str) -> Operation:
    with database.reading() as session:
        return session.get_one(Operation, id)


def claims(database: Database, holder: str) -> OperationClaims:
    """Claims of another process, which may still be running."""
    return OperationClaims(database, holder, lambda holder: False, lambda: False)


def queued_operation(database: Database) -> str:
    return claims(database, "another process").begin("verify", "alice", lambda session: (None, Request()), "default").id


def expire_claim(database: Database, id: str) -> None:
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


def verified(claim: Claim, request: Request) -> Checked:
    return Checked(checked=request.application)


class EndlessRun:
    """A run that ends only when it is interrupted or cancelled."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    def __call__(self, claim: Claim, request: Request) -> Checked:
        self.begun.set()
        while True:
            claim.progress("working")


def begin(worker: OperationWorker) -> str:
    return worker.begin("verify", "alice", lambda session: (None, Request()), "default").id
