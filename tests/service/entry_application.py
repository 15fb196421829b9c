"""An application with entries, and the real engine without Spark as its driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from epochal import KeyedProcess, Pipeline, ValueState
from epochal.contracts.configuration import Configuration, ExecutionOrders
from epochal.contracts.registry import STATE_BACKENDS, find
from epochal.declarations.entry import CALL_SCHEMA, ENTRIES
from epochal.driver.http_catalog import HttpCatalog
from epochal.driver.inbox import HttpInbox
from epochal.engine.job import Participants
from epochal.operators.entries.plan import EntrySource
from epochal.pipeline.entry_verbs import entries_of
from epochal.snapshots.store import SnapshotStore
from tests.kit.lives import struct
from tests.kit.local_engine.attempt import LocalAttempt
from tests.kit.local_engine.engine import local_program
from tests.kit.local_engine.plans import local_pipeline
from tests.service.conftest import Plane

RAW = {"not a number": "NaN", "empty": "", "half": '{"a": ', "two": "1 2", "half, and an error": "["}
"""Values that are not JSON, by the key that makes ``Exchange`` answer with them."""


class Exchange(KeyedProcess):
    """Answers with the previous value of the key and the number of calls."""

    value = ValueState("value string, calls bigint")
    output = struct(request_id="string", value="string", error="string")
    order_by = "sequence"

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> Iterator[Any]:
        for row in rows:
            before = self.value.get()
            value, calls = (None, 0) if before is None else (before.value, before.calls)
            self.value.set((row.value or value, calls + 1))
            error = None if row.value or value else f"unknown key {key.key}"
            yield row.request_id, RAW.get(key.key, json.dumps([value, calls + 1])), error


def build() -> Pipeline:
    pipeline = Pipeline("store")
    arguments = {"key": "string", "value": "string", "at": "timestamp", "count": "bigint"}
    calls = pipeline.entry(
        "exchange", arguments, returns="array<string>", optional=["value", "at", "count"], description="Puts a value."
    )
    pipeline.answer("exchange", calls.key_by("key").process(Exchange, name="values"))
    pipeline.entry("note", {"key": "string"}).key_by("key").distinct("notes")
    return pipeline


class Application:
    """An application with entries; its driver runs within :meth:`running`."""

    def __init__(self, plane: Plane, name: str = "store") -> None:
        self.plane, self.name = plane, name
        self._local = local_pipeline(build().graph(), {ENTRIES: CALL_SCHEMA})

    def create(self) -> None:
        described = [entry.details() | {"table": entry.table} for entry in entries_of(build().graph())]
        tables = [json.loads(table.model_dump_json()) for table in self._local.tables]
        artifact = self.plane.artifact({"out": "files:/data/store"}, entries=described, tables=tables)
        self.plane.application(self.name, artifact=artifact, parameters={})

    @contextmanager
    def running(self, epochs: int | None = None) -> Iterator[None]:
        """Run a driver, which ends without a report after ``epochs`` epochs."""
        stopped = Event()
        attempt, ledger = self._attempt(), self.plane.control.ledger
        driver = Thread(target=self._drive, args=(attempt, stopped, epochs))
        driver.start()
        try:
            yield
        finally:
            stopped.set()
            driver.join()
            self._inbox.close()
            ledger.attempt_ended(self._execution, self._number, "lost", None)

    def _attempt(self) -> LocalAttempt:
        plane = self.plane
        execution = plane.get(f"/v1/applications/{self.name}")["execution"]
        ticket = plane.control.ledger.new_attempt(execution)
        self._execution, self._number = execution, ticket.attempt
        urls = [plane.settings.internal_url]
        catalog = HttpCatalog(urls, ticket.token, execution, ticket.attempt, patience_seconds=5.0)
        store, make_state = SnapshotStore(plane.settings.store_url), find(STATE_BACKENDS, "heap")
        orders = ExecutionOrders(
            application=self.name,
            execution=execution,
            attempt=ticket.attempt,
            artifact="none",
            configuration=Configuration(state_backend="heap", parallelism=2),
            store=plane.settings.store_url,
            cache_directory=str(plane.settings.data / "cache"),
        )
        source = EntrySource()
        self._inbox = HttpInbox(catalog)
        source.connect(self._inbox)
        participants = Participants(
            sources={ENTRIES: source},
            operators={
                each.name: make_state(each.name, store, orders.cache_directory) for each in self._local.operators
            },
            sinks={},
            tables=self._local.tables,
        )
        return LocalAttempt(local_program(orders, self._local, participants), catalog)

    def _drive(self, attempt: LocalAttempt, stopped: Event, epochs: int | None) -> None:
        while not stopped.is_set() and epochs != 0:
            if attempt.epoch() is None:
                self._inbox.wait(0.05)
                continue
            epochs = None if epochs is None else epochs - 1
            attempt.commit_all()

    def call(self, expect: int = 200, entry: str = "exchange", wait: float = 20, **body: Any) -> Any:
        path = f"/v1/applications/{self.name}/entries/{entry}"
        answer = self.plane.client.post(path, json=body, params={"wait": wait})
        assert answer.status_code == expect, answer.text
        self.headers = answer.headers
        return answer.json()

    def look(self, request_id: str, expect: int = 200, entry: str = "exchange", wait: float = 20) -> Any:
        path = f"/v1/applications/{self.name}/entries/{entry}/calls/{request_id}"
        answer = self.plane.client.get(path, params={"wait": wait})
        assert answer.status_code == expect, answer.text
        return answer.json()
