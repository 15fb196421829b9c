"""``make bench-kubernetes``: time to the first commit of a driver in a pod, with an executor in another pod.

python -m benchmarks.kubernetes              the release of the page "In production"; writes RESULTS.md
python -m benchmarks.kubernetes --turns 1    printed only
python -m benchmarks.kubernetes --spares     also with a spare pod and its warm executor

On the API server and the small kubelet of the tests (tests/kit/README.md): these numbers do not include
the cost of images, a pod network and other machines.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import httpx
from helm_python import HelmError
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from benchmarks.comparison.checkouts import commit_name
from benchmarks.machine import describe
from benchmarks.report import write_section
from benchmarks.result import Result, at_most
from benchmarks.running import wait_for
from epochal.client import Client
from epochal.errors import EnvironmentProblem, EpochalError
from tests.kubernetes.installed.applications import Counted
from tests.kubernetes.installed.commands import PAGE, Reader
from tests.kubernetes.installed.installation import Installation, installation
from tests.service.end_to_end.blocks import blocks_of

TURNS = 3
LOOK_SECONDS, PATIENCE_SECONDS = 0.2, 600.0
SUBMITTED, WITH_SPARE = "submit to first commit", "submit to first commit, with a spare pod"
KILLED = "driver's pod killed, to next commit"
REACH = {SUBMITTED: 60.0, KILLED: 30.0, WITH_SPARE: 10.0}
"""Maximum seconds."""
SPARE_VALUES = {"kubernetes": {"driver": {"spares": 1}, "builder": {"spares": 1}}}
INTRODUCTION = """## On Kubernetes

Written by `make bench-kubernetes`: the release of the page "In production", three control planes and two query
nodes, on the API server and the small kubelet of the tests
([tests/kit/README.md](../tests/kit/README.md#kubernetes)). A driver has one
executor, in another pod. The cost of images, a network and further machines is not included: all pods are processes
of this machine."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kubernetes", description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=TURNS, help=f"number of turns; {TURNS} are written to RESULTS.md")
    parser.add_argument("--spares", action="store_true", help="also measure with a spare pod")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error("--turns must be 1 or more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    machine, commit = describe(), commit_name()
    try:
        results, is_whole = measured(options.turns, options.spares)
    except EnvironmentProblem as problem:
        console.print(f"Not measured: {problem.message}", style="red", markup=False)
        return 1
    console.print(_table(results))
    if is_whole and options.turns >= TURNS:
        facts = "\n".join(f"| {name} | {value} |" for name, value in machine.items())
        written = f"Measured on {datetime.now(UTC):%Y-%m-%d}, of commit {commit}.\n\n| | |\n|---|---|\n{facts}"
        write_section("bench-kubernetes", f"{INTRODUCTION}\n\n{written}\n\n{_markdown(results)}")
    return 0 if is_whole else 1


def measured(turns: int, spares: bool) -> tuple[list[Result], bool]:
    """Results, and whether they are complete. Raises ``EnvironmentProblem`` if the cluster cannot be started."""
    seconds: dict[str, list[float]] = {}
    is_whole = True
    with tempfile.TemporaryDirectory(prefix="epochal-bench-kubernetes-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        with installation(folder) as installed:
            (folder / "reader").mkdir()
            Reader(installed, folder / "reader").follow(blocks_of(PAGE, "sh")[0])
            installed.wait_until_ready()
            with installed.client() as client:
                try:
                    for what, took in _measured(installed, client, turns, spares):
                        seconds.setdefault(what, []).append(took)
                        console.print(f"[dim]{what}: {took:.1f} s[/]")
                except (EpochalError, HelmError, AssertionError) as error:
                    is_whole = False  # the results so far are kept
                    console.print(f"Measured in part: {error}", style="red", markup=False)
    return [
        at_most(what, median(took), REACH[what], "s", f"median of {len(took)}, {min(took):.1f} to {max(took):.1f} s", 1)
        for what, took in seconds.items()
    ], is_whole


def _measured(installed: Installation, client: Client, turns: int, spares: bool) -> Iterator[tuple[str, float]]:
    for turn in range(turns):
        application = Counted(installed, client, f"cold-{turn}")
        yield SUBMITTED, _submitted(application)
        application.wait_for_more_epochs()
        yield KILLED, _killed(application)
        _stop(application)
    if not spares:
        return
    installed.upgrade(**SPARE_VALUES)
    installed.wait_until_ready()
    # A spare pod is prepared for the requirements of the last application, so that a first one is needed.
    first = Counted(installed, client, "first")
    _submitted(first)
    _stop(first)
    for turn in range(turns):
        wait_for(lambda: _has_spare(installed), "a spare pod", 0.5, PATIENCE_SECONDS)
        application = Counted(installed, client, f"warm-{turn}")
        yield WITH_SPARE, _submitted(application)
        _stop(application)


def _submitted(application: Counted) -> float:
    began = time.monotonic()
    application.submit()
    wait_for(lambda: application.epoch > 0, "the first epoch", LOOK_SECONDS, PATIENCE_SECONDS)
    return time.monotonic() - began


def _killed(application: Counted) -> float:
    attempt = application.attempt
    began = time.monotonic()
    application.installed.kill(application.driver)
    wait_for(
        lambda: application.has_committed(attempt + 1), "an epoch of the next attempt", LOOK_SECONDS, PATIENCE_SECONDS
    )
    return time.monotonic() - began


def _stop(application: Counted) -> None:
    client = application.client
    client.operations.wait(client.applications.stop(application.name), timeout_seconds=120)


def _has_spare(installed: Installation) -> bool:
    """Return whether the leader has a ready spare driver, and every control plane a ready builder."""
    headers = {"Authorization": f"Bearer {installed.token}"}
    drivers, builders = 0.0, []
    for address, port in installed.public.ready:
        text = httpx.get(f"http://{address}:{port}/metrics", headers=headers, timeout=30, trust_env=False).text
        ready = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("state") == "ready"
        }
        drivers += ready.get("epochal_warm_drivers", 0.0)
        builders.append(ready.get("epochal_warm_builders", 0.0))
    return drivers >= 1 and all(builders)


def _table(results: Sequence[Result]) -> Table:
    table = Table("measure", "target", "measured", "")
    for each in results:
        table.add_row(each.measure, each.reach, f"{each.measured} ({each.how})", each.verdict)
    return table


def _markdown(results: Sequence[Result]) -> str:
    head = "| measure | target | measured | | how |\n|---|---|---|---|---|"
    rows = (f"| {each.measure} | {each.reach} | {each.measured} | {each.verdict} | {each.how} |" for each in results)
    return "\n".join([head, *rows])


if __name__ == "__main__":
    sys.exit(main())
