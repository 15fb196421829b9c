"""The functions of ``pyspark.sql.functions``, for building pipelines without a Spark session::

    from epochal import functions as F

    flights.where(F.col("delay") > 0).key_by("origin").aggregate("delays", flights=F.count("*"), worst=F.max("delay"))

Names and arguments are those of Spark; see its documentation. Some aggregates have an additional argument: ``order_by``
for ``first`` and ``last``, ``limit`` for aggregates that collect values. Calls are recorded and replayed when the
pipeline runs. Inside a function of ``transform`` these are Spark's own functions, so that one import is sufficient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from epochal.declarations.expressions import Expression, record

__all__: list[str] = []


def __getattr__(name: str) -> Callable[..., Expression]:
    if name.startswith("_"):
        raise AttributeError(f"module 'epochal.functions' has no attribute {name!r}")
    return partial(record, name)
