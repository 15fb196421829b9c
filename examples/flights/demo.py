"""The demo: a streaming application processes one year of flights, through a kill, a fork and look-ups.

``make demo``, or ``python -m examples.flights.demo``. Takes about two minutes and leaves nothing running; with
``make demo KEEP=1``, or ``--keep``, both applications run until Ctrl-C. Exits 0 only when all results of the streaming
application equal those of a plain Spark batch over the same files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
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
MAX_FILES = 100
"""Maximum number of files in an epoch, so that the rest of the year takes few epochs."""
LINK_SECONDS = 3600
"""Time in which the link to the console can be used: longer than the demo takes."""
CONFIGURATION = {"epoch_interval_seconds": 1.0, "restart": {"backoff_seconds": 0.5}}


class Demo:
    """The chapters in order. Each relies on the state that earlier chapters left."""

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
        self.show_link("/console/applications/flights")
        return application

    def show_link(self, path: str) -> None:
        screen.link(self.client.sessions.create_link(path, seconds=LINK_SECONDS).url)

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
        screen.chapter("3  Look state up by key, now and then", "The last committed epoch or any older one.")
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
        screen.chapter("4  Kill the driver", "SIGKILL while February is streaming. No row is lost or duplicated.")
        self.feeder.start(FEBRUARY, every=0.3)
        before = self.feeder.days
        self.log.until(lambda: self.feeder.days >= before + 8, "February is streaming")
        execution = self.current_execution(application)
        process = process_id(execution.attempts[-1].process or "")
        screen.typed(f"kill -9 {process}")
        os.kill(process, signal.SIGKILL)
        killed, attempt, head = time.monotonic(), execution.attempt, self.head(application)
        self.log.until(
            lambda: self.head(application) > head, "the control plane detects it and starts the next attempt"
        )
        took, next_attempt = time.monotonic() - killed, self.current_execution(application).attempt
        if next_attempt <= attempt:
            raise EpochalError("The driver was killed, but no new attempt was started.")
        screen.good(
            f"attempt {next_attempt} continues after epoch {head}: {took:.1f} s from the kill to the next commit"
        )
        self.log.until(lambda: self.caught_up(application), "the rest of February")

    def fork(self, application: ApplicationHandle) -> ApplicationHandle:
        screen.chapter(
            "5  Savepoint and fork",
            "What if only an hour counted as late? A second application continues from this state, without a copy.",
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
        screen.good("[bold]strict[/] runs beside it, with its own branch and tables")
        return strict

    def rest_of_the_year(self, *applications: ApplicationHandle) -> None:
        screen.chapter(
            "6  The rest of the year", "Both applications process ten months of flights as fast as possible."
        )
        self.log.watch(applications[1])
        started = time.monotonic()
        self.feeder.feed(DECEMBER)
        self.log.until(lambda: all(map(self.caught_up, applications)), "March to December")
        screen.good(f"{self.feeder.arrived:,} flights in both, {time.monotonic() - started:.0f} s")

    def show_lineage(self) -> None:
        screen.chapter("7  Lineage")
        for command in (("ps",), ("lineage", "flights", "--limit", "60")):
            screen.typed(" ".join(("epochal", *command)))
            done = self.plane.run(*command, colour=True, columns=screen.console.width)
            screen.output(done.stdout)
            if done.returncode:
                raise EpochalError(f"epochal {' '.join(command)} failed.")

    def stop(self, *applications: ApplicationHandle) -> None:
        screen.chapter("8  Stop", "Each stops at an epoch boundary. Committed state can still be looked up.")
        for application in applications:
            screen.typed(f"epochal stop {application.name}")
        operations = [self.client.applications.stop(application.name) for application in applications]
        with screen.console.status("[dim]stopping"):
            for operation in operations:
                self.client.operations.wait(operation, timeout_seconds=60)
        screen.good("both are stopped; look-ups still work")
        route = applications[0].state("delays").get("JFK", "LAX")
        screen.record(f"epoch {route.epoch:>3}", shown(route.value))

    def compare(self, flights: ApplicationHandle, strict: ApplicationHandle) -> None:
        screen.chapter(
            "9  Comparison", "One batch of plain Spark over the same files: every key and every row is compared."
        )
        with screen.console.status("[dim]Spark computes the year in one batch"):
            comparisons = self.comparisons(flights, strict)
        for comparison in comparisons:
            if comparison.equal:
                screen.good(f"{comparison.label}: [bold]{comparison.rows:,}[/] rows, equal")
            else:
                screen.console.print(f"[red]✗[/] {comparison.label}: {len(comparison.missing)} rows missing, ")
                screen.console.print(f"  first {comparison.missing[:3]}; {len(comparison.surplus)} too many, ")
                screen.console.print(f"  first {comparison.surplus[:3]}")
        if not all(comparison.equal for comparison in comparisons):
            raise EpochalError("The streaming application does not equal the batch.")

    def keep(self) -> None:
        """Start both applications again, and wait until Ctrl-C."""
        screen.chapter(
            "10  Look around", "Both applications run again: look a key up, compare two epochs, fork, roll back."
        )
        for name in ("flights", "strict"):
            screen.typed(f"epochal start {name}")
            self.client.applications.start(name)
        with screen.console.status("[dim]Spark starts"):
            for name in ("flights", "strict"):
                self.wait_until_running(self.client.application(name))
        self.show_link("/console/applications/flights/lineage")
        with suppress(KeyboardInterrupt):
            screen.console.print("[dim]Ctrl-C stops everything and deletes its files.")
            threading.Event().wait()

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
            "max_files": MAX_FILES,
        }

    def output(self, name: str) -> str:
        return str(self.folder / "output" / name)

    def caught_up(self, application: ApplicationHandle) -> bool:
        """Check whether the committed state includes all flights fed so far."""
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
    """Return the displayed columns of a route's state, without the partial columns of the average."""
    return {name: value[name] for name in proof.DELAYS} if value else {}


def warm_drivers() -> str:
    """Disable spare drivers on two cores, where preparing one would compete with the two applications."""
    return "0" if (os.cpu_count() or 1) <= 2 else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights.demo")
    parser.add_argument("--keep", action="store_true", help="Leave both applications running until Ctrl-C.")
    keep = parser.parse_args(arguments).keep
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="epochal-demo-"))
    feeder = Feeder(folder / "flights")
    write_airports(folder / "airports.parquet")
    screen.chapter("Epochal", "The flights that left New York in 2013: delays per route, late streaks per aircraft.")
    screen.console.print(
        "This takes about two minutes on two cores, longer on a busy machine. Spark is started several times; "
        "two applications and the batch that checks them process all 336,776 flights."
    )
    try:
        screen.typed("epochal up")
        with control_plane(folder, {"EPOCHAL_WARM_DRIVERS": warm_drivers()}) as plane, plane.client() as client:
            screen.good(f"the control plane answers at {plane.url}")
            demo = Demo(plane, client, folder, feeder)
            demo.run()
            took = time.monotonic() - started
            if keep:
                demo.keep()
                screen.console.print("\nStopping both applications and the control plane.")
    except EpochalError as problem:
        screen.console.print(f"\n[bold red]The demo failed:[/] {problem}")
        screen.console.print(f"Its output and logs are in {folder}.")
        return 1
    except KeyboardInterrupt:
        screen.console.print("\nInterrupted.")
        return 130
    finally:
        feeder.stop()
    shutil.rmtree(folder, ignore_errors=True)
    screen.chapter(f"All results equal, all processes stopped, in {took:.0f} s")
    screen.console.print("[dim]Next: docs/start/quickstart.md, docs/README.md, examples/flights/pipeline.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
