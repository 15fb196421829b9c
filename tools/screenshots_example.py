"""The control plane that the screenshots show: the flights of the demo with forks, an upgrade and a rollback, a second
application, and one that fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from epochal.client import Client
from epochal.client.applications import ApplicationHandle
from epochal.errors import EpochalError
from epochal.testing.servers.control_plane import ControlPlane, control_plane
from examples.flights.data import write_airports
from examples.flights.feeder import Feeder

FLIGHTS = Path(__file__).parents[1] / "examples" / "flights" / "pipeline.py"
CONFIGURATION = {"epoch_interval_seconds": 1.0, "parallelism": 2}
WAIT_SECONDS = 1200

ORDERS = """
from epochal import Pipeline
from epochal.connectors import console, generator

pipeline = Pipeline("orders")
orders = pipeline.read("orders", generator.source({"customer": "noise % 500", "amount": "noise % 90 + 10"}, rate=100))
spent = orders.where("amount >= 20").key_by("customer").aggregate("spent", orders="count(*)", total="sum(amount)")
spent.where("total > 500").write("good_customers", console.sink(rows=1))
"""
REFUNDS = """
from epochal import KeyedProcess, Pipeline, ValueState
from epochal.connectors import console, generator


class Refunds(KeyedProcess):
    refunded = ValueState("total int")
    output = "customer bigint, total int"

    def process(self, key, rows, ctx):
        total = sum(row.amount for row in rows)
        share = total / self.refunded.get()[0]
        self.refunded.set(total)
        yield key.customer, int(share)


pipeline = Pipeline("refunds")
refunds = pipeline.read("refunds", generator.source({"customer": "noise % 50", "amount": "noise % 90"}, rate=20))
refunds.key_by("customer").process(Refunds, name="refunds").write("refunds", console.sink(rows=1))
"""
QUERY = "SELECT origin, count(*) AS flights, max(delay) AS worst GROUP BY origin WINDOW '30 days'"


@contextmanager
def example(folder: Path, tell: Callable[[str], None] = print) -> Iterator[ControlPlane]:
    """Start the control plane below ``folder`` and wait until its applications have the history that is shown.

    Takes about four minutes. Flights keep arriving until the end. Raises ``EpochalError``."""
    with control_plane(folder) as plane, plane.client() as client:
        history = _History(client, folder)
        history.run(tell)
        history.feeder.start(date(2013, 12, 31), every=3)
        try:
            yield plane
        finally:
            history.feeder.stop()


class _History:
    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self.feeder = Feeder(folder / "flights")
        self._airports = write_airports(folder / "airports.parquet")

    def run(self, tell: Callable[[str], None]) -> None:
        client = self._client
        tell("flights: January")
        self.feeder.feed(date(2013, 1, 1))
        sha256 = client.artifacts.upload(FLIGHTS).sha256
        client.applications.create(
            "flights", sha256, parameters=self._parameters("flights", 15), configuration=CONFIGURATION
        )
        flights = client.application("flights")
        self._committed(flights, 1)
        client.operations.wait(flights.queries.add(QUERY))
        self._days(date(2013, 1, 14), flights)
        flights.annotations.write_message(_head(flights), "Two weeks of January, checked by hand")
        self._savepoint(flights, "mid-january", "before the snow")
        self._days(date(2013, 1, 31), flights)
        self._savepoint(flights, "end-of-january", "31 days of flights")

        tell("strict: a fork")
        client.applications.fork(
            "flights",
            "strict",
            savepoint="end-of-january",
            parameters=self._parameters("strict", 60),
            message="What if only an hour counts as late?",
        )
        strict = client.application("strict")
        self._days(date(2013, 2, 8), flights)
        self._committed(strict, _head(flights) - 4)
        client.operations.wait(flights.versions.rescale(4, message="more subtasks for February"))
        self._days(date(2013, 2, 12), flights)
        flights.annotations.tag(_head(flights), "carnival")
        self._savepoint(strict, "compared", "equal to the batch")

        tell("flights: an upgrade and a rollback")
        upgraded = self._parameters("flights", 15) | {"max_files": 2}
        flights.versions.create(parameters=upgraded, configuration=CONFIGURATION, message="fewer files in an epoch")
        self._until(lambda: all(each.finished_at is not None for each in client.operations.list()))
        self._days(date(2013, 2, 18), flights)
        client.operations.wait(client.applications.stop("strict"))
        plan = flights.rollback.plan(tag="carnival")
        message = "Flights of the 13th arrived twice"
        client.operations.wait(flights.rollback.to(tag="carnival", message=message, confirm=plan.confirm))
        before = _head(flights)
        self._committed(flights, before + 4)
        flights.annotations.pin(_head(flights), "the report of February")
        client.applications.fork(
            "flights", "trial", tag="carnival", shadow=True, start=False, message="for the next version"
        )

        tell("orders and refunds")
        for name, text in (("refunds", REFUNDS), ("orders", ORDERS)):
            file = self._folder / f"{name}.py"
            file.write_text(text)
            once = {**CONFIGURATION, "restart": {"max_restarts": 1}} if name == "refunds" else CONFIGURATION
            client.applications.create(name, client.artifacts.upload(file).sha256, configuration=once)
        self._committed(client.application("orders"), 12)
        self._days(date(2013, 2, 24), flights)
        self._savepoint(flights, "end-of-week")

    def _days(self, until: date, application: ApplicationHandle) -> None:
        """Feed these days, so that most of them are epochs of their own."""
        before = _head(application)
        self.feeder.start(until, every=1.2)
        self.feeder.join()
        self._committed(application, before + 1)

    def _committed(self, application: ApplicationHandle, epoch: int) -> None:
        self._until(lambda: _head(application) >= epoch)

    def _savepoint(self, application: ApplicationHandle, name: str, message: str | None = None) -> None:
        self._client.operations.wait(application.savepoints.create(name, message), timeout_seconds=WAIT_SECONDS)

    def _parameters(self, name: str, late_minutes: int) -> dict[str, object]:
        return {
            "flights": str(self.feeder.folder),
            "airports": str(self._airports),
            "output": str(self._folder / "output" / name),
            "late_minutes": late_minutes,
            "max_files": 3,
            "standing_queries": True,
        }

    def _until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise EpochalError(f"The example did not reach its next state within {WAIT_SECONDS} s.")
            time.sleep(0.2)


def _head(application: ApplicationHandle) -> int:
    head = application.get().head
    return head.epoch if head else 0
