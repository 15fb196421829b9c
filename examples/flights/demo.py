"""The demo: one year of flights through a streaming application, with everything that can happen to it.

``make demo``, or ``python -m examples.flights.demo``. Takes about two minutes and leaves nothing running. Exits 0 only
when every number of the streaming application equals that of a plain Spark batch over the same files.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from epochal.cli.local_spark import local_spark
from epochal.client import Client, Execution
from epochal.client.applications import ApplicationHandle
from epochal.contracts.configuration import Configuration
from epochal.errors import EpochalError
from epochal.testing.servers.control_plane import ControlPlane, control_plane, process_id
from examples.flights import batch, proof, screen
from examples.flights.data import write_airports
from examples.flights.feeder import Feeder

ARTIFACT = Path(__file__).with_name("pipeline.py")
LATE_MINUTES, STRICT_MINUTES = 15, 60
NEW_YEAR, JANUARY, FEBRUARY, DECEMBER = date(2013, 1, 1), date(2013, 1, 31), date(2013, 2, 28), date(2013, 12, 31)
DAYS_AT_ONCE = 100
"""In one epoch at most: what January brings day by day is less, and the rest of the year is in few epochs."""
CONFIGURATION = {"epoch_interval_seconds": 1.0, "restart": {"backoff_seconds": 0.5}}


class Demo:
    """The chapters, in order. Each relies on what those before it left."""

    def __init__(self, plane: ControlPlane, client: Client, folder: Path, feeder: Feeder) -> None:
        self.plane = plane
        self.client = client
        self.folder = folder
        self.feeder = feeder
        self.routes = feeder.routes
        self.aircraft = feeder.aircraft
        self.log = screen.EpochLog()

    def run(self) -> None:
        flights = self.submit()
        self.stream_january(flights)
        self.look_up(flights)
        self.kill_the_driver(flights)
        strict = self.fork(flights)
        self.rest_of_the_year(flights, strict)
        self.show_lineage()
        self.stop(flights, strict)
        self.compare(flights, strict)

    def submit(self) -> ApplicationHandle:
        screen.chapter("1  Submit", "The pipeline is a Python file. The control plane checks it and starts a driver.")
        screen.typed("epochal submit examples/flights/pipeline.py --name flights -p late_minutes=15 ..")
        self.feeder.feed(NEW_YEAR)
        artifact = self.client.artifacts.upload(ARTIFACT)
        with screen.console.status("[dim]building and checking the pipeline, then Spark starts"):
            self.client.applications.create(
                "flights",
                artifact.sha256,
                parameters=self.parameters("flights", LATE_MINUTES),
                configuration=CONFIGURATION,
            )
            application = self.client.application("flights")
            self.wait_until_running(application)
        screen.good(f"[bold]flights[/] runs, as artifact {artifact.sha256[:12]}")
        return application

    def stream_january(self, application: ApplicationHandle) -> None:
        screen.chapter(
            "2  January, day by day",
            "Every epoch is atomic: its slice of the files, the state of both operators, and both output tables.",
        )
        self.log.watch(application)
        self.log.until(lambda: self.caught_up(application), "New Year's Day: the first epoch of a JVM takes longer")
        self.feeder.start(JANUARY, every=0.3)
        self.log.until(lambda: self.caught_up(application), "a day of flights every 0.3 s")
        screen.good(f"{self.feeder.arrived:,} flights of {self.feeder.days} days are in the state, each exactly once")

    def look_up(self, application: ApplicationHandle) -> None:
        screen.chapter("3  Look state up by key, now and then", "From the last committed epoch; or from any older one.")
        delays = application.state("delays")
        screen.typed("epochal get flights delays JFK,LAX")
        now = delays.get("JFK", "LAX")
        screen.record(f"epoch {now.epoch:>3}", shown(now.value))

        committed = sorted(epoch.epoch for epoch in application.epochs.list(limit=500, state="committed"))
        earlier = committed[len(committed) // 2]
        screen.typed(f"epochal get flights delays JFK,LAX --epoch {earlier}")
        then = delays.get("JFK", "LAX", epoch=earlier)
        screen.record(f"epoch {then.epoch:>3}", shown(then.value))
        if not (now.value and then.value and then.value["flights"] < now.value["flights"]):
            raise EpochalError("The older epoch does not hold fewer flights than the newer one.")

        started = time.perf_counter()
        everything = delays.lookup(self.routes)
        found = [(key, value) for key, value in zip(self.routes, everything.values, strict=True) if value is not None]
        took = (time.perf_counter() - started) * 1000
        worst = sorted(found, key=lambda pair: pair[1]["average_delay"], reverse=True)[:3]
        screen.rows(
            f"  {len(found)} routes in one look-up, all from epoch {everything.epoch}, {took:.0f} ms. The worst:",
            ("origin", "destination", "flights", "average delay", "worst"),
            ((*key.values(), value["flights"], value["average_delay"], value["worst_delay"]) for key, value in worst),
        )

    def kill_the_driver(self, application: ApplicationHandle) -> None:
        screen.chapter(
            "4  Kill the driver", "SIGKILL, while February is coming in. Nothing gets lost, nothing comes twice."
        )
        self.feeder.start(FEBRUARY, every=0.3)
        before = self.feeder.days
        self.log.until(lambda: self.feeder.days >= before + 8, "February comes in")
        execution = self.current_execution(application)
        process = process_id(execution.attempts[-1].process or "")
        screen.typed(f"kill -9 {process}")
        os.kill(process, signal.SIGKILL)
        killed, attempt, head = time.monotonic(), execution.attempt, self.head(application)
        self.log.until(lambda: self.head(application) > head, "the control plane notices, and starts the next attempt")
        took, next_attempt = time.monotonic() - killed, self.current_execution(application).attempt
        if next_attempt <= attempt:
            raise EpochalError("The driver was killed, and yet there is no new attempt.")
        screen.good(f"attempt {next_attempt} goes on after epoch {head}: {took:.1f} s from the kill to the next commit")
        self.log.until(lambda: self.caught_up(application), "the rest of February")

    def fork(self, application: ApplicationHandle) -> ApplicationHandle:
        screen.chapter(
            "5  Savepoint and fork",
            "What if only an hour counted as late? A second application goes on from this state; no byte is copied.",
        )
        screen.typed("epochal savepoint create flights end-of-february")
        self.client.operations.wait(application.savepoints.create("end-of-february", "two months of flights"))
        savepoint = application.savepoints.get("end-of-february")
        screen.good(f"[bold]end-of-february[/] is epoch {savepoint.epoch} of branch {savepoint.branch}")

        screen.typed("epochal fork flights strict --savepoint end-of-february -p late_minutes=60 -p output=..")
        with screen.console.status("[dim]Spark starts for the fork"):
            self.client.applications.fork(
                "flights", "strict", savepoint="end-of-february", parameters=self.parameters("strict", STRICT_MINUTES)
            )
            strict = self.client.application("strict")
            self.wait_until_running(strict)
        screen.good("[bold]strict[/] runs beside it, on a branch and with tables of its own")
        return strict

    def rest_of_the_year(self, *applications: ApplicationHandle) -> None:
        screen.chapter("6  The rest of the year, at once", "Ten months of flights for both, as fast as they can.")
        self.log.watch(applications[1])
        started = time.monotonic()
        self.feeder.feed(DECEMBER)
        self.log.until(lambda: all(map(self.caught_up, applications)), "March to December")
        screen.good(f"{self.feeder.arrived:,} flights in both, {time.monotonic() - started:.0f} s")

    def show_lineage(self) -> None:
        screen.chapter("7  Where the numbers come from")
        for command in (("ps",), ("lineage", "flights", "--limit", "60")):
            screen.typed(" ".join(("epochal", *command)))
            done = self.plane.run(*command, colour=True, columns=screen.console.width)
            screen.output(done.stdout)
            if done.returncode:
                raise EpochalError(f"epochal {' '.join(command)} failed.")

    def stop(self, *applications: ApplicationHandle) -> None:
        screen.chapter("8  Stop", "Each at an epoch boundary. What is committed can still be looked up.")
        for application in applications:
            screen.typed(f"epochal stop {application.name}")
        operations = [self.client.applications.stop(application.name) for application in applications]
        with screen.console.status("[dim]stopping"):
            for operation in operations:
                self.client.operations.wait(operation, timeout_seconds=60)
        screen.good("both stopped; the state answers all the same")
        route = applications[0].state("delays").get("JFK", "LAX")
        screen.record(f"epoch {route.epoch:>3}", shown(route.value))

    def compare(self, flights: ApplicationHandle, strict: ApplicationHandle) -> None:
        screen.chapter("9  The proof", "Plain Spark, one batch over the same files: every key, every row.")
        with screen.console.status("[dim]Spark computes the year in one batch"):
            comparisons = self.comparisons(flights, strict)
        for comparison in comparisons:
            if comparison.equal:
                screen.good(f"{comparison.what}: [bold]{comparison.rows:,}[/] rows, equal")
            else:
                screen.console.print(f"[red]✗[/] {comparison.what}: {len(comparison.missing)} rows missing, ")
                screen.console.print(f"  first {comparison.missing[:3]}; {len(comparison.surplus)} too many, ")
                screen.console.print(f"  first {comparison.surplus[:3]}")
        if not all(comparison.equal for comparison in comparisons):
            raise EpochalError("The streaming application does not equal the batch.")

    def comparisons(self, flights: ApplicationHandle, strict: ApplicationHandle) -> Sequence[proof.Comparison]:
        with local_spark("proof", Configuration()) as spark:
            arrived = batch.read_flights(spark, str(self.feeder.folder)).cache()
            airports = spark.read.parquet(str(self.folder / "airports.parquet"))
            story = proof.Story(flights, self.output("flights"), LATE_MINUTES)
            forked = proof.Story(strict, self.output("strict"), LATE_MINUTES, STRICT_MINUTES, FEBRUARY)
            return [
                *proof.compare_state(story, arrived, self.routes, self.aircraft),
                proof.compare_delays(story, spark, arrived, airports),
                proof.compare_alerts(story, spark, arrived),
                *proof.compare_state(forked, arrived, self.routes, self.aircraft),
                proof.compare_alerts(forked, spark, arrived, since=FEBRUARY),
            ]

    def parameters(self, name: str, late_minutes: int) -> dict[str, object]:
        return {
            "flights": str(self.feeder.folder),
            "airports": str(self.folder / "airports.parquet"),
            "output": self.output(name),
            "late_minutes": late_minutes,
            "max_files": DAYS_AT_ONCE,
        }

    def output(self, name: str) -> str:
        return str(self.folder / "output" / name)

    def caught_up(self, application: ApplicationHandle) -> bool:
        """Has every flight that was fed come through, into the committed state?"""
        if self.feeder.feeding or self.head(application) == 0:
            return False
        values = application.state("delays").lookup(self.routes).values
        return sum(int(value["flights"]) for value in values if value is not None) == self.feeder.arrived

    def head(self, application: ApplicationHandle) -> int:
        head = application.get().head
        return head.epoch if head else 0

    def current_execution(self, application: ApplicationHandle) -> Execution:
        return application.executions.list(limit=1)[0]

    def wait_until_running(self, application: ApplicationHandle) -> None:
        self.log.until(lambda: application.get().state == "running", f"{application.name} starts")


def shown(value: dict[str, object] | None) -> dict[str, object]:
    """What of a route's state is worth a line: without the two columns that its average is kept in."""
    return {name: value[name] for name in proof.DELAYS} if value else {}


def warm_drivers() -> str:
    """As many as is usual; but a spare driver is trained for minutes where two applications want the same two cores."""
    return "0" if (os.cpu_count() or 1) <= 2 else ""


def main() -> int:
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="epochal-demo-"))
    feeder = Feeder(folder / "flights")
    write_airports(folder / "airports.parquet")
    screen.chapter("Epochal", "The flights that left New York in 2013: delays per route, late streaks per aircraft.")
    screen.console.print(
        "This takes about two minutes on two cores, longer where much else runs. Spark is started several times; "
        "all 336,776 flights go through two applications, and once more through a batch that checks them."
    )
    try:
        screen.typed("epochal up")
        with control_plane(folder, {"EPOCHAL_WARM_DRIVERS": warm_drivers()}) as plane, plane.client() as client:
            screen.good(f"the control plane answers at {plane.url}")
            Demo(plane, client, folder, feeder).run()
    except EpochalError as problem:
        screen.console.print(f"\n[bold red]The demo failed:[/] {problem}")
        screen.console.print(f"Everything it wrote, with the logs, is in {folder}.")
        return 1
    except KeyboardInterrupt:
        screen.console.print("\nInterrupted.")
        return 130
    finally:
        feeder.stop()
    shutil.rmtree(folder, ignore_errors=True)
    screen.chapter(f"Everything equal, everything stopped, in {time.monotonic() - started:.0f} s")
    screen.console.print("[dim]Next: docs/start/quickstart.md, docs/README.md, examples/flights/pipeline.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
