"""The expected results: the same computations in plain Spark, in one batch over all files."""

from __future__ import annotations

from datetime import date

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from examples.flights.pipeline import SCHEMA

ALERTS = ("tail", "time", "late_in_a_row", "since")


def read_flights(spark: SparkSession, folder: str) -> DataFrame:
    """Read the flights that arrived."""
    return spark.read.schema(SCHEMA).json(folder).where("delay IS NOT NULL")


def delays(flights: DataFrame) -> DataFrame:
    """Return the expected rows of state table ``delays``."""
    return flights.groupBy("origin", "destination").agg(
        F.count("*").alias("flights"),
        F.sum("delay").alias("total_delay"),
        F.max("delay").alias("worst_delay"),
        F.avg("delay").alias("average_delay"),
    )


def named_delays(flights: DataFrame, airports: DataFrame) -> DataFrame:
    """Return the expected latest row of each route in table ``delays``."""
    names = airports.select(F.col("code").alias("destination"), "airport")
    return delays(flights).join(names, on="destination", how="left")


def late_after(minutes: int, changed_to: int | None = None, after: date | None = None) -> Column:
    """Return the condition of a late flight. After the day ``after``, the limit is ``changed_to`` minutes."""
    limit = F.lit(minutes)
    if changed_to is not None:
        limit = F.when(F.to_date("time") > F.lit(after), changed_to).otherwise(limit)
    return F.col("delay") >= limit


def streaks(flights: DataFrame, late: Column) -> DataFrame:
    """Return for each flight the current streak of late flights of its aircraft, the longest so far, and its start."""
    order = ("time", "carrier", "flight")
    by_aircraft = Window.partitionBy("tail").orderBy(*order)
    by_streak = Window.partitionBy("tail", "streak").orderBy(*order)
    return (
        flights.where("tail IS NOT NULL")
        .withColumn("late", late)
        .withColumn("streak", F.sum(F.when(F.col("late"), 0).otherwise(1)).over(by_aircraft))
        .withColumn("late_in_a_row", F.sum(F.when(F.col("late"), 1).otherwise(0)).over(by_streak).cast("int"))
        .withColumn("since", F.min(F.when(F.col("late"), F.col("time"))).over(by_streak))
        .withColumn("longest", F.max("late_in_a_row").over(by_aircraft))
        .withColumn("position", F.row_number().over(by_aircraft))
    )


def alerts(streaks: DataFrame) -> DataFrame:
    """Return the expected rows of table ``alerts``."""
    return streaks.where("late AND late_in_a_row >= 3").select(*ALERTS)


def current_streaks(streaks: DataFrame) -> DataFrame:
    """Return the expected rows of state table ``streaks.current``."""
    last = Window.partitionBy("tail").orderBy(F.desc("position"))
    latest = streaks.withColumn("from_last", F.row_number().over(last)).where("from_last = 1")
    moment = F.date_format("since", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("since")  # as in JSON
    return latest.select("tail", "late_in_a_row", "longest", moment)
