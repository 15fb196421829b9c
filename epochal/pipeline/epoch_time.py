"""``epoch_time()`` in whatever is written in SQL: the time of the epoch that is computed.

It is a temporary function of the session whose body is a literal. Spark puts the body in place of each call as soon as
a frame is made, and every epoch makes its own; columns that are kept between epochs only hold the call.
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
    """From now on ``epoch_time()`` is ``time``, in microseconds from the Unix epoch, in frames that are made."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION {FUNCTION}() RETURNS TIMESTAMP RETURN timestamp_micros({time}L)")


@contextmanager
def temporary_epoch_time(spark: SparkSession) -> Iterator[None]:
    """The function is not defined at the beginning, and what the body defines is removed: the session may be a user's.

    A query that the user writes in the session would otherwise read the time of an analysis.
    """
    _remove(spark)  # of another pipeline that runs in the session
    try:
        yield
    finally:
        _remove(spark)


def calls_epoch_time(spark: SparkSession, evaluate: Callable[[], object]) -> bool:
    """Whether ``evaluate``, which makes frames, calls the function, where it was not defined before.

    Only Spark sees what an author's functions over DataFrames call. Raises what ``evaluate`` raises with it defined.
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
