"""The application: flights from one topic, each carrier's delays to another, late aircraft to a third.

- ``delays``: for each carrier what its flights come to so far; the newest record of a key says it all, so the topic may
  be compacted;
- ``alerts``: an aircraft that was late three flights in a row, or more, with the flight that made it so in the headers.

Run it with ``python -m examples.kafka.demo``, which brings a broker of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, Field

from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import kafka

SCHEMA = "time timestamp, carrier string, flight int, tail string, origin string, destination string, delay int"


class Parameters(BaseModel):
    """Where the broker is. Real clusters also want ``security_protocol`` and the like: see
    docs/reference/sinks/kafka.md."""

    servers: str = Field(description="host:port,host:port")
    late_minutes: int = Field(default=15, ge=0, description="a flight that arrives this much later is late")


class Streaks(KeyedProcess):
    """How many flights in a row has this aircraft been late?"""

    late_minutes = 15
    current = ValueState("late_in_a_row int")
    output = "tail string, time timestamp, late_in_a_row int, flight string"
    order_by = ("time", "carrier", "flight")

    def process(self, key: Any, rows: Sequence[Any], ctx: Context) -> Iterator[tuple[Any, ...]]:
        late_in_a_row = self.current.get() or 0
        for row in rows:
            late_in_a_row = late_in_a_row + 1 if row.delay >= self.late_minutes else 0
            if late_in_a_row >= 3:
                yield key.tail, row.time, late_in_a_row, f"{row.carrier}{row.flight}"
        self.current.set(late_in_a_row)


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("late-flights")
    flights = pipeline.read("flights", kafka.source(parameters.servers, "flights", schema=SCHEMA))
    arrived = flights.where("delay IS NOT NULL AND tail IS NOT NULL")

    delays = arrived.key_by("carrier").aggregate(
        "delays", flights="count(*)", total_delay="sum(delay)", worst_delay="max(delay)"
    )
    delays.write("delays", kafka.sink(parameters.servers, "delays", key="carrier", create=3))

    streaks = arrived.key_by("tail").process(Streaks, late_minutes=parameters.late_minutes)
    alerts = streaks.select("tail", "late_in_a_row", "time", "map('flight', flight) AS headers")
    alerts.write(
        "alerts",
        kafka.sink(parameters.servers, "alerts", key="tail", timestamp="time", headers="headers", create=3),
    )
    return pipeline
