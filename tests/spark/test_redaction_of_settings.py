"""Spark's own redaction of settings, with the pattern that every session has."""

from __future__ import annotations

from pyspark.sql import SparkSession

from epochal.contracts.configuration import Configuration
from epochal.engine.session import EXECUTOR_VARIABLE, REDACTION, session_settings
from epochal.store_variables import REDACTED_BY_SPARK, SECRET_ENDINGS

OPEN_NAMES = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_ENDPOINT_URL",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_CLIENT_ID",
]


def test_spark_redacts_the_secrets_of_executors_and_no_other_variables(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pattern = jvm.java.util.regex.Pattern.compile(session_settings(Configuration())[REDACTION])
    names = ["HTTPS_PROXY", "http_proxy", *(f"AZURE_STORAGE_{ending}" for ending in SECRET_ENDINGS)]
    assert [name for name in names if not pattern.matcher(EXECUTOR_VARIABLE + name).find()] == []
    assert [name for name in OPEN_NAMES if pattern.matcher(EXECUTOR_VARIABLE + name).find()] == []
    assert pattern.matcher("spark.hadoop.fs.azure.account.key.streams.dfs.core.windows.net").find()
    assert not pattern.matcher("spark.sql.shuffle.partitions").find()


def test_the_pattern_contains_that_of_spark(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    package = getattr(getattr(jvm.org.apache.spark.internal.config, "package$"), "MODULE$")
    assert package.SECRET_REDACTION_PATTERN().defaultValueString() == REDACTED_BY_SPARK
