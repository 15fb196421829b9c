"""Generator source for experiments and tests: deterministic rows, at a rate, up to a bound."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from epochal.connectors.numbered import NumberedSource
from epochal.errors import OptionError, SchemaError
from epochal.pipeline.definitions import SourceDefinition, check_options, check_positive
from epochal.state.type_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

WITHOUT_LIMIT = 10_000
"""Number of rows in a slice if neither a rate nor the engine limits it."""

_VARYING = re.compile(
    r"\b(rand|randn|random|randstr|uniform|uuid|shuffle|now|current_\w+|localtimestamp|unix_timestamp|input_file_name|"
    r"monotonically_increasing_id|spark_partition_id)\s*\(|\b(current_(?:date|timestamp|time|user))\b",
    re.IGNORECASE,
)


def source(
    columns: Mapping[str, str],
    *,
    rate: float | None = None,
    bound: int | None = None,
    seed: int = 0,
    punctuation: int | None = None,
    **options: Any,
) -> SourceDefinition:
    """Generate rows from SQL expressions over ``id`` (0, 1, 2, ..) and ``noise`` (a pseudo-random bigint >= 0)::

        generator.source({"sensor": "noise % 100", "time": "timestamp_seconds(id)"}, rate=1000, bound=60_000)

    - ``rate``: rows per second.
    - ``bound``: number of rows after which the source ends.
    - ``seed``: seed of ``noise``.
    - ``punctuation``: number of rows per epoch. Epochs then end only at multiples of this number.

    Raises ``OptionError``.
    """
    check_options("generator.source", options, ("columns", "rate", "bound", "seed", "punctuation"))
    check_positive("generator.source", "punctuation", punctuation, whole=True)
    check_positive("generator.source", "rate", rate, whole=False)
    check_positive("generator.source", "bound", bound, whole=True)
    if not columns:
        raise OptionError("generator.source needs columns: {'k': 'id % 1000'}, SQL expressions over id and noise.")
    for name, expression in columns.items():
        varying = _VARYING.search(str(expression))
        if varying:
            raise OptionError(
                f"generator.source: column {name!r} uses {varying[1] or varying[2]}, which returns other rows at each "
                "evaluation. Use expressions over id and noise."
            )
    return SourceDefinition(
        kind="generator",
        make=partial(GeneratorSource, dict(columns), rate, bound, seed, punctuation=punctuation),
        description={
            "columns": dict(columns),
            "rate": rate,
            "bound": bound,
            "seed": seed,
            **({} if punctuation is None else {"punctuation": punctuation}),
        },
    )


class GeneratorSource(NumberedSource):
    """Generator source. Evaluates the columns' expressions over the row numbers."""

    without_limit = WITHOUT_LIMIT
    endless = (
        "A generator without a bound has rows without end, so none of them are the last that is available now. "
        "Give generator.source a bound, or limit the run by --epochs."
    )

    def __init__(
        self,
        columns: dict[str, str],
        rate: float | None = None,
        bound: int | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        punctuation: int | None = None,
    ) -> None:
        super().__init__(rate, bound, clock, punctuation)
        self._columns = columns
        self._seed = seed

    @property
    def kind(self) -> str:
        return "generator"

    def schema(self, spark: SparkSession) -> StructType:
        return self.rows(spark, 0, 0).schema

    def rows(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        from pyspark.errors import PySparkException

        frame = spark.range(start, end).selectExpr("id", f"shiftrightunsigned(xxhash64(id, {self._seed}L), 1) AS noise")
        try:
            return frame.selectExpr(*(f"{expression} AS {quoted(name)}" for name, expression in self._columns.items()))
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise SchemaError(
                f"The generator's columns cannot be computed: {reason} Use expressions over id and noise."
            ) from error
