"""Nexmark benchmark events: people sell items in auctions, and other people bid::

    from epochal.connectors import nexmark

    events = pipeline.read("events", nexmark.source(events=1_000_000, events_per_second=10_000))
    bids = nexmark.bids(events)

One stream contains all three kinds of event, as in the benchmark's SQL. Its columns are ``event_type`` (0 person,
1 auction, 2 bid), the structs ``person``, ``auction`` and ``bid``, two of which are null, the time ``dateTime``, and
``_partition``. The names are those of the benchmark.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from epochal.connectors import console, files
from epochal.connectors.nexmark import source as read
from epochal.connectors.nexmark.draws import SEEDS
from epochal.connectors.nexmark.model import AUCTION, BID, PERSON, Model
from epochal.connectors.nexmark.source import NexmarkSource
from epochal.connectors.sink_modes import Mode
from epochal.errors import OptionError
from epochal.pipeline.definitions import SinkDefinition, SourceDefinition, TableDefinition, check_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from epochal.pipeline.stream import Stream

FIRST_EVENT_AT = "2015-07-15T00:00:00Z"
SIDE_INPUT_ROWS = 10_000

_OPTIONS = (
    *("events", "events_per_second", "seed", "partitions", "first_event_at", "late_share", "late_by", "skew", "paced"),
    *("hot_auction_ratio", "hot_bidder_ratio", "hot_seller_ratio", "active_people", "in_flight_auctions"),
)


def source(
    *,
    events: int | None = None,
    events_per_second: int = 10_000,
    seed: int = 0,
    partitions: int = 1,
    first_event_at: str | datetime = FIRST_EVENT_AT,
    late_share: float = 0.0,
    late_by: str | timedelta | None = None,
    skew: str | timedelta | None = None,
    paced: bool | None = None,
    hot_auction_ratio: int = 2,
    hot_bidder_ratio: int = 4,
    hot_seller_ratio: int = 4,
    active_people: int = 1000,
    in_flight_auctions: int = 100,
    **options: Any,
) -> SourceDefinition:
    """Generate Nexmark events, numbered from 0. An event depends only on ``seed`` and its number.

    - ``events``: number of events; ``None``: unbounded.
    - ``events_per_second``, ``first_event_at``: event time of event n is ``first_event_at + n / events_per_second``.
    - ``paced``: emit events at ``events_per_second`` in real time, from the start of the run. Default: only if
      ``events`` is ``None``.
    - ``partitions``: number of partitions. Fifty consecutive events are in one partition, the next fifty in the next
      partition; the column ``_partition`` holds its number.
    - ``skew``: time by which event times of the last partition are behind those of the first. The partitions between
      are behind in proportion.
    - ``late_share``: share of events whose event time is ``late_by`` earlier, so that they arrive late.
    - ``hot_auction_ratio``, ``hot_bidder_ratio``, ``hot_seller_ratio``: one in this number of bids (or auctions, for
      sellers) does not belong to the hot auction, bidder or seller, but to one of the last ``in_flight_auctions``
      auctions or the last ``active_people`` people.

    Raises ``OptionError``.
    """
    check_options("nexmark.source", options, _OPTIONS)
    if events is not None:
        read.whole("events", events, 1, 1 << 40)
    if (read.share("late_share", late_share) > 0) != (late_by is not None):
        raise OptionError(
            f"nexmark.source: late_share is {late_share!r} and late_by {late_by!r}; late events require both, such as "
            "late_share=0.05, late_by='1 minute'."
        )
    if skew is not None and partitions == 1:
        raise OptionError("nexmark.source: skew requires several partitions. Set partitions=.. as well.")
    if paced not in (None, True, False):
        raise OptionError(f"nexmark.source: paced is {paced!r}; it must be True or False.")
    model = Model(
        seed=read.whole("seed", seed, 0, SEEDS - 1),
        events_per_second=read.whole("events_per_second", events_per_second, 1, 10**9),
        first_event_at=read.event_time("first_event_at", first_event_at),
        partitions=read.whole("partitions", partitions, 1, 10_000),
        skew=0 if skew is None else read.length("skew", skew),
        late_share=late_share,
        late_by=0 if late_by is None else read.length("late_by", late_by),
        hot_auction_ratio=read.whole("hot_auction_ratio", hot_auction_ratio, 1, 10**6),
        hot_bidder_ratio=read.whole("hot_bidder_ratio", hot_bidder_ratio, 1, 10**6),
        hot_seller_ratio=read.whole("hot_seller_ratio", hot_seller_ratio, 1, 10**6),
        active_people=read.whole("active_people", active_people, 1, 10**9),
        in_flight_auctions=read.whole("in_flight_auctions", in_flight_auctions, 1, 10**5),
    )
    held_back = events is None if paced is None else paced
    rate = events_per_second if held_back else None
    description = {
        "events": events,
        "events_per_second": events_per_second,
        "seed": seed,
        "partitions": partitions,
        "first_event_at": str(first_event_at),
        "late_share": late_share,
        "late_by": None if late_by is None else str(late_by),
        "skew": None if skew is None else str(skew),
        "paced": held_back,
    }
    return SourceDefinition(kind="nexmark", make=partial(NexmarkSource, model, rate, events), description=description)


def persons(events: Stream) -> Stream:
    """New people: id, name, emailAddress, creditCard, city, state, dateTime, extra."""
    return events.where(f"event_type = {PERSON}").select(
        *("person.id", "person.name", "person.emailAddress", "person.creditCard", "person.city", "person.state"),
        *("dateTime", "person.extra"),
    )


def auctions(events: Stream) -> Stream:
    """New auctions: id, itemName, description, initialBid, reserve, dateTime, expires, seller, category,
    extra."""
    return events.where(f"event_type = {AUCTION}").select(
        *("auction.id", "auction.itemName", "auction.description", "auction.initialBid", "auction.reserve"),
        *("dateTime", "auction.expires", "auction.seller", "auction.category", "auction.extra"),
    )


def bids(events: Stream) -> Stream:
    """Bids: auction, bidder, price, channel, url, dateTime, extra."""
    return events.where(f"event_type = {BID}").select(
        *("bid.auction", "bid.bidder", "bid.price", "bid.channel", "bid.url", "dateTime", "bid.extra"),
    )


def side_input(rows: int = SIDE_INPUT_ROWS) -> TableDefinition:
    """The benchmark's static table for joins: ``key`` from 0 to ``rows - 1``, and ``value``, the key as text."""
    read.whole("rows", rows, 1, 10**9)
    return TableDefinition(kind="nexmark", read=partial(_side_input, rows), description={"rows": rows})


def _side_input(rows: int, spark: SparkSession) -> DataFrame:
    return spark.range(rows).selectExpr("id AS key", "CAST(id AS string) AS value")


class Parameters(BaseModel, extra="forbid"):
    """Parameters of the queries in ``examples/nexmark``."""

    events: int | None = Field(default=100_000, description="number of events; null: unbounded")
    events_per_second: int = Field(default=10_000, description="events per second of event time")
    seed: int = Field(default=0, description="seed of the events")
    partitions: int = Field(default=1, description="number of partitions of the stream")
    first_event_at: str = Field(default=FIRST_EVENT_AT, description="event time of the first event, ISO 8601")
    late_share: float = Field(default=0.0, description="share of late events")
    late_by: str | None = Field(default=None, description="delay of late events: '10 seconds'")
    skew: str | None = Field(default=None, description="delay of the last partition behind the first: '2 seconds'")
    delay: str = Field(default="1 second", description="delay of watermarks; older events are late")
    output: str | None = Field(default=None, description="output folder; results are printed if it is empty")

    def source(self) -> SourceDefinition:
        """The source of events with these parameters."""
        return source(**self.model_dump(exclude={"delay", "output"}))

    def sink(self, mode: Mode = "append") -> SinkDefinition:
        """The sink of a query's result. ``mode="updates"`` accepts rows that replace earlier rows."""
        return console.sink() if self.output is None else files.sink(self.output, mode=mode)
