"""The application: two stateful operators over one stream of flights, two tables of output.

- ``delays``: the number of arrived flights and their total, average and maximum delay, by route (an aggregate);
- ``streaks``: the number of consecutive late flights, by aircraft, with alerts from three on (a Python function with
  its own state).

With the parameter ``standing_queries`` the application also accepts standing queries::

    epochal query add flights "SELECT origin, count(*) AS n, max(delay) AS worst GROUP BY origin WINDOW '1 day'"

Their answers can be looked up and are written to the folder ``answers`` of the output.

Check it without a service: ``epochal check examples/flights/pipeline.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, Field

from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import files

SCHEMA = "time timestamp, carrier string, flight int, tail string, origin string, destination string, delay int"


class Parameters(BaseModel):
    """Parameters of the application."""

    flights: str = Field(description="folder with files of flights, one JSON object per line")
    airports: str = Field(description="Parquet file of airports: code, airport")
    output: str = Field(description="folder for the tables delays and alerts, and the answers of queries")
    late_minutes: int = Field(default=15, ge=0, description="minutes of delay from which a flight counts as late")
    max_files: int = Field(default=20, ge=1, description="maximum number of files in one epoch")
    standing_queries: bool = Field(default=False, description="accept standing queries on the flights")


class Streaks(KeyedProcess):
    """Counts the consecutive late flights of an aircraft, and stores the start of the streak."""

    late_minutes = 15
    current = ValueState("late_in_a_row int, longest int, since timestamp")
    output = "tail string, time timestamp, late_in_a_row int, since timestamp"
    order_by = ("time", "carrier", "flight")

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        late_in_a_row, longest, since = self.current.get() or (0, 0, None)
        for row in rows:
            if row.delay < self.late_minutes:
                late_in_a_row, since = 0, None
                continue
            late_in_a_row, since = late_in_a_row + 1, since or row.time
            longest = max(longest, late_in_a_row)
            if late_in_a_row >= 3:
                yield key.tail, row.time, late_in_a_row, since
        self.current.set(late_in_a_row, longest, since)


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("flights")
    flights = pipeline.read(
        "flights", files.source(parameters.flights, format="json", schema=SCHEMA, max_files=parameters.max_files)
    )
    airports = pipeline.table("airports", files.table(parameters.airports, format="parquet"))
    arrived = flights.where("delay IS NOT NULL")

    delays = arrived.key_by("origin", "destination").aggregate(
        "delays",
        flights="count(*)",
        total_delay="sum(delay)",
        worst_delay="max(delay)",
        average_delay="avg(delay)",
    )
    names = airports.select("code AS destination", "airport")
    named = delays.join(names, on="destination", how="left")
    named.write("delays", files.sink(f"{parameters.output}/delays", mode="updates"))

    by_aircraft = arrived.where("tail IS NOT NULL").key_by("tail")
    streaks = by_aircraft.process(Streaks, name="streaks", late_minutes=parameters.late_minutes)
    streaks.write("alerts", files.sink(f"{parameters.output}/alerts", format="json"))

    if parameters.standing_queries:
        timed = arrived.with_watermark("time", "1 day")
        answers = timed.standing_queries("queries", windows=("1 hour", "30 days"))
        answers.write("answers", files.sink(f"{parameters.output}/answers", format="json"))
    return pipeline
