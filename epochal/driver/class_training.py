"""A short life of Spark, so that its classes can be archived: see ``epochal.engine.class_archive``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from epochal.contracts.configuration import Configuration
from epochal.driver.training import trained
from epochal.engine.class_archive import JAVA_OPTIONS, training_options
from epochal.engine.session import create_session


def main(archive: Path) -> None:
    """The epochs that a spare driver is trained with, and what other sources and authors' transforms ask of Spark."""
    spark = create_session("class-training", Configuration(spark={JAVA_OPTIONS: training_options(archive)}))
    try:
        for _ in trained(spark):
            pass
        with tempfile.TemporaryDirectory(prefix="epochal-training-") as folder:
            _read_other_formats(spark, folder)
    finally:
        spark.stop()


def _read_other_formats(spark: SparkSession, folder: str) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "id", "cast(id % 7 as string) as name", "id / 2 as value", "timestamp_seconds(id) as at"
    )
    for format in ("csv", "parquet"):
        path = f"{folder}/{format}"
        rows.write.format(format).save(path)
        read = spark.read.format(format).schema("id bigint, name string, value double, at timestamp").load(path)
        read.createOrReplaceTempView("read")
        windows = "select name, window(at, '1 minute') as span, count(*) as n, collect_list(id) as ids"
        spark.sql(f"{windows} from read where id > 3 group by name, window(at, '1 minute') having n > 0").collect()
        read.unionByName(read).dropDuplicates(["id"]).orderBy("id").limit(10).collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
