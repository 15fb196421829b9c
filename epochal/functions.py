"""The functions of ``pyspark.sql.functions``, for building pipelines where no Spark session runs::

    from epochal import functions as F

    flights.where(F.col("delay") > 0).key_by("origin").aggregate("delays", flights=F.count("*"), worst=F.max("delay"))

Every name and argument is Spark's; see its documentation. Aggregates take two more where Spark leaves something open:
``first`` and ``last`` an ``order_by``, those that collect values a ``limit``. A call is recorded, and replayed when the
pipeline runs. In a function given to ``transform`` these are Spark's own functions, so that one import serves both.
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
