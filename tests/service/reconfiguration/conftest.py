"""One control plane for the module, and applications whose state is compared with results of plain Python."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochal.client import Client, Operation
from epochal.client.models import Preflight, Trial
from epochal.errors import NotFound, NotYetCommitted
from epochal.testing.servers.control_plane import ControlPlane, control_plane

PIPELINE = Path(__file__).with_name("application.py").read_text()
CONFIGURATION = {"epoch_interval_seconds": 0.1, "max_parallelism": 8, "parallelism": 2}
SENSORS = 23

WITH_COUNT = (
    PIPELINE.replace('ValueState("longest int")', 'ValueState("longest bigint, seen int default 0")')
    .replace("[before])", "[before[0]])")
    .replace("self.state.set(longest)", "self.state.set(longest, (before[1] if before else 0) + len(rows))")
)
RAISING = PIPELINE.replace(
    "by_sensor = events.",
    """by_sensor = events.transform(
        lambda frame: frame.unionAll(
            frame.sparkSession.range(1).selectExpr(
                "id", "'s0'", "CAST(raise_error('this version is wrong') AS INT)"
            )
        ),
        per_epoch=True,
    ).""",
)
BY_SENSOR = ("totals", "longest")
"""Operators whose input ``RAISING`` changes."""
WITHOUT_LONGEST = PIPELINE[: PIPELINE.index("    longest = by_sensor")] + "    return pipeline\n"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with control_plane(tmp_path_factory.mktemp("reconfiguration")) as plane:
        yield plane


class Sensors:
    """A running application, its input so far, and its expected state."""

    def __init__(self, client: Client, name: str, folder: Path, configuration: dict[str, Any]) -> None:
        self.client, self.name, self.folder = client, name, folder
        self.input = folder / "input"
        self.input.mkdir(parents=True)
        self.rows: list[dict[str, Any]] = []
        self._files = 0
        parameters = {"input": str(self.input), "output": str(folder / "output")}
        client.applications.create(
            name, self.artifact(PIPELINE), parameters=parameters, configuration={**CONFIGURATION, **configuration}
        )
        self.handle = client.application(name)
        client.applications.wait(name, timeout_seconds=300)

    def artifact(self, text: str) -> str:
        file = self.folder / "pipeline.py"
        file.write_text(text)
        return self.client.artifacts.upload(file).sha256

    def feed(self, count: int = 200) -> int:
        """Add a complete file, wait until it is committed, and return the epoch at the head."""
        first = len(self.rows)
        rows = [
            {"event": event, "sensor": f"s{event % SENSORS}", "value": event * 7 % 101}
            for event in range(first, first + count)
        ]
        self.rows += rows
        self._files += 1
        hidden = self.input / f".{self._files}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.input / f"{self._files:05}.json")
        self.until(lambda: self.events_in_state() == len(self.rows))
        return self.head()

    def events_in_state(self) -> int:
        return sum(row["events"] for row in self.state("totals").values())

    def state(self, table: str) -> dict[str, dict[str, Any]]:
        """Rows by sensor, all of one epoch."""
        keys = [{"sensor": f"s{number}"} for number in range(SENSORS)]
        try:
            found = self.handle.state(table).lookup(keys)
        except (NotFound, NotYetCommitted):  # before the first epoch
            return {}
        pairs = zip(keys, found.values, strict=True)
        return {key["sensor"]: value for key, value in pairs if value is not None}

    def head(self) -> int:
        head = self.client.applications.get(self.name).head
        return 0 if head is None else head.epoch

    def done(self, operation: Operation | str) -> Operation:
        given = self.client.operations.get(operation) if isinstance(operation, str) else operation
        return self.client.operations.wait(given, timeout_seconds=300)

    def trial(self, **proposed: Any) -> Trial:
        """A trial of two epochs."""
        tried = self.done(self.handle.versions.trial(2, **proposed))
        report = Preflight.model_validate(tried.result)
        assert report.ok and report.trial is not None
        return report.trial

    def until(self, holds: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while True:
            began = time.monotonic()
            if holds():
                return
            now = time.monotonic()
            assert now < deadline, "".join(self.handle.logs(tail=60))
            time.sleep(max(0.1, 2 * (now - began)))  # polling must not slow down the application

    def check(self) -> None:
        """Compare state and output with the results of plain Python."""
        totals: dict[str, list[int]] = defaultdict(list)
        for row in self.rows:
            totals[row["sensor"]].append(row["value"])
        found = self.state("totals")
        assert {sensor: (row["events"], row["total"]) for sensor, row in found.items()} == {
            sensor: (len(values), sum(values)) for sensor, values in totals.items()
        }
        longest = {sensor: row["longest"] for sensor, row in self.state("longest.state").items()}
        assert longest == {sensor: max(values) for sensor, values in totals.items()}
        kept = [row.value["event"] for row in self.handle.state("kept.events").scan_all()]
        assert sorted(kept) == [row["event"] for row in self.rows if row["event"] % 10 == 0]
        steered = {row.key["digit"]: row.value["event"] for row in self.handle.state("steered.last").scan_all()}
        assert steered == {row["event"] % 7: row["event"] for row in self.rows if row["event"] % 5 == 0}
        counts = {sensor: row["count"] for sensor, row in self.state("steered.rows").items()}
        assert counts == {sensor: len(values) for sensor, values in totals.items()}
        shown = defaultdict(int)
        for file in sorted((self.folder / "output" / "totals").glob("epoch=*/*.json")):
            for line in file.read_text().splitlines():
                row = json.loads(line)
                shown[row["sensor"]] = max(shown[row["sensor"]], row["events"])
        assert dict(shown) == {sensor: len(values) for sensor, values in totals.items()}

    def attempts(self) -> int:
        execution = self.client.applications.get(self.name).execution
        assert execution is not None
        return len(self.handle.executions.get(execution).attempts)

    def changes(self, epoch: int) -> dict[str, dict[str, Any]]:
        return {change.kind: change.detail for change in self.handle.epochs.get(epoch).changes}


@pytest.fixture
def configuration() -> dict[str, Any]:
    return {}


@pytest.fixture
def sensors(
    plane: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest, configuration: dict[str, Any]
) -> Iterator[Sensors]:
    name = request.node.originalname.replace("_", "-")[:40].strip("-")
    with plane.client() as client:
        application = Sensors(client, name, tmp_path, configuration)
        yield application
        if client.applications.get(name).state in ("starting", "running"):
            client.operations.wait(client.applications.stop(name), timeout_seconds=60)
