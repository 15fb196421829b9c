"""Spark's own redaction of settings, with the pattern that every session has."""

from __future__ import annotations

from pyspark.sql import SparkSession

from epochal.contracts.configuration import Configuration
from epochal.engine.session import EXECUTOR_VARIABLE, REDACTION, session_settings
from epochal.store_variables import REDACTED_BY_SPARK
from tests.unit.test_store_variables import OPEN_NAMES, SECRET_NAMES


def test_spark_redacts_the_secrets_of_executors_and_no_other_variables(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pattern = jvm.java.util.regex.Pattern.compile(session_settings(Configuration())[REDACTION])
    shown = [name for name in SECRET_NAMES if not pattern.matcher(EXECUTOR_VARIABLE + name).find()]
    assert shown == []
    # Spark's own pattern also covers names of files with tokens and credentials.
    plain = [name for name in OPEN_NAMES if "TOKEN" not in name and "CREDENTIAL" not in name]
    assert [name for name in plain if pattern.matcher(EXECUTOR_VARIABLE + name).find()] == []
    assert pattern.matcher("spark.hadoop.fs.azure.account.key.streams.dfs.core.windows.net").find()
    assert not pattern.matcher("spark.sql.shuffle.partitions").find()


def test_the_pattern_contains_that_of_spark(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    package = getattr(getattr(jvm.org.apache.spark.internal.config, "package$"), "MODULE$")
    assert package.SECRET_REDACTION_PATTERN().defaultValueString() == REDACTED_BY_SPARK
