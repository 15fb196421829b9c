"""Nexmark events: the same in every slice, with the kinds and proportions of the benchmark; time, lateness, skew."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from epochal import Pipeline
from epochal.connectors import console, nexmark
from epochal.connectors.nexmark.source import BATCH, NexmarkSource
from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.errors import OptionError
from epochal.testing import Harness

BEGIN = datetime(2015, 7, 15, tzinfo=UTC)
DISTURBED: dict[str, Any] = {"partitions": 3, "skew": "2 seconds", "late_share": 0.1, "late_by": "1 minute"}


def made(**options: Any) -> NexmarkSource:
    source = nexmark.source(**options).make()
    assert isinstance(source, NexmarkSource)
    return source


def events(start: int, end: int, **options: Any) -> pa.Table:
    return pa.Table.from_batches([made(**options)._model.events(start, end)]).combine_chunks()


def planned(source: Source, limit: int | None = None) -> Slice:
    slice = source.plan(SliceLimits(limit))
    assert slice is not None
    return slice


@given(
    cuts=st.sets(st.integers(1, 999), max_size=10),
    first=st.integers(0, 10**12),
    seed=st.sampled_from([0, 5, 2**64 - 1]),
)
def test_events_are_the_same_for_every_cut_into_slices(cuts: set[int], first: int, seed: int) -> None:
    bounds = [first, *(first + cut for cut in sorted(cuts)), first + 1000]
    options: dict[str, Any] = {"seed": seed, **DISTURBED}
    parts = [events(start, end, **options) for start, end in pairwise(bounds)]
    assert pa.concat_tables(parts).to_pylist() == events(first, first + 1000, **options).to_pylist()


def test_events_of_a_seed_never_change() -> None:
    rows = events(0, 5000, seed=7, **DISTURBED).to_pylist()
    digest = hashlib.sha256(json.dumps(rows, default=str).encode()).hexdigest()
    assert digest == "7ceeeb9355d320231e6f2b39e52788fc5cd49bc18ce9bbd9382cf985d70d6437"
    assert events(0, 50, seed=8).to_pylist() != events(0, 50, seed=7).to_pylist()


def test_spark_reads_the_events_of_a_slice(spark: SparkSession) -> None:
    source = made(events=2 * BATCH + 10)
    source.accept(planned(source, 7))
    frame = source.read(spark, planned(source))
    assert frame.schema == source.schema(spark)
    read = frame.toArrow().sort_by("dateTime")
    assert read.to_pylist() == events(7, 2 * BATCH + 10).to_pylist()
    assert source.read(spark, Slice(start={"row": 3}, end={"row": 3})).count() == 0


def test_fifty_events_contain_one_person_and_three_auctions() -> None:
    rows = events(0, 5000)
    people = rows.filter(pc.equal(rows["event_type"], 0))
    auctions = rows.filter(pc.equal(rows["event_type"], 1))
    assert (people.num_rows, auctions.num_rows) == (100, 300)
    for kind, name in enumerate(("person", "auction", "bid")):
        assert pc.is_valid(rows[name]).equals(pc.equal(rows["event_type"], kind))
    assert pc.struct_field(people["person"], "id").to_pylist() == list(range(1000, 1100))
    assert pc.struct_field(auctions["auction"], "id").to_pylist() == list(range(1000, 1300))


def test_bids_have_the_auctions_and_prices_of_the_benchmark() -> None:
    rows = events(100_000, 150_000)
    auctions_before = (pc.divide(pc.cast(pa.array(range(100_000, 150_000)), pa.int64()), 50).to_numpy() + 1) * 3
    bids = rows.filter(pc.equal(rows["event_type"], 2))
    newest = 1000 + auctions_before[pc.equal(rows["event_type"], 2).to_numpy()] - 1
    auction = pc.struct_field(bids["bid"], "auction").to_numpy()
    hot = (auction % 100 == 0) & (auction <= newest) & (auction > newest - 100)
    assert 0.45 < hot.mean() < 0.55
    assert (auction[~hot] >= newest[~hot] - 100).all() and (auction <= newest + 10).all()
    assert (auction > newest).any()  # bids may come before their auction
    prices = pc.struct_field(bids["bid"], "price").to_numpy()
    assert prices.min() >= 100 and prices.max() < 100_000_000
    assert all(0.15 < ((prices >= 10**n) & (prices < 10 ** (n + 1))).mean() < 0.18 for n in range(2, 8))


def test_auctions_end_after_they_begin_and_most_sellers_are_hot() -> None:
    rows = events(0, 50_000)
    auctions = rows.filter(pc.equal(rows["event_type"], 1))
    auction = auctions["auction"].combine_chunks()
    assert pc.all(pc.greater(pc.struct_field(auction, "expires"), auctions["dateTime"])).as_py()
    assert pc.all(pc.greater(pc.struct_field(auction, "reserve"), pc.struct_field(auction, "initialBid"))).as_py()
    assert set(pc.struct_field(auction, "category").to_pylist()) == set(range(10, 15))
    sellers = pc.struct_field(auction, "seller").to_numpy()
    assert 0.7 < (sellers % 100 == 0).mean() < 0.8


def test_auctions_may_last_for_weeks() -> None:
    rows = events(0, 50_000, events_per_second=1, in_flight_auctions=10**5)
    auctions = rows.filter(pc.equal(rows["event_type"], 1))
    expires = pc.struct_field(auctions["auction"].combine_chunks(), "expires")
    days = pc.divide(pc.cast(pc.subtract(expires, auctions["dateTime"]), pa.int64()), 86_400_000_000).to_numpy()
    assert 0 <= days.min() <= 1 and 36 <= days.max() <= 38  # twice 100,000 / 3 * 50 seconds, at most
    assert 18 < days.mean() < 21


def test_event_times_follow_the_rate() -> None:
    times = events(0, 101, events_per_second=100)["dateTime"].to_pylist()
    assert (times[0], times[1], times[100]) == (
        BEGIN,
        BEGIN + timedelta(milliseconds=10),
        BEGIN + timedelta(seconds=1),
    )
    later = events(0, 1, first_event_at="2020-01-01T00:00:00+01:00")["dateTime"].to_pylist()
    assert later == [datetime(2019, 12, 31, 23, tzinfo=UTC)]


def test_partitions_alternate_and_lag_by_the_skew() -> None:
    rows = events(0, 300, partitions=3, skew="2 seconds")
    level = events(0, 300, partitions=3)
    assert rows["_partition"].to_pylist() == [number // 50 % 3 for number in range(300)]
    behind = [a - b for a, b in zip(level["dateTime"].to_pylist(), rows["dateTime"].to_pylist(), strict=True)]
    assert behind == [timedelta(seconds=number // 50 % 3) for number in range(300)]


def test_every_kind_of_event_has_a_share_of_late_rows() -> None:
    late = events(0, 50_000, late_share=0.05, late_by="90 seconds")
    moved = pc.not_equal(late["dateTime"], events(0, 50_000)["dateTime"])
    assert 0.045 < pc.mean(moved).as_py() < 0.055
    delay = pc.subtract(events(0, 50_000)["dateTime"], late["dateTime"])
    assert set(pc.unique(delay).to_pylist()) == {timedelta(0), timedelta(seconds=90)}
    assert set(late.filter(moved)["event_type"].to_pylist()) == {0, 1, 2}


def test_source_ends_with_its_events_and_continues_at_its_position() -> None:
    source = made(events=25)
    first = planned(source, 10)
    assert planned(source, 10) == first  # planned, not accepted
    source.accept(first)
    restored = made(events=25)
    restored.restore(source.checkpoint(), [planned(source, 10)])
    assert planned(restored) == Slice(start={"row": 20}, end={"row": 25}, rows=5)
    restored.accept(planned(restored))
    assert restored.ended and restored.plan(SliceLimits(None)) is None


def test_unbounded_events_become_due_at_their_rate() -> None:
    now = 100.0
    source = NexmarkSource(made()._model, rate=50, clock=lambda: now)
    assert source.plan(SliceLimits(None)) is None
    now += 2.0
    assert planned(source).rows == 100
    with pytest.raises(OptionError, match=r"Give nexmark\.source events=\.\."):
        source.limit_to_available()


def test_only_unbounded_events_are_paced() -> None:
    assert nexmark.source().description["paced"]
    assert not nexmark.source(events=10).description["paced"]
    assert made(events=10, paced=True).plan(SliceLimits(None)) is None
    assert planned(made(paced=False), 1000).rows == 1000


def test_kinds_of_events_have_the_columns_of_the_benchmark(spark: SparkSession) -> None:
    pipeline = Pipeline("kinds")
    stream = pipeline.read("events", nexmark.source(events=50))
    nexmark.persons(stream).write("persons", console.sink())
    nexmark.auctions(stream).write("auctions", console.sink())
    nexmark.bids(stream).write("bids", console.sink())
    with Harness(pipeline, spark) as test:
        shown = test.epoch(events=made(events=50).rows(spark, 0, 50))
    assert {name: rows.num_rows for name, rows in shown.items()} == {"persons": 1, "auctions": 3, "bids": 46}
    assert shown["persons"].column_names == [
        *("id", "name", "emailAddress", "creditCard", "city", "state", "dateTime", "extra"),
    ]
    assert shown["auctions"].column_names == [
        *("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller", "category"),
        "extra",
    ]
    assert shown["bids"].column_names == ["auction", "bidder", "price", "channel", "url", "dateTime", "extra"]


def test_parameters_of_a_query_are_options_of_the_source() -> None:
    parameters = nexmark.Parameters(events=500, seed=3, partitions=2, skew="1 second")
    expected = nexmark.source(events=500, seed=3, partitions=2, skew="1 second").description
    assert parameters.source().description == expected
    assert parameters.sink().kind == "console"
    assert nexmark.Parameters(output="out/q1").sink().description["path"] == "out/q1"


def test_side_input_has_numbered_rows(spark: SparkSession) -> None:
    rows = nexmark.side_input(3).read(spark).collect()
    assert [tuple(row) for row in rows] == [(0, "0"), (1, "1"), (2, "2")]
    with pytest.raises(OptionError, match="rows is 0"):
        nexmark.side_input(0)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"events": 0}, "events is 0; it must be an integer from 1"),
        ({"events_per_second": 0.5}, "events_per_second is 0.5; it must be an integer from 1"),
        ({"seed": -1}, "seed is -1; it must be an integer from 0"),
        ({"partitions": True}, "partitions is True"),
        ({"first_event_at": "yesterday"}, "first_event_at is 'yesterday'; it must be a time such as"),
        ({"late_share": 0.05}, "late_by None; late events require both"),
        ({"late_by": "10 seconds"}, "late events require both"),
        ({"late_share": 1.5, "late_by": "10 seconds"}, "late_share is 1.5; it must be a number from 0 to 1"),
        ({"late_share": "5%", "late_by": "10 seconds"}, "late_share is '5%'"),
        ({"late_share": 0.1, "late_by": "a while"}, "late_by is 'a while'; it must be a duration above 0"),
        ({"partitions": 2, "skew": timedelta(0)}, "skew is datetime.timedelta(0); it must be a duration above 0"),
        ({"late_share": 0.1, "late_by": "9999999999999 days"}, "at most 36,500 days"),
        ({"first_event_at": datetime(9999, 12, 31, tzinfo=UTC)}, "between 1900 and 2999"),
        ({"in_flight_auctions": 10**6}, "in_flight_auctions is 1000000"),
        ({"skew": "1 second"}, "skew requires several partitions"),
        ({"paced": "no"}, "paced is 'no'; it must be True or False"),
        ({"hot_auction_ratio": 0}, "hot_auction_ratio is 0"),
        ({"event": 100}, "Did you mean 'events'?"),
    ],
)
def test_options_are_checked(options: dict[str, Any], part: str) -> None:
    with pytest.raises(OptionError) as caught:
        nexmark.source(**options)
    assert part in caught.value.message
