"""Working seconds of authors' stateless functions (``map_arrow``, ``map_pandas``), from their tasks to the driver.

These tasks have no handle. Spark sends accumulators to the driver with the end of a task, before the job ends. Seconds
of tasks that Spark repeats are added; Spark Connect has no accumulators.
"""

from __future__ import annotations

from typing import Any

_Seconds = list[tuple[str, float]]
_context_and_accumulator: tuple[Any, Any] | None = None
"""The Spark context of this process and its accumulator."""


class _Listed:
    """Accumulates lists. It has the methods of ``AccumulatorParam``, since a pipeline is described without pyspark."""

    def zero(self, value: _Seconds) -> _Seconds:
        return []

    def addInPlace(self, first: _Seconds, second: _Seconds) -> _Seconds:
        return first + second


def accumulator() -> Any:
    """The accumulator of the running Spark context; ``None`` without one."""
    global _context_and_accumulator
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return None
    if _context_and_accumulator is None or _context_and_accumulator[0] is not context:
        _context_and_accumulator = context, context.accumulator([], _Listed())  # type: ignore[arg-type]
    return _context_and_accumulator[1]


def take() -> dict[str, list[float]]:
    """Seconds of each task since the last call, by verb."""
    found: dict[str, list[float]] = {}
    if _context_and_accumulator is not None:
        values, _context_and_accumulator[1].value = _context_and_accumulator[1].value, []
        for verb, seconds in values:
            found.setdefault(verb, []).append(seconds)
    return found
