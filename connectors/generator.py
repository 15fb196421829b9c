"""A source of made-up rows: the same rows each time, at a rate, up to a bound. For trying things out and for tests."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.contracts.source import Slice, SliceLimits, Source
from epochal.errors import OptionError, SchemaError
from epochal.pipeline.definitions import SourceDefinition
from epochal.pipeline.options import check_options, check_positive
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WITHOUT_LIMIT = 10_000
"""Rows of a slice when neither a rate nor the engine says how many."""

_VARYING = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|now|current_\w+|localtimestamp|unix_timestamp|input_file_name|"
    r"monotonically_increasing_id|spark_partition_id)\s*\(|\b(current_(?:date|timestamp|time|user))\b",
    re.IGNORECASE,
)


def source(
    columns: Mapping[str, str], *, rate: float | None = None, bound: int | None = None, seed: int = 0, **options: Any
) -> SourceDefinition:
    """Rows made by SQL expressions over ``id`` (0, 1, 2, ..) and ``noise`` (a bigint from 0 on that looks random)::

        generator.source({"sensor": "noise % 100", "time": "timestamp_seconds(id)"}, rate=1000, bound=60_000)

    ``rate`` is rows per second, ``bound`` the number of rows after which the source ends, ``seed`` changes ``noise``.
    Raises ``OptionError``.
    """
    check_options("generator.source", options, ("columns", "rate", "bound", "seed"))
    check_positive("generator.source", "rate", rate, whole=False)
    check_positive("generator.source", "bound", bound, whole=True)
    if not columns:
        raise OptionError("generator.source needs columns: {'k': 'id % 1000'}, SQL expressions over id and noise.")
    for name, expression in columns.items():
        varying = _VARYING.search(str(expression))
        if varying:
            raise OptionError(
                f"generator.source: column {name!r} uses {varying[1] or varying[2]}, which gives other rows each time. "
                "Use expressions over id and noise."
            )
    return SourceDefinition(
        kind="generator",
        make=partial(GeneratorSource, dict(columns), rate, bound, seed),
        description={"columns": dict(columns), "rate": rate, "bound": bound, "seed": seed},
    )


class GeneratorSource(Source):
    """Positions count rows. With a rate, rows fall due from the first ``plan`` of an attempt on."""

    def __init__(
        self,
        columns: dict[str, str],
        rate: float | None = None,
        bound: int | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._columns = columns
        self._rate = rate
        self._bound = bound
        self._seed = seed
        self._clock = clock
        self._position = 0
        self._began: tuple[float, int] | None = None

    @property
    def kind(self) -> str:
        return "generator"

    @property
    def ended(self) -> bool:
        return self._bound is not None and self._position >= self._bound

    def schema(self, spark: SparkSession) -> StructType:
        return self._rows(spark, 0, 0).schema

    def restore(self, checkpoint: dict[str, Any] | None, slices: Sequence[Slice]) -> None:
        self._position = int((checkpoint or {}).get("row", 0))
        for slice in slices:
            self.accept(slice)

    def checkpoint(self) -> dict[str, Any]:
        return {"row": self._position}

    def limit_to_available(self) -> None:
        """All rows up to the bound are there, whatever the rate."""
        if self._bound is None:
            raise OptionError(
                "A generator without a bound has rows without end, so none of them are the last that is available now. "
                "Give generator.source a bound, or limit the run by --epochs."
            )
        self._rate = None

    def plan(self, limits: SliceLimits) -> Slice | None:
        if self._bound is not None and self._position >= self._bound:
            return None
        end = self._due(limits)
        if limits.max_records is not None:
            end = min(end, self._position + limits.max_records)
        if self._bound is not None:
            end = min(end, self._bound)
        if end <= self._position:
            return None
        return Slice(start={"row": self._position}, end={"row": end}, rows=end - self._position)

    def accept(self, slice: Slice) -> None:
        self._position = int(slice.end["row"])

    def read(self, spark: SparkSession, slice: Slice) -> DataFrame:
        return self._rows(spark, int(slice.start["row"]), int(slice.end["row"]))

    def acknowledge(self, slice: Slice) -> None:
        """Nothing to acknowledge."""

    def _due(self, limits: SliceLimits) -> int:
        if self._rate is None:
            return self._position + (limits.max_records or WITHOUT_LIMIT)
        if self._began is None:
            self._began = (self._clock(), self._position)
        since, first = self._began
        return first + int((self._clock() - since) * self._rate)

    def _rows(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        from pyspark.errors import PySparkException

        frame = spark.range(start, end).selectExpr("id", f"shiftrightunsigned(xxhash64(id, {self._seed}L), 1) AS noise")
        try:
            return frame.selectExpr(*(f"{expression} AS {quoted(name)}" for name, expression in self._columns.items()))
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise SchemaError(
                f"The generator's columns cannot be made: {reason} Use expressions over id and noise."
            ) from error
