"""An application with event time whose driver dies, or whose task fails, at every step: windows, late rows, timers and
the answers of a standing query come out once each, and the watermarks of manifests go on as if nothing had happened."""

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
"""The times of the rows, in seconds. The delay is 5 s: 3 and 19 are not late for anybody, 2 is."""
DISTURBED = 3
"""The epoch in which something happens: with the late row, with a window and timers that are due, and from which on
there is a standing query."""
ASKED = "SELECT key, count(*) AS rows, remember(rows) AS before GROUP BY key WINDOW '10 seconds'"
NOT_MET = {
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
"""Of reconfigurations and of administrators; of compaction, which reads no watermark."""


class Alarms(KeyedProcess):
    """Says 10 s after each row of what number it was: in event time, and for even ones in processing time as well."""

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
    """``sink``: what each is written to, by its name."""
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


def asks(coordinator: Coordinator) -> None:
    """The command that adds the standing query, as a driver is given it until it has been carried out."""
    query = bound(ASKED, {"key": "string", "at": "timestamp", "n": "bigint"}).json
    command = QueryCommand(number=1, kind="add", query=1, by="ada", operator="queries", text=ASKED, bound=query)
    coordinator.queries.take(Directive(id="one", kind="query", arguments=command.model_dump()))


def run(point: str, error: Exception) -> tuple[Life, bool]:
    """All epochs; in one of them the fault at ``point``. Whether it was met."""
    life = Life(pipeline(), {"rows": ROWS})
    for number, seconds in enumerate(EPOCHS):
        rows: list[Row] = [{"key": "ab"[second % 2], "at": at(second), "n": second} for second in seconds]
        if number != DISTURBED:
            life.epoch(Step(clock=number), rows=rows)
            continue
        life.rows["rows"].give(rows)
        with failing_at(point, error) as fired:
            try:
                life.restart()
                asks(life.coordinator)
                life.epoch(Step(clock=number))
                life.finish()
            except (Fenced, EpochAborted):
                pass
        life.restart(3)
        asks(life.coordinator)
    life.settle()
    life.clock = at(100)
    life.settle()
    life.finish()
    return life, bool(fired)


def outcome(life: Life) -> dict[str, Any]:
    """What all sinks show in the end, without the time of the epochs in which they do."""
    alarms = Counter((row["key"], row["what"]) for row in life.all_of("alarms"))
    windows = {name: Counter(map(repr, life.all_of(name))) for name in ("windows", "late", "longer", "answers")}
    return {"alarms": alarms, **windows, "late rows": life.late}


def named(module: Any) -> list[str]:
    return sorted(point.name for point in vars(module).values() if isinstance(point, FaultPoint))


DRIVER = [name for name in named(points) if name not in NOT_MET]
TASKS = [*named(task_points), "T3.before-delta", "T3.delta-written"]


ASKING = "E1.queries-written"
"""Where somebody asks a standing query, as nobody does at the end of the input."""


def every_second(first: int) -> list[Any]:
    """All other points: those from the one numbered ``first`` on in every run, those between them in a long one.

    Of this story and of that in test_end_of_input.py each point is in one in every run.
    """
    points = [point for point in (*DRIVER, *TASKS) if point != ASKING]
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


@pytest.mark.parametrize("point", [ASKING, *every_second(0)])
@pytest.mark.alternating(2)
def test_what_windows_timers_and_queries_give_comes_out_once_each(point: str, undisturbed: dict[str, Any]) -> None:
    error = Fenced("the driver is gone") if point in DRIVER else OSError("the disk is gone")
    life, met = run(point, error)
    with life:
        assert met or point.startswith(("abort", "R")), "nothing has failed there"
        assert outcome(life) == undisturbed
        named = {manifest.queries.path for manifest in life.manifests if manifest.queries is not None}
        assert set(life.store.list(layout.queries(life.manifests[-1].branch))) == named
        before = None
        for manifest in life.manifests:
            for name, place in manifest.clock.places.items():
                assert place.late == (BEGINNING if before is None else before.places[name].fire) <= place.fire < END
            before = manifest.clock
