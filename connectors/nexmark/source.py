"""Nexmark source and its options. The driver counts events, and tasks generate them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from epochal.connectors.nexmark.model import SCHEMA, Model
from epochal.connectors.numbered import NumberedSource
from epochal.contracts.source import PARTITION, Slice
from epochal.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WITHOUT_LIMIT = 50_000
BATCH = 16_384
"""Number of events in a record batch: 5 MB in Arrow, small enough that a column fits the processor's cache."""


class NexmarkSource(NumberedSource):
    """Nexmark source. With a rate, events fall due at their event times; without one, as fast as they are read."""

    without_limit = WITHOUT_LIMIT
    endless = (
        "Without a number of events Nexmark's have no end, so none of them are the last that is available now. "
        "Give nexmark.source events=.., or limit the run by --epochs."
    )

    def __init__(
        self,
        model: Model,
        rate: float | None = None,
        bound: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(rate, bound, clock)
        self._model = model

    @property
    def kind(self) -> str:
        return "nexmark"

    def schema(self, spark: SparkSession) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(SCHEMA)

    @property
    def partitioned(self) -> bool:
        return self._model.partitions > 1

    def partitions(self) -> frozenset[str]:
        return frozenset(map(str, range(self._model.partitions)))

    def partitions_of(self, slice: Slice) -> frozenset[str]:
        return frozenset(map(str, self._model.partitions_of(slice.start["row"], slice.end["row"])))

    def read_partitioned(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self.read(spark, slice).selectExpr("*", f"CAST(_partition AS STRING) AS {PARTITION}")

    def rows(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        batches = -(-(end - start) // BATCH)
        tasks = max(1, min(batches, spark.sparkContext.defaultParallelism))
        task = MakeEvents(self._model, start, end)
        return spark.range(0, batches, 1, tasks).mapInArrow(task, self.schema(spark))


@dataclass(frozen=True)
class MakeEvents:
    """Function for ``mapInArrow`` over batch numbers. The first batch begins at event ``start``."""

    model: Model
    start: int
    end: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first = self.start + number * BATCH
                yield self.model.events(first, min(first + BATCH, self.end))


_MICROSECOND = timedelta(microseconds=1)
_START = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("milliseconds", "seconds", "minutes", "hours", "days")
_LONGEST_DAYS = 36_500
_LENGTH = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(unit[:-1] for unit in _UNITS)})s?\s*")


def length(name: str, value: object) -> int:
    """Microseconds of ``"10 seconds"`` or of a ``timedelta``. Raises ``OptionError`` for an invalid length, or one of
    more than a century."""
    found: timedelta | None = value if isinstance(value, timedelta) else None
    if isinstance(value, str) and (match := _LENGTH.fullmatch(value.lower())):
        try:
            found = timedelta(**{f"{match[2]}s": float(match[1])})
        except OverflowError:
            found = None
    if found is None or not _MICROSECOND <= found <= timedelta(days=_LONGEST_DAYS):
        raise OptionError(
            f"nexmark.source: {name} is {value!r}; it must be a duration above 0, such as '10 seconds', in "
            f"{', '.join(_UNITS[:-1])} or {_UNITS[-1]}, and at most {_LONGEST_DAYS:,} days."
        )
    return found // _MICROSECOND


def event_time(name: str, value: object) -> int:
    """Microseconds since 1970 of a time in ISO 8601 or a ``datetime``. A time without a zone is UTC.

    Raises ``OptionError`` for an invalid time, or one outside the years 1900 to 2999.
    """
    found: datetime | None = value if isinstance(value, datetime) else None
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            found = None
    if found is None or not 1900 <= found.year <= 2999:
        raise OptionError(
            f"nexmark.source: {name} is {value!r}; it must be a time such as '2015-07-15T00:00:00Z', between 1900 and "
            "2999."
        )
    return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _START) // _MICROSECOND


def whole(name: str, value: object, least: int, most: int) -> int:
    """Check an integer option. Raises ``OptionError`` for a value that is not an integer from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionError(f"nexmark.source: {name} is {value!r}; it must be an integer from {least} to {most}.")
    return value


def share(name: str, value: object) -> float:
    """Check a share. Raises ``OptionError`` for a value that is not a number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise OptionError(f"nexmark.source: {name} is {value!r}; it must be a number from 0 to 1.")
    return float(value)
