"""``epoch_time()`` in SQL text: the time of the current epoch.

It is a temporary function of the session whose body is a literal. Spark inlines the body when a frame is created, and
each epoch creates new frames. Columns that are cached between epochs only contain the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from epochal.declarations.spark_errors import without_query_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTION: Final = "epoch_time"


def define_epoch_time(spark: SparkSession, time: int) -> None:
    """Define ``epoch_time()`` for new frames as ``time``, in microseconds from the Unix epoch."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {FUNCTION}() RETURNS TIMESTAMP RETURN timestamp_micros({time}L)")


@contextmanager
def temporary_epoch_time(spark: SparkSession) -> Iterator[None]:
    """Remove the function before and after the block, because the session can be a user's session.

    Otherwise a query of the user in this session would read the time of an analysis.
    """
    _remove(spark)  # defined by another pipeline in this session
    try:
        yield
    finally:
        _remove(spark)


def calls_epoch_time(spark: SparkSession, evaluate: Callable[[], object]) -> bool:
    """Return whether ``evaluate``, which creates frames, calls the function. The function must not be defined before.

    Only Spark sees the calls of authors' functions over DataFrames. Raises the errors of ``evaluate`` with the function
    defined.
    """
    try:
        with without_query_log():
            evaluate()
    except Exception as error:
        if not any(FUNCTION in str(cause).casefold() for cause in _chain(error)):
            raise
        define_epoch_time(spark, 0)
        evaluate()
        return True
    return False


def _remove(spark: SparkSession) -> None:
    spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {FUNCTION}")


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__
