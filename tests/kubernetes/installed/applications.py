"""Applications of the installed release, and their invariants under faults of pods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset

from epochal.client import Client
from epochal.errors import NotFound
from epochal.wire.projects import full_name
from tests.kubernetes.installed.installation import SCRIPTED_IMAGE, SHARED, Installation, head
from tests.service.availability.judging import TRACE, Catalog, Journal

PIPELINES = Path(__file__).with_name("pipelines")
MASTER = "k8s://https://kubernetes.default.svc"
EXECUTORS = {
    "spark.executor.instances": "1",
    "spark.executor.memory": "512m",
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.driver.memory": "512m",
    "spark.kubernetes.driver.request.cores": "100m",
}


@dataclass(frozen=True)
class Application:
    """``folder``: its folder on this machine. Pods have it at ``pod_path``."""

    installed: Installation
    client: Client
    name: str

    @property
    def _relative_path(self) -> Path:
        return Path(self.installed.catalog.rpartition("/")[2]) / self.name

    @property
    def folder(self) -> Path:
        return self.installed.shared / self._relative_path

    @property
    def pod_path(self) -> str:
        return str(SHARED / self._relative_path)

    @property
    def exists(self) -> bool:
        try:
            self.client.applications.get(self.name)
        except NotFound:
            return False
        return True

    @property
    def epoch(self) -> int:
        return head(self.client, self.name)

    @property
    def attempt(self) -> int:
        return self.client.application(self.name).executions.list(limit=1)[0].attempts[-1].number

    def has_committed(self, attempt: int) -> bool:
        """Check whether a recent epoch was committed by this attempt."""
        epochs = self.client.application(self.name).epochs.list(limit=20, state="committed")
        return any(epoch.attempt == attempt for epoch in epochs)

    @property
    def driver(self) -> Any:
        """The pod of the latest attempt."""
        process = self.client.application(self.name).executions.list(limit=1)[0].attempts[-1].process
        assert process is not None
        return self.installed.driver(process)

    @property
    def executors(self) -> dict[str, Any]:
        return self.installed.executors(self.driver)

    def wait_for_epoch(self, epoch: int) -> None:
        self.installed.eventually(lambda: self.epoch >= epoch)

    def wait_for_more_epochs(self, epochs: int = 3) -> None:
        """Wait until ``epochs`` further epochs have been committed."""
        self.wait_for_epoch(self.epoch + epochs)

    def end(self) -> None:
        """Stop and delete the application, and wait until its pods are deleted."""
        driver, pods = self.driver, {self.driver["metadata"]["name"], *self.executors}
        self.client.operations.wait(self.client.applications.stop(self.name), timeout_seconds=240)
        self.client.applications.delete(self.name)
        self.installed.eventually(lambda: not pods & self.installed.pods(driver["metadata"]["namespace"]).keys())

    def _create(self, pipeline: str, parameters: dict[str, Any], configuration: dict[str, Any]) -> None:
        artifact = self.client.artifacts.upload(PIPELINES / pipeline)
        self.client.applications.create(self.name, artifact.sha256, parameters=parameters, configuration=configuration)


class Counted(Application):
    """An application with Spark: a driver and an executor. Writes each row to the sink and counts it in state."""

    def submit(self) -> None:
        configuration = {"master": MASTER, "spark": EXECUTORS, "parallelism": 1}
        self._create("counted.py", {"output": f"{self.pod_path}/out"}, configuration)

    def problems(self) -> Iterator[str]:
        """Yield rows that are missing or duplicate up to the latest committed epoch, and counts of a query node that
        differ from the rows."""
        epoch = self.epoch
        out = pyarrow.dataset.dataset(self.folder / "out", format="parquet", partitioning="hive")
        rows = out.to_table(filter=pyarrow.dataset.field("epoch") <= epoch)
        numbers = sorted(rows["number"].to_pylist())
        if numbers != list(range(len(numbers))):
            missing = sorted(set(range(len(numbers))) - set(numbers))
            yield f"{len(numbers)} rows: {missing[:10]} are missing, {len(numbers) - len(set(numbers))} are duplicate"
        token, project = self.installed.token, self.client.project
        with Client(self.installed.lookups.url, token, project=project) as lookups:
            counts = lookups.application(self.name).state("counts")
            for digit in range(10):
                found = (counts.get(digit, epoch=epoch).value or {}).get("rows")
                expected = sum(1 for number in numbers if number % 10 == digit)
                if found != expected:
                    yield f"digit {digit}: {found} rows counted, {expected} written"


class Scripted(Application):
    """An application without Spark, in its own image. Its driver writes a journal."""

    def submit(self, pause_seconds: float = 0.5) -> None:
        (self.folder / "sink").mkdir(parents=True)
        spark = {"spark.kubernetes.container.image": SCRIPTED_IMAGE, "spark.kubernetes.driver.request.cores": "50m"}
        self._create(
            "totals.py", {"folder": self.pod_path, "pause": pause_seconds}, {"master": "local[1]", "spark": spark}
        )

    @property
    def journal(self) -> Journal:
        return Journal.read(self.folder)

    def problems(self, killed: int = 0) -> list[str]:
        """Return the problems of a stopped application. ``killed``: the number of its killed drivers."""
        with self.installed.connect() as connection:
            found = Catalog(connection).application(full_name(self.client.project, self.name), self.folder)
        return [f"{self.name}: {problem}" for problem in found.problems(self.journal, killed)]


def trace(installed: Installation) -> None:
    """Record all decisions from now on, unless this catalog records them already."""
    with installed.connect() as connection:
        (is_traced,) = connection.execute("SELECT to_regclass('availability_trace') IS NOT NULL").fetchone() or (False,)
        if not is_traced:
            connection.execute(TRACE)
