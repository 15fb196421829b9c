"""The commands of the page about clusters, on three machines and S3: an executor is killed, a machine is added."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pytest

from epochal.client import Client
from epochal.testing.servers.control_plane import ControlPlane
from epochal.testing.servers.s3_proxy import S3Proxy
from epochal.testing.servers.spark_standalone import StandaloneCluster, standalone_cluster
from examples.flights.data import flights_by_day, write_airports, write_day
from tests.kit.servers import or_skipped
from tests.service.end_to_end.blocks import blocks_of

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.server, pytest.mark.timeout(1500)]

PAGE = "docs/how-to/cluster.md"
TIMEOUT_SECONDS = 240
DAYS = 90


@dataclass
class Story:
    """The page's commands in order, and the input that arrives between them."""

    plane: ControlPlane
    client: Client
    proxy: S3Proxy
    cluster: StandaloneCluster
    folder: Path
    days: Iterator[int] = field(default_factory=lambda: iter(range(DAYS)))
    costs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.flights = flights_by_day()
        self.blocks = iter(blocks_of(PAGE, "console"))
        self.expected: Counter[tuple[str, str]] = Counter()

    def feed(self, days: int) -> None:
        for number in islice(self.days, days):
            day, rows = self.flights[number]
            write_day(self.folder / "flights", day, rows)
            arrived = rows[rows["delay"].notna()]
            self.expected += Counter(zip(arrived["origin"], arrived["destination"], strict=True))

    def run_block(self) -> list[str]:
        """Run the commands of the next block; returns what they print."""
        printed = []
        for command in next(self.blocks).commands:
            line = command.replace("spark://master:7077", self.cluster.master_url).replace("/shared", str(self.folder))
            done = self.plane.run(*shlex.split(line)[1:], columns=160)
            assert done.returncode == 0, f"{line}\n{done.stdout}"
            printed.append(done.stdout)
        return printed

    def counted(self, name: str = "flights") -> Counter[tuple[str, str]]:
        found = self.client.application(name).state("delays").scan_all()
        return Counter({(row.key["origin"], row.key["destination"]): row.value["flights"] for row in found})

    def wait(self, name: str = "flights") -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.counted(name) != self.expected:
            assert time.monotonic() < deadline, self.plane.run("show", name).stdout
            time.sleep(0.3)

    def machines(self, operator: str = "delays") -> tuple[str, ...]:
        return self.client.application("flights").placement().machines[operator]

    def wait_for_machines(self, number: int) -> None:
        """Feed a day at a time until the subtasks run evenly on this number of machines."""
        for _ in range(12):
            self.feed(1)
            self.wait()
            time.sleep(2.5)  # until the next report
            loads = Counter(self.machines()).values()
            if len(loads) == number and max(loads) - min(loads) <= 1:
                return
        raise AssertionError(self.plane.run("show", "flights", "--placement").stdout)

    @contextmanager
    def cost(self, what: str) -> Iterator[None]:
        """Count requests, bytes and seconds of the block."""
        mark, started = self.proxy.mark(), time.monotonic()
        yield
        seconds, requests = time.monotonic() - started, self.proxy.requests(mark)
        kinds = Counter(request.method for request in requests)
        counts = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        sizes = sum(each.bytes_in for each in requests), sum(each.bytes_out for each in requests)
        self.costs.append(f"| {what} | {counts} | {sizes[0]:,} | {sizes[1]:,} | {seconds:.1f} |")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    yield from or_skipped(standalone_cluster(3, 1, private=tmp_path / "plane" / "home" / "work"))


def test_the_page_runs(
    cluster: StandaloneCluster, s3_installation: ControlPlane, s3_proxy: S3Proxy, tmp_path: Path
) -> None:
    with s3_installation.client() as client:
        story = Story(s3_installation, client, s3_proxy, cluster, tmp_path / "shared")
        write_airports(tmp_path / "shared" / "airports.parquet")
        tell(story)
    print("\n".join(story.costs))


def tell(story: Story) -> None:
    story.feed(1)
    with story.cost("submit, until the first commit"):
        story.run_block()
    story.wait_for_machines(3)
    before = story.machines()
    with story.cost("5 epochs, of a day each"):
        story.feed(5)
        story.wait()
    assert story.machines() == before

    with story.cost("an executor killed, until the next commit"):
        os.kill(story.cluster.executors()[0], signal.SIGKILL)
        story.feed(1)
        story.wait()
    story.wait_for_machines(3)
    (shown,) = story.run_block()
    assert all(machine in shown for machine in before)

    story.cluster.add_worker()
    with story.cost("a machine added, until subtasks run there"):
        story.wait_for_machines(4)
    (shown,) = story.run_block()
    assert len({line.split()[0] for line in shown.splitlines() if line.split()[:1] and line.split()[0] in shown}) >= 4

    with story.cost("one operator rescaled, until the next commit"):
        _, shown = story.run_block()
        story.feed(1)
        story.wait()
    time.sleep(2.5)
    assert (len(story.machines()), len(story.machines("streaks"))) == (6, 12)

    with story.cost("savepoint, fork, rollback, until the next commit"):
        story.run_block()
        story.feed(1)
        story.wait()
