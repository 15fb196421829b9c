"""Event time under faults: a driver dies or a task fails at every step.

Windows, late rows, timers and answers of a standing query are output once, and watermarks equal those without faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from epochal import KeyedProcess, Pipeline, ValueState, tumbling
from epochal.connectors import console, generator
from epochal.contracts.catalog import Directive, QueryCommand
from epochal.contracts.conditions import BEGINNING, END
from epochal.engine import points
from epochal.engine.coordinator import Coordinator
from epochal.errors import EpochAborted, Fenced
from epochal.faults import FaultPoint
from epochal.pipeline.definitions import SinkDefinition
from epochal.snapshots import layout
from epochal.standing_queries.binding import bound
from epochal.tasks import steps as task_points
from tests.kit.lives import TIMESTAMP, Life, Row, Step, at, failing_at, struct

ROWS = pa.schema([("key", pa.string()), ("at", TIMESTAMP), ("n", pa.int64())])
COLUMNS = {"key": "string(id)", "at": "timestamp_seconds(id)", "n": "id"}
EPOCHS = [[5, 9, 12], [14, 3, 21], [30, 19], [38, 2, 44], [60]]
"""The times of the rows in seconds. With a delay of 5 s, 3 and 19 are not late; 2 is."""
FAULTY_EPOCH = 3
"""The epoch with the fault: it has the late row, and a due window and timers; the standing query starts with it."""
QUERY = "SELECT key, count(*) AS rows, remember(rows) AS before GROUP BY key WINDOW '10 seconds'"
UNREACHED_POINTS = {
    "E1.assembled",
    "E1.drained",
    "E1.taken-over",
    "E1.switched",
    "E1.decided",
    "E1.reverted",
    "E5.given-up",
    "E7.base-written",
    "E7.bases-written",
}
"""Points of reconfiguration, administration and compaction, which this application does not reach."""


class Alarms(KeyedProcess):
    """Outputs each row's number 10 s later in event time, and even numbers also 1 s later in processing time."""

    calls = ValueState("rows bigint")
    output = struct(key="string", at="timestamp", what="string")

    def process(self, key: Any, rows: Sequence[Any], ctx: Any) -> None:
        for row in rows:
            self.calls.set((self.calls.get() or 0) + 1)
            ctx.timer(row.at + timedelta(seconds=10), name=str(row.n))
            if row.n % 2 == 0:
                ctx.processing_timer(ctx.epoch_time + timedelta(seconds=1), name=str(row.n))

    def on_timer(self, key: Any, at: datetime, ctx: Any) -> Any:
        yield key.key, at, f"{ctx.time_domain} {ctx.timer_name}"


def pipeline(sink: Callable[[str], SinkDefinition] = lambda name: console.sink()) -> Pipeline:
    """``sink``: returns the sink of a name."""
    found = Pipeline("deaths")
    rows = found.read("rows", generator.source(COLUMNS)).with_watermark("at", "5 seconds", name="time")
    windows = rows.key_by("key").window(tumbling("10 seconds"), "3 seconds").aggregate("windows", rows="count(*)")
    longer = windows.key_by("key").window(tumbling("20 seconds")).aggregate("longer", rows="sum(rows)")
    alarms = rows.key_by("key").process(Alarms)
    answers = rows.standing_queries("queries", windows=("1 second", "1 minute"))
    written = {"windows": windows, "late": windows.late, "longer": longer, "alarms": alarms, "answers": answers}
    for name, stream in written.items():
        stream.write(name, sink(name))
    return found


def add_query(coordinator: Coordinator) -> None:
    """Deliver the command that adds the standing query, as a control plane does until it has been carried out."""
    query = bound(QUERY, {"key": "string", "at": "timestamp", "n": "bigint"}).json
    command = QueryCommand(number=1, kind="add", query=1, by="ada", operator="queries", text=QUERY, bound=query)
    coordinator.queries.take(Directive(id="one", kind="query", arguments=command.model_dump()))


def run(point: str, error: Exception) -> tuple[Life, bool]:
    """Run all epochs, one of them with the fault at ``point``. Returns also whether the fault fired."""
    life = Life(pipeline(), {"rows": ROWS})
    for number, seconds in enumerate(EPOCHS):
        rows: list[Row] = [{"key": "ab"[second % 2], "at": at(second), "n": second} for second in seconds]
        if number != FAULTY_EPOCH:
            life.epoch(Step(clock=number), rows=rows)
            continue
        life.rows["rows"].give(rows)
        with failing_at(point, error) as fired:
            try:
                life.restart()
                add_query(life.coordinator)
                life.epoch(Step(clock=number))
                life.finish()
            except (Fenced, EpochAborted):
                pass
        life.restart(3)
        add_query(life.coordinator)
    life.settle()
    life.clock = at(100)
    life.settle()
    life.finish()
    return life, bool(fired)


def outcome(life: Life) -> dict[str, Any]:
    """The final output of all sinks, without the times of epochs."""
    alarms = Counter((row["key"], row["what"]) for row in life.all_of("alarms"))
    windows = {name: Counter(map(repr, life.all_of(name))) for name in ("windows", "late", "longer", "answers")}
    return {"alarms": alarms, **windows, "late rows": life.late}


def point_names(module: Any) -> list[str]:
    return sorted(point.name for point in vars(module).values() if isinstance(point, FaultPoint))


DRIVER = [name for name in point_names(points) if name not in UNREACHED_POINTS]
TASKS = [*point_names(task_points), "T3.before-delta", "T3.delta-written"]


QUERY_POINT = "E1.queries-written"
"""The point that is reached only when a query is added; test_end_of_input.py adds none."""


def alternate_points(first: int) -> list[Any]:
    """All other points: every second one, from number ``first`` on, as a usual test, the others as ``long``.

    This file and test_end_of_input.py use different halves in usual runs.
    """
    points = [point for point in (*DRIVER, *TASKS) if point != QUERY_POINT]
    return [
        pytest.param(point, id=point, marks=() if number % 2 == first else pytest.mark.long)
        for number, point in enumerate(points)
    ]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    with run("nowhere", Fenced())[0] as life:
        found = outcome(life)
        assert found["late rows"] == {"windows": 1} and sum(found["late"].values()) == 1
        assert sum(found["alarms"].values()) > 12 and found["longer"]
        assert sum(found["answers"].values()) == 1
        return found


@pytest.mark.parametrize("point", [QUERY_POINT, *alternate_points(0)])
@pytest.mark.alternating(2)
def test_windows_timers_and_queries_output_once_despite_faults(point: str, undisturbed: dict[str, Any]) -> None:
    error = Fenced("the driver has died") if point in DRIVER else OSError("the disk has failed")
    life, has_fired = run(point, error)
    with life:
        assert has_fired or point.startswith(("abort", "R")), "the fault did not fire"
        assert outcome(life) == undisturbed
        named = [manifest.queries for manifest in life.manifests if manifest.queries is not None]
        referenced = {file.path for file in named if file.within is None}
        assert set(life.store.list(layout.queries(life.manifests[-1].branch))) == referenced
        before = None
        for manifest in life.manifests:
            for name, place in manifest.clock.places.items():
                assert place.late == (BEGINNING if before is None else before.places[name].fire) <= place.fire < END
            before = manifest.clock
