"""Nexmark's queries in Structured Streaming, where its DataFrame API can express them.

The results equal those of the oracles. Windowed queries emit complete windows, as in Epochal. The two queries of
``REFUSED`` are not measured: a test shows that Spark still refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from benchmarks.engine import between_begins

DELAY = "1 second"
"""Delay of the watermarks in both engines. The events of the benchmark are in time order."""

Mode = Literal["append", "update"]
Query = tuple[Mode, Callable[[DataFrame], DataFrame]]

CANNOT: Mapping[str, str] = {
    "q4": "the average of highest bids that still change is an aggregate of an aggregate: update mode refuses it, and "
    "append mode without a watermark; with Spark's check disabled, each new highest bid counts as another auction",
    "q6": "the average of a seller's last winning bids is an aggregate of an aggregate, refused like q4",
}
"""Reasons why a query is not compared. Functions per key could compute it, and are measured separately."""

NOT_IN_MEMORY: Mapping[str, str] = {
    "q9": "state keeps every bid of an auction, because the aggregate cannot know the auction's times before its end"
}
"""Reasons why a query is compared with RocksDB only: its state outgrows the driver's heap in the usual run."""


def events(
    spark: SparkSession, folder: Path, schema: StructType, files_an_epoch: int, format: str = "parquet"
) -> DataFrame:
    """Read the events; a micro-batch has as many files as an epoch."""
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_an_epoch)
    return reader.format(format).load(str(folder))


def _bids(events: DataFrame) -> DataFrame:
    columns = ("bid.auction", "bid.bidder", "bid.price", "bid.channel", "bid.url", "dateTime", "bid.extra")
    return events.where("bid IS NOT NULL").select(*columns)


def _q0(events: DataFrame) -> DataFrame:
    return _bids(events).select("auction", "bidder", "price", "dateTime", "extra")


def _q1(events: DataFrame) -> DataFrame:
    euros = "CAST(0.908 * price AS decimal(23, 3)) AS price"
    return _bids(events).selectExpr("auction", "bidder", euros, "dateTime", "extra")


def _q2(events: DataFrame) -> DataFrame:
    return _bids(events).where("auction % 123 = 0").select("auction", "price")


def _q3(events: DataFrame) -> DataFrame:
    sellers = events.where("person.state IN ('OR', 'ID', 'CA')").select(
        F.col("person.id").alias("seller"), "person.name", "person.city", "person.state"
    )
    auctions = events.where("auction.category = 10").select("auction.id", F.col("auction.seller").alias("began_by"))
    return auctions.join(sellers, F.expr("began_by = seller")).select("name", "city", "state", "id")


def _highest_bids(events: DataFrame) -> DataFrame:
    """The highest bid of each auction, with the auction's category and seller."""
    auctions = events.where("auction IS NOT NULL").select("auction.*", F.col("dateTime").alias("begins")).drop("extra")
    bids = _bids(events).select("auction", "price", "dateTime")
    open_bids = auctions.join(bids, F.expr("id = auction AND dateTime BETWEEN begins AND expires"))
    return open_bids.groupBy("id", "category", "seller", "expires").agg(F.max("price").alias("price"))


def _q4(events: DataFrame) -> DataFrame:
    return _highest_bids(events).groupBy("category").agg(F.expr("CAST(avg(price) AS bigint)").alias("final"))


def _q5(events: DataFrame) -> DataFrame:
    sliding = F.window("dateTime", "10 seconds", "2 seconds")
    counted = _bids(events).withWatermark("dateTime", DELAY).groupBy(sliding, "auction").agg(F.count("*").alias("num"))
    most = counted.groupBy("window").agg(
        F.max("num").alias("most"), F.collect_list(F.struct("auction", "num")).alias("auctions")
    )
    hot = most.select("window", F.explode(F.expr("filter(auctions, each -> each.num = most)")).alias("hot"))
    return hot.select(
        "hot.auction", "hot.num", F.col("window.start").alias("starttime"), F.col("window.end").alias("endtime")
    )


def _q6(events: DataFrame) -> DataFrame:
    newest = F.max_by("price", F.struct("expires", "id"), 10)
    return _highest_bids(events).groupBy("seller").agg(newest.alias("last"))


def _q7(events: DataFrame) -> DataFrame:
    bids = _bids(events).withWatermark("dateTime", DELAY)
    highest = bids.groupBy(F.window("dateTime", "10 seconds").alias("within")).agg(F.max("price").alias("highest"))
    # A stream can have one event time, here that of the window, so the time of the bid becomes an ordinary column.
    at = F.expr("timestamp_micros(unix_micros(dateTime))").alias("dateTime")
    windowed = bids.select("auction", "bidder", "price", at, "extra", F.window("dateTime", "10 seconds"))
    highest_in_window = windowed.join(highest, F.expr("price = highest AND within = window"))
    return highest_in_window.select("auction", "bidder", "price", "dateTime", "extra")


def _q8(events: DataFrame) -> DataFrame:
    within = F.window("dateTime", "10 seconds")
    people = events.where("person IS NOT NULL").select("person.id", "person.name", "dateTime")
    people = people.withWatermark("dateTime", DELAY).groupBy(within.alias("registered"), "id", "name").agg(F.count("*"))
    sellers = events.where("auction IS NOT NULL").select("auction.seller", "dateTime")
    sellers = sellers.withWatermark("dateTime", DELAY).groupBy(within.alias("began"), "seller").agg(F.count("*"))
    both = people.join(sellers, F.expr("id = seller AND registered = began"))
    return both.select("id", "name", F.col("registered.start").alias("starttime"))


def _q9(events: DataFrame) -> DataFrame:
    """One aggregate over auctions and bids, because an aggregate of a join is refused."""
    auction = F.expr("IF(auction IS NULL, NULL, struct(auction.*, dateTime))")
    bid = F.expr("IF(bid IS NULL, NULL, struct(-bid.price AS minus, dateTime AS at, bid.bidder, bid.extra))")
    rows = events.where("event_type > 0").select(
        F.expr("coalesce(auction.id, bid.auction)").alias("key"), auction.alias("began"), bid.alias("bid")
    )
    collected = rows.groupBy("key").agg(F.max("began").alias("began"), F.collect_list("bid").alias("bids"))
    best = F.expr("array_min(filter(bids, bid -> bid.at BETWEEN began.dateTime AND began.expires))")
    won = collected.select("key", "began", best.alias("best")).where("best IS NOT NULL")
    auction_columns = ("id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires")
    return won.select(
        *(f"began.{name}" for name in (*auction_columns, "seller", "category", "extra")),
        *(F.col("key").alias("auction"), "best.bidder", F.expr("-best.minus").alias("price")),
        *(F.col("best.at").alias("bid_dateTime"), F.col("best.extra").alias("bid_extra")),
    )


def _q10(events: DataFrame) -> DataFrame:
    day, minute = "date_format(dateTime, 'yyyy-MM-dd') AS dt", "date_format(dateTime, 'HH:mm') AS hm"
    return _bids(events).selectExpr("auction", "bidder", "price", "dateTime", "extra", day, minute)


def _q11(events: DataFrame) -> DataFrame:
    session = F.session_window("dateTime", "10 seconds")
    counted = (
        _bids(events).withWatermark("dateTime", DELAY).groupBy("bidder", session).agg(F.count("*").alias("bid_count"))
    )
    bounds = (F.col("session_window.start").alias("starttime"), F.col("session_window.end").alias("endtime"))
    return counted.select("bidder", "bid_count", *bounds)


def _q12(events: DataFrame) -> DataFrame:
    """Processing time is the time of the micro-batch."""
    bids = _bids(events).select("bidder", F.current_timestamp().alias("p_time")).withWatermark("p_time", "0 seconds")
    counted = bids.groupBy("bidder", F.window("p_time", "10 seconds")).agg(F.count("*").alias("bid_count"))
    bounds = (F.col("window.start").alias("starttime"), F.col("window.end").alias("endtime"))
    return counted.select("bidder", "bid_count", *bounds)


def _q13(events: DataFrame) -> DataFrame:
    rows = events.sparkSession.range(10_000).selectExpr("id AS key", "CAST(id AS string) AS value")
    joined = _bids(events).join(F.broadcast(rows), F.expr("auction % 10000 = key"))
    return joined.select("auction", "bidder", "price", "dateTime", "value")


def _q14(events: DataFrame) -> DataFrame:
    part_of_day = """
        CASE
            WHEN hour(dateTime) IN (7, 19) THEN 'otherTime'
            WHEN hour(dateTime) BETWEEN 8 AND 18 THEN 'dayTime'
            ELSE 'nightTime'
        END"""
    bids = _bids(events).withColumns(
        {"price": F.expr("CAST(price * 0.908 AS decimal(23, 3))"), "bidTimeType": F.expr(part_of_day)}
    )
    large = bids.where("price > 1000000 AND price < 50000000")
    c_counts = "CAST(regexp_count(extra, 'c') AS bigint) AS c_counts"
    return large.selectExpr("auction", "bidder", "price", "bidTimeType", "dateTime", "extra", c_counts)


RANKS = {"rank1": "price < 10000", "rank2": "price BETWEEN 10000 AND 999999", "rank3": "price >= 1000000"}


def _bids_of_days(events: DataFrame) -> DataFrame:
    return _bids(events).withColumn("day", F.expr("date_format(dateTime, 'yyyy-MM-dd')"))


def _statistics() -> list[Column]:
    """Numbers of bids, bidders and auctions. Sets of values count exactly; ``count(DISTINCT ..)`` is refused."""
    levels = {"total": "true", **RANKS}
    columns = [F.expr(f"count_if({condition}) AS {rank}_bids") for rank, condition in levels.items()]
    for what in ("bidder", "auction"):
        for rank, condition in levels.items():
            columns.append(
                F.expr(f"CAST(size(collect_set(IF({condition}, {what}, NULL))) AS bigint) AS {rank}_{what}s")
            )
    return columns


def _q15(events: DataFrame) -> DataFrame:
    return _bids_of_days(events).groupBy("day").agg(*_statistics())


def _q16(events: DataFrame) -> DataFrame:
    minute = F.expr("max(date_format(dateTime, 'HH:mm')) AS minute")
    return _bids_of_days(events).groupBy("channel", "day").agg(minute, *_statistics())


def _q17(events: DataFrame) -> DataFrame:
    counts = ["count(*) AS total_bids", *(f"count_if({condition}) AS {rank}_bids" for rank, condition in RANKS.items())]
    prices = ("min(price) AS min_price", "max(price) AS max_price")
    sums = ("sum(price) div count(*) AS avg_price", "sum(price) AS sum_price")
    return _bids_of_days(events).groupBy("auction", "day").agg(*map(F.expr, (*counts, *prices, *sums)))


def _q18(events: DataFrame) -> DataFrame:
    last = F.max(F.struct("dateTime", "price", "channel", "url", "extra")).alias("last")
    kept = _bids(events).groupBy("bidder", "auction").agg(last)
    return kept.select("auction", "bidder", "last.price", "last.channel", "last.url", "last.dateTime", "last.extra")


def _q19(events: DataFrame) -> DataFrame:
    """All ranks of an auction with a new bid."""
    order = "struct(-price AS minus, dateTime, bidder, channel, url, extra)"
    highest = _bids(events).selectExpr("auction", f"{order} AS bid").groupBy("auction")
    ranked = highest.agg(F.expr("min_by(bid, bid, 10) AS bids")).selectExpr("auction", "posexplode(bids) AS (at, bid)")
    columns = ("bid.channel", "bid.url", "bid.dateTime", "bid.extra", "CAST(at + 1 AS bigint) AS rank_number")
    return ranked.selectExpr("auction", "bid.bidder", "-bid.minus AS price", *columns)


def _q20(events: DataFrame) -> DataFrame:
    bids = _bids(events).withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    auctions = events.where("auction.category = 10").select(
        "auction.*", F.col("dateTime").alias("auction_dateTime"), F.col("auction.extra").alias("auction_extra")
    )
    return bids.join(auctions.drop("extra"), F.expr("auction = id")).drop("id")


def _q21(events: DataFrame) -> DataFrame:
    known = "element_at(map('apple', '0', 'google', '1', 'facebook', '2', 'baidu', '3'), lower(channel))"
    in_page = "split_part(nullif(substring_index(url, '&channel_id=', -1), url), '&', 1)"
    bids = _bids(events).withColumn("channel_id", F.expr(f"coalesce({known}, {in_page})"))
    return bids.where("channel_id IS NOT NULL").select("auction", "bidder", "price", "channel", "channel_id")


def _q22(events: DataFrame) -> DataFrame:
    folders = [f"split_part(url, '/', {part}) AS dir{number}" for number, part in enumerate((4, 5, 6), 1)]
    return _bids(events).selectExpr("auction", "bidder", "price", "channel", *folders)


QUERIES: Mapping[str, Query] = {
    "q0": ("append", _q0),
    "q1": ("append", _q1),
    "q2": ("append", _q2),
    "q3": ("append", _q3),
    "q5": ("append", _q5),
    "q7": ("append", _q7),
    "q8": ("append", _q8),
    "q9": ("update", _q9),
    "q10": ("append", _q10),
    "q11": ("append", _q11),
    "q12": ("append", _q12),
    "q13": ("append", _q13),
    "q14": ("append", _q14),
    "q15": ("update", _q15),
    "q16": ("update", _q16),
    "q17": ("update", _q17),
    "q18": ("update", _q18),
    "q19": ("update", _q19),
    "q20": ("append", _q20),
    "q21": ("append", _q21),
    "q22": ("append", _q22),
}
REFUSED: Mapping[str, Callable[[DataFrame], DataFrame]] = {"q4": _q4, "q6": _q6}


def answer_seconds(events: DataFrame, query: str, work: Path, format: str = "parquet") -> list[float]:
    """Run a query over all files. Returns the seconds from the begin of each micro-batch with rows to that of the next
    one."""
    mode, frame = QUERIES[query]
    writer = _into_files(frame(events).writeStream.outputMode(mode), mode, work / "output", format)
    running = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    running.awaitTermination()
    progress = [each for each in running.recentProgress if each["numInputRows"]]
    begins = [datetime.fromisoformat(each["timestamp"]) for each in progress]
    return between_begins(begins, progress[-1]["durationMs"]["triggerExecution"] / 1000)


def _into_files(writer: DataStreamWriter, mode: Mode, folder: Path, format: str) -> DataStreamWriter:
    """Structured Streaming's file sink refuses updates: then each batch writes a folder, replaced by a retry."""
    if mode == "append":
        return writer.format(format).option("path", str(folder))

    def write(rows: DataFrame, number: int) -> None:
        rows.write.mode("overwrite").format(format).save(str(folder / f"batch={number}"))

    return writer.foreachBatch(write)
