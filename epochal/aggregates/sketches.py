"""Approximate aggregates, kept as sketches of Apache DataSketches: Spark fills and reads them, tasks merge them.

A sketch is one binary column with the same format in all languages of DataSketches.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa

from epochal.aggregates.mergeable import MergeableAggregate, Partial, TypeOf
from epochal.declarations.expressions import Expression, call
from epochal.errors import PipelineError
from epochal.state.table import Shown
from epochal.state.type_names import decimal_of

Union: TypeAlias = Callable[[bytes, bytes], bytes]

USUAL_DEVIATION = 0.05
"""Spark's default for ``approx_count_distinct``."""
USUAL_ACCURACY = 10_000
"""Spark's default for ``percentile_approx``."""
LARGEST_ACCURACY = 20_000
"""Maximum accuracy. The largest sketch of the library, with k = 65535, has a rank error of 1 / 20990."""
_DIGITS_OF_DOUBLE = 15
_WHOLE = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True, eq=False)
class _Sketch(MergeableAggregate):
    argument: Expression

    named_apart = True

    @abstractmethod
    def _sketch(self) -> Expression:
        """Spark aggregate that creates a sketch of a slice."""

    @abstractmethod
    def _union(self) -> Union:
        """Function that merges two serialised sketches."""

    def partials(self) -> tuple[Partial, ...]:
        return (Partial("sketch", self._sketch()),)

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        """Merge by key, with the library; a key without state keeps the slice's sketch."""
        union = self._union()
        merged = [
            right if left is None else left if right is None else union(left, right)
            for left, right in zip(old["sketch"].to_pylist(), new["sketch"].to_pylist(), strict=True)
        ]
        return pa.table({"sketch": pa.array(merged, pa.binary())})


@dataclass(frozen=True, eq=False)
class DistinctCount(_Sketch):
    """``approx_count_distinct``: a HyperLogLog sketch of 64-bit hashes, of any type that Spark can hash."""

    deviation: float = USUAL_DEVIATION

    @property
    def _size(self) -> int:
        """Binary logarithm of the number of registers: a union's error is 1.04 / sqrt(registers)."""
        return min(max(math.ceil(2 * math.log2(1.04 / self.deviation)), 4), 21)

    def _sketch(self) -> Expression:
        hashed = call("when", self.argument.isNotNull(), call("xxhash64", self.argument))
        return call("hll_sketch_agg", hashed, call("lit", self._size))

    def _union(self) -> Union:
        # Imported here, since only tasks need the library.
        from datasketches import hll_sketch, hll_union, tgt_hll_type

        def union(left: bytes, right: bytes) -> bytes:
            merged = hll_union(self._size)
            merged.update(hll_sketch.deserialize(left))
            merged.update(hll_sketch.deserialize(right))
            return bytes(merged.get_result(tgt_hll_type.HLL_8).serialize_compact())

        return union

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        return Shown(name=name, type=type, function="distinct", columns=(kept["sketch"],))

    def final(self, partials: Sequence[Expression]) -> Expression:
        return call("coalesce", call("hll_sketch_estimate", partials[0]), call("lit", 0).cast("bigint"))


@dataclass(frozen=True, eq=False)
class Percentile(_Sketch):
    """``percentile_approx``: a KLL sketch of doubles. NaN is left out. With few values it is exact.

    The rank of a result is within ``1 / accuracy`` of the requested one, with a probability of 99 %.
    """

    percentage: Any
    accuracy: int = USUAL_ACCURACY
    type: str = "double"

    cost = (
        "keeps a sketch of up to 70 bytes * accuracy per key (default accuracy: 10000), which every epoch with rows "
        "of the key rewrites. Set an accuracy of 100 or 1000 if that suffices."
    )

    def resolved(self, type_of: TypeOf) -> Percentile:
        type = type_of(self.argument)
        if type in (*_WHOLE, "float", "double", "date", "timestamp"):
            return replace(self, type=type)
        decimal = decimal_of(type)
        if decimal is not None and decimal[0] <= _DIGITS_OF_DOUBLE:
            return replace(self, type=type)
        raise PipelineError(
            f"percentile_approx does not support {type}: its sketch stores doubles. "
            f"Cast the argument to double, decimal({_DIGITS_OF_DOUBLE},s) or timestamp."
        )

    @property
    def _k(self) -> int:
        """The sketch's parameter: its rank error is 2.296 / k ** 0.9723, single-sided."""
        return max(math.ceil(math.pow(2.296 * self.accuracy, 1 / 0.9723)), 8)

    def _sketch(self) -> Expression:
        value = self.argument
        if self.type == "date":
            value = call("unix_date", value)
        elif self.type == "timestamp":
            value = call("unix_micros", value)
        return call("kll_sketch_agg_double", value.cast("double"), call("lit", self._k))

    def _union(self) -> Union:
        from datasketches import kll_doubles_sketch

        def union(left: bytes, right: bytes) -> bytes:
            merged = kll_doubles_sketch.deserialize(left)
            merged.merge(kll_doubles_sketch.deserialize(right))
            return bytes(merged.serialize())

        return union

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        several = isinstance(self.percentage, (list, tuple))
        options = {"percentages": list(self.percentage) if several else [self.percentage]}
        return Shown(name=name, type=type, function="percentiles", columns=(kept["sketch"],), options=options)

    def final(self, partials: Sequence[Expression]) -> Expression:
        sketch = partials[0]
        filled = call("when", call("kll_sketch_get_n_double", sketch) > 0, sketch)
        if isinstance(self.percentage, (list, tuple)):
            found = [self._quantile(filled, share) for share in self.percentage]
            # As in Spark, no element is nullable.
            return call("when", filled.isNotNull(), call("array_compact", call("array", *found)))
        return self._quantile(filled, self.percentage)

    def _quantile(self, sketch: Expression, share: float) -> Expression:
        value = call("kll_sketch_get_quantile_double", sketch, call("lit", float(share)))
        if self.type == "date":
            return call("date_from_unix_date", value.cast("int"))
        if self.type == "timestamp":
            return call("timestamp_micros", value.cast("bigint"))
        if self.type == "bigint":  # The largest bigint is not a double, and the next double is not a bigint.
            return call("coalesce", value.try_cast("bigint"), call("when", sketch.isNotNull(), call("lit", 2**63 - 1)))
        return value.cast(self.type)
