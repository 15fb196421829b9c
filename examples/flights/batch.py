"""The same answers from plain Spark, in one batch over all files: what the streaming application has to equal."""

from __future__ import annotations

from datetime import date

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from examples.flights.pipeline import SCHEMA

ALERTS = ("tail", "time", "late_in_a_row", "since")


def read_flights(spark: SparkSession, folder: str) -> DataFrame:
    """The flights that arrived."""
    return spark.read.schema(SCHEMA).json(folder).where("delay IS NOT NULL")


def delays(flights: DataFrame) -> DataFrame:
    """The rows of state table ``delays``."""
    return flights.groupBy("origin", "destination").agg(
        F.count("*").alias("flights"),
        F.sum("delay").alias("total_delay"),
        F.max("delay").alias("worst_delay"),
        F.avg("delay").alias("average_delay"),
    )


def named_delays(flights: DataFrame, airports: DataFrame) -> DataFrame:
    """What table ``delays`` shows last for each route."""
    names = airports.select(F.col("code").alias("destination"), "airport")
    return delays(flights).join(names, on="destination", how="left")


def late_after(minutes: int, changed_to: int | None = None, after: date | None = None) -> Column:
    """Is a flight late? From the day after ``after`` on, ``changed_to`` minutes count instead."""
    limit = F.lit(minutes)
    if changed_to is not None:
        limit = F.when(F.to_date("time") > F.lit(after), changed_to).otherwise(limit)
    return F.col("delay") >= limit


def streaks(flights: DataFrame, late: Column) -> DataFrame:
    """After each flight of an aircraft: how many it has been late in a row, the most so far, and since when."""
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
    """The rows of table ``alerts``."""
    return streaks.where("late AND late_in_a_row >= 3").select(*ALERTS)


def current_streaks(streaks: DataFrame) -> DataFrame:
    """The rows of state table ``streaks.current``."""
    last = Window.partitionBy("tail").orderBy(F.desc("position"))
    latest = streaks.withColumn("from_last", F.row_number().over(last)).where("from_last = 1")
    moment = F.date_format("since", "yyyy-MM-dd'T'HH:mm:ssXXX").alias("since")  # as JSON has it
    return latest.select("tail", "late_in_a_row", "longest", moment)
