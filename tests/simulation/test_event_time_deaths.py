"""An application with event time whose driver dies, or whose task fails, at every step: windows, late rows and timers
come out once each, and the watermarks of the manifests go on as if nothing had happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from epochal import KeyedProcess, Pipeline, ValueState, tumbling
from epochal.connectors import console, generator
from epochal.contracts.conditions import BEGINNING, END
from epochal.engine import points
from epochal.errors import EpochAborted, Fenced
from epochal.faults import FaultPoint
from epochal.pipeline.definitions import SinkDefinition
from epochal.tasks import points as task_points
from tests.lives import TIMESTAMP, Life, Row, Step, at, failing_at, struct

ROWS = pa.schema([("key", pa.string()), ("at", TIMESTAMP), ("n", pa.int64())])
COLUMNS = {"key": "string(id)", "at": "timestamp_seconds(id)", "n": "id"}
EPOCHS = [[5, 9, 12], [14, 3, 21], [30, 19], [38, 2, 44], [60]]
"""The times of the rows, in seconds. The delay is 5 s: 3 and 19 are not late for anybody, 2 is."""
DISTURBED = 3
"""The epoch in which something happens: with the late row, and with a window and timers that are due."""
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
    for name, stream in {"windows": windows, "late": windows.late, "longer": longer, "alarms": alarms}.items():
        stream.write(name, sink(name))
    return found


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
                life.epoch(Step(clock=number))
                life.finish()
            except (Fenced, EpochAborted):
                pass
        life.restart(3)
    life.settle()
    life.clock = at(100)
    life.settle()
    life.finish()
    return life, bool(fired)


def outcome(life: Life) -> dict[str, Any]:
    """What all sinks show in the end, without the time of the epochs in which they do."""
    alarms = Counter((row["key"], row["what"]) for row in life.all_of("alarms"))
    windows = {name: Counter(map(repr, life.all_of(name))) for name in ("windows", "late", "longer")}
    return {"alarms": alarms, **windows, "late rows": life.late}


def named(module: Any) -> list[str]:
    return sorted(point.name for point in vars(module).values() if isinstance(point, FaultPoint))


DRIVER = [name for name in named(points) if name not in NOT_MET]
TASKS = [*named(task_points), "T3.before-delta", "T3.delta-written"]


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    with run("nowhere", Fenced())[0] as life:
        found = outcome(life)
        assert found["late rows"] == {"windows": 1} and sum(found["late"].values()) == 1
        assert sum(found["alarms"].values()) > 12 and found["longer"]
        return found


@pytest.mark.parametrize("point", [*DRIVER, *TASKS])
def test_windows_late_rows_and_timers_come_out_once_each(point: str, undisturbed: dict[str, Any]) -> None:
    error = Fenced("the driver is gone") if point in DRIVER else OSError("the disk is gone")
    life, met = run(point, error)
    with life:
        assert met or point.startswith(("abort", "R")), "nothing has failed there"
        assert outcome(life) == undisturbed
        before = None
        for manifest in life.manifests:
            for name, place in manifest.clock.places.items():
                assert place.late == (BEGINNING if before is None else before.places[name].fire) <= place.fire < END
            before = manifest.clock
