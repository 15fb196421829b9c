"""The end of the input: drivers die and tasks fail at every step of the last epoch; one stream ends before another."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from epochal import Pipeline, tumbling
from epochal.connectors import console, generator
from epochal.contracts.conditions import END, microseconds
from epochal.errors import EpochAborted, Fenced
from tests.kit.lives import TIMESTAMP, Life, Step, at, failing_at
from tests.simulation.test_event_time_faults import DRIVER, EPOCHS, ROWS, alternate_points, outcome, pipeline

OTHERS = pa.schema([("key", pa.string()), ("other_at", TIMESTAMP)])


def run(point: str, error: Exception) -> tuple[Life, bool]:
    """Run all epochs, the last one with the fault at ``point``. Returns also whether the fault fired."""
    life = Life(pipeline(), {"rows": ROWS})
    for number, seconds in enumerate(EPOCHS):
        rows = [{"key": "ab"[second % 2], "at": at(second), "n": second} for second in seconds]
        life.epoch(Step(clock=number), rows=rows)
    life.settle()
    life.rows["rows"].bounded = True
    with failing_at(point, error) as fired:
        try:
            life.restart()
            life.settle()
            life.finish()
        except (Fenced, EpochAborted):
            pass
    for _ in range(2):  # the second attempt has no work left
        life.restart(3)
        life.settle()
        life.finish()
    return life, bool(fired)


def final_outcome(life: Life) -> dict[str, Any]:
    last = life.manifests[-1]
    return {
        **outcome(life),
        "dropped": last.counts.dropped_timers,
        "epoch": last.conditions and last.conditions.opened_for,
    }


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    with run("nowhere", Fenced())[0] as life:
        found = final_outcome(life)
        assert (found["dropped"], found["epoch"]) == ({"alarms": 1}, ("drain",))
        assert sum(found["windows"].values()) > sum(found["longer"].values()) > 3
        return found


@pytest.mark.parametrize("point", alternate_points(1))
@pytest.mark.alternating(2)
def test_drain_outputs_everything_once_despite_faults(point: str, undisturbed: dict[str, Any]) -> None:
    error = Fenced("the driver has died") if point in DRIVER else OSError("the disk has failed")
    life, fired = run(point, error)
    with life:
        assert fired or point.startswith(("abort", "R")), "the fault did not fire"
        assert final_outcome(life) == undisturbed
        *before, last = life.manifests
        assert last.drained and not any(manifest.drained for manifest in before)
        assert all(place.fire == END > place.late for place in last.clock.places.values())


def test_ended_stream_neither_holds_the_watermark_nor_makes_rows_late() -> None:
    found = Pipeline("two")
    columns = {"key": "string(id)", "at": "timestamp_seconds(id)", "n": "id"}
    rows = found.read("rows", generator.source(columns)).with_watermark("at", "5 seconds", name="first")
    others = found.read("others", generator.source({"key": "string(id)", "other_at": "timestamp_seconds(id)"}))
    others = others.with_watermark("other_at", "5 seconds", name="second")
    rows.key_by("key").window(tumbling("10 seconds")).aggregate("alone", rows="count(*)").write("alone", console.sink())
    joined = rows.join(others, on="key", within=("0 seconds", "1 minute"), how="left", name="joined")
    joined.write("joined", console.sink())
    with Life(found, {"rows": ROWS, "others": OTHERS}) as life:
        first_rows = {"rows": [{"key": "a", "at": at(5), "n": 1}, {"key": "b", "at": at(6), "n": 2}]}
        life.epoch(**first_rows, others=[{"key": "z", "other_at": at(1)}])
        life.settle()
        assert life.all_of("alone") == []
        life.rows["rows"].bounded = True
        life.restart()
        life.settle()
        assert sorted((row["key"], row["rows"]) for row in life.all_of("alone")) == [("a", 1), ("b", 1)]
        places = life.manifests[-1].clock.places
        assert (places["first"].fire, places["joined"].fire) == (END, microseconds(at(-4)))
        life.epoch(others=[{"key": "a", "other_at": at(30)}])
        life.epoch(
            others=[{"key": "z", "other_at": at(20)}]
        )  # neither row is late, although the other stream has ended
        assert [(row["key"], row["other_at"]) for row in life.all_of("joined")] == [("a", at(30))]
        life.rows["others"].bounded = True
        life.settle()
        assert [row["key"] for row in life.all_of("joined")] == ["a", "b"]
        assert life.manifests[-1].drained and not life.late
