"""The application: reads flights from a topic, and writes delays of carriers and alerts for aircraft to two others.

- ``delays``: the totals of each carrier so far. Only the newest record of a key matters, so the topic can be compacted;
- ``alerts``: aircraft with three or more consecutive late flights; the headers name the last flight.

``python -m examples.kafka.demo`` runs it with a private broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, Field

from epochal import Context, KeyedProcess, Pipeline, ValueState
from epochal.connectors import kafka

SCHEMA = "time timestamp, carrier string, flight int, tail string, origin string, destination string, delay int"


class Parameters(BaseModel):
    """The address of the broker. Secured clusters require further options, such as ``security_protocol``: see
    docs/reference/sinks/kafka.md."""

    servers: str = Field(description="host:port,host:port")
    late_minutes: int = Field(default=15, ge=0, description="minutes of delay from which a flight counts as late")


class Streaks(KeyedProcess):
    """Counts the consecutive late flights of an aircraft."""

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
