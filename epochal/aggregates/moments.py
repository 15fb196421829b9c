"""Variance, covariance and correlation: kept as counts, means and sums of squared distances from the mean.

Such summaries merge without loss of digits for any mean: Chan, Golub and LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances" (1979). Sums of squares would cancel out for values far from zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.aggregates.mergeable import MergeableAggregate, Partial
from epochal.declarations.expressions import Expression, call
from epochal.state.table import Shown

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Variance(MergeableAggregate):
    """``var_samp``, ``var_pop``, ``stddev_samp``, ``stddev_pop``: count, mean and the sum of squares about the mean."""

    argument: Expression
    sample: bool
    root: bool

    def partials(self) -> tuple[Partial, ...]:
        x = self.argument.cast("double")
        count = call("count", x)
        return Partial("count", count), Partial("mean", call("avg", x)), Partial("squares", call("var_pop", x) * count)

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        pair = _Pair(old, new)
        return pair.table(mean=pair.mean("mean"), squares=pair.products("squares", "mean", "mean"))

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        options = {"sample": self.sample, "root": self.root}
        return Shown(name=name, type=type, function="spread", columns=(kept["count"], kept["squares"]), options=options)

    def final(self, partials: Sequence[Expression]) -> Expression:
        count, _, squares = partials
        degrees = (count - 1 if self.sample else count).cast("double")
        value = call("when", count > (1 if self.sample else 0), squares / degrees)
        return call("sqrt", value) if self.root else value


@dataclass(frozen=True, eq=False)
class Covariance(MergeableAggregate):
    """``covar_samp`` and ``covar_pop`` of the rows where neither side is null."""

    x: Expression
    y: Expression
    sample: bool

    def partials(self) -> tuple[Partial, ...]:
        x, y = _both(self.x, self.y)
        count = call("count", x)
        return (
            Partial("count", count),
            Partial("mean_x", call("avg", x)),
            Partial("mean_y", call("avg", y)),
            Partial("products", call("covar_pop", x, y) * count),
        )

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        pair = _Pair(old, new)
        return pair.table(
            mean_x=pair.mean("mean_x"),
            mean_y=pair.mean("mean_y"),
            products=pair.products("products", "mean_x", "mean_y"),
        )

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        options = {"sample": self.sample, "root": False}
        return Shown(
            name=name, type=type, function="spread", columns=(kept["count"], kept["products"]), options=options
        )

    def final(self, partials: Sequence[Expression]) -> Expression:
        count, *_, products = partials
        degrees = (count - 1 if self.sample else count).cast("double")
        return call("when", count > (1 if self.sample else 0), products / degrees)


@dataclass(frozen=True, eq=False)
class Correlation(MergeableAggregate):
    """``corr``: Pearson correlation of the rows where neither side is null; null if a side is constant, as in Spark."""

    x: Expression
    y: Expression

    def partials(self) -> tuple[Partial, ...]:
        x, y = _both(self.x, self.y)
        count = call("count", x)
        return (
            *Covariance(self.x, self.y, sample=False).partials(),
            Partial("squares_x", call("var_pop", x) * count),
            Partial("squares_y", call("var_pop", y) * count),
        )

    def merge(self, old: pa.Table, new: pa.Table) -> pa.Table:
        pair = _Pair(old, new)
        return pair.table(
            mean_x=pair.mean("mean_x"),
            mean_y=pair.mean("mean_y"),
            products=pair.products("products", "mean_x", "mean_y"),
            squares_x=pair.products("squares_x", "mean_x", "mean_x"),
            squares_y=pair.products("squares_y", "mean_y", "mean_y"),
        )

    def shown(self, name: str, type: str, kept: Mapping[str, str]) -> Shown:
        columns = tuple(kept[each] for each in ("count", "products", "squares_x", "squares_y"))
        return Shown(name=name, type=type, function="correlation", columns=columns)

    def final(self, partials: Sequence[Expression]) -> Expression:
        count, _, _, products, squares_x, squares_y = partials
        return call("when", count > 1, call("try_divide", products, call("sqrt", squares_x) * call("sqrt", squares_y)))


def _both(x: Expression, y: Expression) -> tuple[Expression, Expression]:
    """Both as doubles, null if one of them is null.

    Infinities become NaN: Spark's covariance with an infinity depends on the order of rows, which is undefined here.
    """
    x, y = (side.cast("double") for side in (x, y))
    x, y = x + (x - x), y + (y - y)
    both = x.isNotNull() & y.isNotNull()
    return call("when", both, x), call("when", both, y)


class _Pair:
    """Two summaries per row. A summary without counted rows has weight zero."""

    def __init__(self, old: pa.Table, new: pa.Table) -> None:
        self._old, self._new = old, new
        self._n_old, self._n_new = _integers(old["count"]), _integers(new["count"])
        self._count = self._n_old + self._n_new
        total = np.maximum(self._count, 1).astype(np.float64)
        self._share_new = self._n_new / total
        self._cross = self._n_old * self._share_new

    def table(self, **columns: Floats) -> pa.Table:
        """Table of ``count`` and ``columns``, null without counted rows."""
        nothing = self._count == 0
        arrays: dict[str, Any] = {"count": pa.array(self._count)}
        return pa.table(arrays | {name: pa.array(values, mask=nothing) for name, values in columns.items()})

    def mean(self, name: str) -> Floats:
        old, new = self._sides(name)
        with np.errstate(invalid="ignore", over="ignore"):
            moved = old + (new - old) * self._share_new
        return self._either(old, new, moved)

    def products(self, name: str, mean_x: str, mean_y: str) -> Floats:
        """Sum of (x - mean x) (y - mean y) over the rows of both sides."""
        old, new = self._sides(name)
        (x_old, x_new), (y_old, y_new) = self._sides(mean_x), self._sides(mean_y)
        with np.errstate(invalid="ignore", over="ignore"):
            merged = old + new + (x_new - x_old) * (y_new - y_old) * self._cross
        return self._either(old, new, merged)

    def _sides(self, name: str) -> tuple[Floats, Floats]:
        return _floats(self._old[name]), _floats(self._new[name])

    def _either(self, old: Floats, new: Floats, both: Floats) -> Floats:
        """``both``, or the other side if one side has no rows, so that infinities are not combined with zeros."""
        return np.where(self._n_old == 0, new, np.where(self._n_new == 0, old, both))


def _integers(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    values: npt.NDArray[np.int64] = column.fill_null(0).to_numpy()
    return values


def _floats(column: pa.ChunkedArray) -> Floats:
    values: Floats = column.fill_null(0.0).to_numpy()
    return values
