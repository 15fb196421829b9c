"""Nexmark's queries in Structured Streaming, where its DataFrame API can express them.

The results equal those of the oracles. Windowed queries emit complete windows, as in Epochal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

DELAY = "1 second"
"""Delay of the watermarks in both engines. The events of the benchmark are in time order."""

Mode = Literal["append", "update"]
Query = tuple[Mode, Callable[[DataFrame], DataFrame]]

CANNOT: Mapping[str, str] = {
    "q4": "an average of changing highest bids aggregates another aggregate, which update mode refuses",
    "q9": "the best row of a join, without a window, is an aggregate after a join, which update mode refuses",
    "q16": "count(DISTINCT ..) is refused on streams",
}
"""Reasons why a query is not compared. Functions per key could compute it, and are measured separately."""


def events(spark: SparkSession, folder: Path, schema: StructType, files_an_epoch: int) -> DataFrame:
    """Read the events; a micro-batch has as many files as an epoch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", files_an_epoch).parquet(str(folder))


def _bids(events: DataFrame) -> DataFrame:
    columns = ("bid.auction", "bid.bidder", "bid.price", "bid.channel", "bid.url", "dateTime", "bid.extra")
    return events.where("bid IS NOT NULL").select(*columns)


def _q1(events: DataFrame) -> DataFrame:
    euros = "CAST(0.908 * price AS decimal(23, 3)) AS price"
    return _bids(events).selectExpr("auction", "bidder", euros, "dateTime", "extra")


def _q2(events: DataFrame) -> DataFrame:
    return _bids(events).where("auction % 123 = 0").select("auction", "price")


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


def _q11(events: DataFrame) -> DataFrame:
    session = F.session_window("dateTime", "10 seconds")
    counted = (
        _bids(events).withWatermark("dateTime", DELAY).groupBy("bidder", session).agg(F.count("*").alias("bid_count"))
    )
    bounds = (F.col("session_window.start").alias("starttime"), F.col("session_window.end").alias("endtime"))
    return counted.select("bidder", "bid_count", *bounds)


def _q18(events: DataFrame) -> DataFrame:
    last = F.max(F.struct("dateTime", "price", "channel", "url", "extra")).alias("last")
    kept = _bids(events).groupBy("bidder", "auction").agg(last)
    return kept.select("auction", "bidder", "last.price", "last.channel", "last.url", "last.dateTime", "last.extra")


def _q20(events: DataFrame) -> DataFrame:
    bids = _bids(events).withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    auctions = events.where("auction.category = 10").select(
        "auction.*", F.col("dateTime").alias("auction_dateTime"), F.col("auction.extra").alias("auction_extra")
    )
    return bids.join(auctions.drop("extra"), F.expr("auction = id")).drop("id")


QUERIES: Mapping[str, Query] = {
    "q1": ("append", _q1),
    "q2": ("append", _q2),
    "q5": ("append", _q5),
    "q7": ("append", _q7),
    "q8": ("append", _q8),
    "q11": ("append", _q11),
    "q18": ("update", _q18),
    "q20": ("append", _q20),
}


def answer_seconds(events: DataFrame, query: str, work: Path) -> list[float]:
    """Run a query over all files and write Parquet files. Returns Spark's seconds of each micro-batch with rows."""
    mode, frame = QUERIES[query]
    writer = _into_files(frame(events).writeStream.outputMode(mode), mode, work / "output")
    running = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    running.awaitTermination()
    progress = [each for each in running.recentProgress if each["numInputRows"]]
    return [each["durationMs"]["triggerExecution"] / 1000 for each in progress]


def _into_files(writer: DataStreamWriter, mode: Mode, folder: Path) -> DataStreamWriter:
    """Structured Streaming's file sink refuses updates: then each batch writes a folder, replaced by a retry."""
    if mode == "append":
        return writer.format("parquet").option("path", str(folder))

    def write(rows: DataFrame, number: int) -> None:
        rows.write.mode("overwrite").parquet(str(folder / f"batch={number}"))

    return writer.foreachBatch(write)
