"""A short life of Spark with what epochs do in it, so that its classes can be archived: see ``class_archive``."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from epochal.engine.class_archive import JAVA_OPTIONS, training_options
from epochal.engine.session import create_session
from epochal.engine.settings import Configuration

SCHEMA = "id bigint, name string, value double, at timestamp"


def main(archive: Path) -> None:
    configuration = Configuration(master="local[2]", parallelism=2, spark={JAVA_OPTIONS: training_options(archive)})
    spark = create_session("class-training", configuration)
    try:
        with tempfile.TemporaryDirectory(prefix="epochal-training-") as folder:
            _work(spark, folder)
    finally:
        spark.stop()


def _work(spark: SparkSession, folder: str) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "id", "cast(id % 7 as string) as name", "id / 2 as value", "timestamp_seconds(id) as at"
    )
    for format in ("json", "csv", "parquet"):
        path = f"{folder}/{format}"
        rows.write.format(format).save(path)
        _epoch(spark, spark.read.format(format).schema(SCHEMA).load(path))


def _epoch(spark: SparkSession, rows: DataFrame) -> None:
    known = spark.createDataFrame([("1", "one")], "name string, word string")
    chosen = rows.filter("value >= 0 and name is not null").withColumn("share", F.round(F.col("value") / 3, 2))
    joined = chosen.join(F.broadcast(known), "name", "left").select(
        "id", "name", "share", F.upper("word").alias("word")
    )
    keyed = joined.withColumn("place", F.pmod(F.xxhash64("name"), F.lit(2)).cast("int"))
    placed = keyed.repartitionById(2, F.col("place")).sortWithinPartitions("place", "name", F.col("id").desc())
    states = placed.mapInArrow(_as_they_are, placed.schema)
    states.groupBy("name").agg(F.count("*"), F.sum("share"), F.max("id"), F.collect_list("word")).collect()
    states.unionByName(placed).dropDuplicates(["id"]).orderBy("id").limit(10).collect()
    joined.createOrReplaceTempView("joined")
    spark.sql("select name, count(*) as n, avg(share) from joined where id > 3 group by name having n > 0").collect()


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main(Path(sys.argv[1]))
