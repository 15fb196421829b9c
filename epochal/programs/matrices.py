"""``Matrix`` (sparse) and ``DenseMatrix``: numbers by row and column, with default zero."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Generic

import numpy as np
import numpy.typing as npt

from epochal.programs.state import OVERFLOWED, Column, ElementModel, Key, State, legible, reads, total, writes
from epochal.programs.value_types import FLOAT, INT, NotAValueType, Sequence, ValueType, number_type
from epochal.programs.vector import Number, Vector, _of, _typed

LARGEST_COLUMN = 1_000_000
"""Maximum number of columns of a dense matrix, whose rows store all columns up to the last one."""


class Matrix(State, Generic[Number]):
    """A sparse matrix: zeros are not stored. ``Matrix[int]``; ``Matrix`` contains floats.

    Partitioned by row, or by column (``PartitionedByColumn[Matrix]``). Rows of its state table: row, column → value;
    partitioned by column: column, row → value.
    """

    partitionings: ClassVar[tuple[str, ...]] = ("row", "column")
    zero_is_none: ClassVar[bool] = True

    def __init__(self) -> None:
        self._number: ValueType = FLOAT
        self._by_column = False
        self._rows: dict[int, dict[int, Any]] = {}
        self._arrays: tuple[npt.NDArray[Any], ...] | None = None

    @classmethod
    def model(cls, arguments: tuple[Any, ...], by: str | None) -> ElementModel:
        row, column = Column("row", INT), Column("column", INT)
        first, second = (column, row) if by == "column" else (row, column)
        return ElementModel((first,), (second,), (Column("value", number_type(arguments)),))

    @reads(row="row", column="column")
    def get_element(self, row: int, column: int) -> Number:
        """The element, or zero."""
        INT.conform(row, "a row"), INT.conform(column, "a column")
        value: Number = legible(self._rows.get(row, {}).get(column, self._zero), self._at(row, column))
        return value

    @reads(row="row")
    def row(self, row: int) -> Vector[Number]:
        """The row, as a value."""
        elements = self._rows.get(INT.conform(row, "a row"), {})
        return self._vector({column: legible(elements[column], self._at(row, column)) for column in sorted(elements)})

    @reads(column="column")
    def column(self, column: int) -> Vector[Number]:
        """The column, as a value."""
        INT.conform(column, "a column")
        found = {row: elements[column] for row, elements in sorted(self._rows.items()) if column in elements}
        return self._vector({row: legible(value, self._at(row, column)) for row, value in found.items()})

    @reads()
    def multiply(self, vector: Vector[Number]) -> Vector[Number]:
        """The matrix times the vector: the inner product of each row with it, summed by column."""
        rows, columns, values = self._as_arrays()
        indices = np.fromiter((index for index, _ in vector.items()), np.int64, len(vector))
        factors: list[Any] = [factor for _, factor in vector.items()]
        place = np.searchsorted(indices, columns)
        place[place == len(indices)] = 0
        here = indices[place] == columns if len(indices) else np.zeros(len(columns), bool)
        if self._number is INT:
            return self._exact_product(rows[here], values[here], place[here], factors)
        products = values[here] * np.array(factors, np.float64)[place[here]]
        which, where = np.unique(rows[here], return_inverse=True)
        sums = np.bincount(where, products, len(which)) if len(which) else np.zeros(0)
        return self._vector(dict(zip(which.tolist(), sums.tolist(), strict=True)))

    @reads()
    def items(self) -> Iterator[tuple[tuple[int, int], Number]]:
        """((row, column), value) of each nonzero element, by row and column."""
        return iter([(key, legible(value, self._at(*key))) for key, value in self._sorted()])

    @writes(row="row", column="column")
    def set_element(self, row: int, column: int, value: Number) -> None:
        """Set the element; zero removes it."""
        INT.conform(row, "a row"), INT.conform(column, "a column")
        self._put(row, column, self._number.conform(value, "a value"))

    @writes(row="row", column="column")
    def add(self, row: int, column: int, amount: Number) -> None:
        """Add to the element. Reading a sum that exceeds 64 bits is an error."""
        INT.conform(row, "a row"), INT.conform(column, "a column")
        before = self._rows.get(row, {}).get(column, self._zero)
        self._put(row, column, total(self._number, before, self._number.conform(amount, "an amount")))

    @writes(row="row")
    def set_row(self, row: int, values: Vector[Number]) -> None:
        """Replace the row by ``values``."""
        INT.conform(row, "a row")
        new = _typed(self._number, values)
        for column in list(self._rows.get(row, {})):
            self._put(row, column, 0)
        for column, value in new.items():
            self._put(row, column, value)

    @writes()
    def clear(self) -> None:
        """Remove all elements."""
        for (row, column), _ in list(self._sorted()):
            self._put(row, column, 0)

    def rows(self) -> Iterator[tuple[Key, Any]]:
        elements = (((self._key(row, column)), value) for (row, column), value in self._sorted())
        return iter(sorted(elements, key=lambda element: element[0]) if self._by_column else elements)

    def load(self, rows: Iterable[tuple[Key, Any]]) -> None:
        self._arrays = None
        for (first, second), value in rows:
            row, column = (second, first) if self._by_column else (first, second)
            self._rows.setdefault(row, {})[column] = value

    def _row(self, key: Key) -> Any:
        row, column = reversed(key) if self._by_column else key
        return self._rows.get(row, {}).get(column)

    def _declare(self, model: ElementModel) -> None:
        self._number = model.value[0].type
        self._by_column = model.key[0].name == "column"

    @property
    def _zero(self) -> Any:
        return 0.0 if self._number is FLOAT else 0

    def _key(self, row: int, column: int) -> Key:
        return (column, row) if self._by_column else (row, column)

    def _at(self, row: int, column: int) -> str:
        return f"{self._name}, row {row}, column {column}"

    def _sorted(self) -> Iterator[tuple[tuple[int, int], Any]]:
        for row in sorted(self._rows):
            elements = self._rows[row]
            for column in sorted(elements):
                yield (row, column), elements[column]

    def _put(self, row: int, column: int, value: Any) -> None:
        self._touch(self._key(row, column))
        self._arrays = None
        if value != 0:
            self._rows.setdefault(row, {})[column] = value
            return
        elements = self._rows.get(row, {})
        elements.pop(column, None)
        if not elements:
            self._rows.pop(row, None)

    def _vector(self, elements: dict[int, Any]) -> Vector[Number]:
        return _of(self._number, {index: value for index, value in elements.items() if value != 0})

    def _as_arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Rows, columns and values, by row and column, cached until the next write. Integers are Python objects: they
        are exact, so that overflows are detected."""
        if self._arrays is None:
            elements = list(self.items())
            rows = np.fromiter((key[0] for key, _ in elements), np.int64, len(elements))
            columns = np.fromiter((key[1] for key, _ in elements), np.int64, len(elements))
            values = np.array([value for _, value in elements], np.float64 if self._number is FLOAT else np.int64)
            self._arrays = (rows, columns, values)
        return self._arrays

    def _exact_product(
        self, rows: npt.NDArray[Any], values: npt.NDArray[Any], place: npt.NDArray[Any], factors: list[int]
    ) -> Vector[Number]:
        factor = np.array([INT.conform(each, "an element of the vector") for each in factors], np.int64)[place]
        bound = float(np.abs(values.astype(np.float64)).max(initial=0)) * float(
            np.abs(factor.astype(np.float64)).max(initial=0)
        )
        if bound * max(len(values), 1) >= 2.0**62:
            values, factor = values.astype(object), factor.astype(object)
        products = values * factor
        which, starts = np.unique(rows, return_index=True)
        sums = np.add.reduceat(products, starts) if len(starts) else np.zeros(0, np.int64)
        what = f"an element of {self._name} times the vector"
        return self._vector({int(row): INT.conform(int(sum), what) for row, sum in zip(which, sums, strict=True)})


class DenseMatrix(State):
    """Rows of floats, up to the last element that was set. For rows with few zeros.

    Partitioned by row. Rows of its state table: row → values, an array.
    """

    partitionings: ClassVar[tuple[str, ...]] = ("row",)

    def __init__(self) -> None:
        self._rows: dict[int, npt.NDArray[np.float64]] = {}

    @classmethod
    def model(cls, arguments: tuple[Any, ...], by: str | None) -> ElementModel:
        if arguments:
            raise NotAValueType("a DenseMatrix contains floats: remove the brackets")
        return ElementModel((Column("row", INT),), (), (Column("values", Sequence(FLOAT)),))

    @reads(row="row")
    def get_element(self, row: int, column: int) -> float:
        """The element, or zero."""
        values = self._rows.get(INT.conform(row, "a row"))
        _column(column)
        return float(values[column]) if values is not None and column < len(values) else 0.0

    @reads(row="row")
    def row(self, row: int) -> Vector[float]:
        """The row, as a value."""
        values = self._rows.get(INT.conform(row, "a row"))
        return Vector.dense(values.tolist() if values is not None else ())

    @reads()
    def multiply(self, vector: Vector[float]) -> Vector[float]:
        """The matrix times the vector."""
        products: dict[int, float] = {}
        for row in sorted(self._rows):
            values = self._rows[row]
            near = [(index, factor) for index, factor in vector.items() if 0 <= index < len(values)]
            indices, factors = np.array([i for i, _ in near], np.int64), np.array([f for _, f in near], np.float64)
            products[row] = float(np.add.reduce(values[indices] * factors))
        return Vector(products)

    @writes(row="row", any_value=False)
    def set_element(self, row: int, column: int, value: float) -> None:
        """Set the element."""
        INT.conform(row, "a row")
        self._long_enough(row, _column(column))[column] = FLOAT.conform(value, "a value")

    @writes(row="row", any_value=False)
    def add(self, row: int, column: int, amount: float) -> None:
        """Add to the element."""
        INT.conform(row, "a row")
        self._long_enough(row, _column(column))[column] += FLOAT.conform(amount, "an amount")

    @writes(row="row")
    def set_row(self, row: int, values: Vector[float]) -> None:
        """Replace the row by ``values``."""
        INT.conform(row, "a row")
        new = _typed(FLOAT, values)
        length = max((_column(index) for index, _ in new.items()), default=-1) + 1
        self._touch((row,))
        array = np.zeros(length)
        for index, value in new.items():
            array[index] = value
        self._rows[row] = array

    @writes(row="row")
    def add_row(self, row: int, amounts: Vector[float]) -> None:
        """Add to each element of the row."""
        INT.conform(row, "a row")
        typed = _typed(FLOAT, amounts)
        length = max((_column(index) for index, _ in typed.items()), default=-1)
        if length < 0:
            return
        values = self._long_enough(row, length)
        for index, amount in typed.items():
            values[index] += amount

    @writes(row="row")
    def remove_row(self, row: int) -> None:
        """Remove the row. A missing row is ignored."""
        self._touch((INT.conform(row, "a row"),))
        self._rows.pop(row, None)

    def rows(self) -> Iterator[tuple[Key, Any]]:
        return (((row,), tuple(self._rows[row].tolist())) for row in sorted(self._rows))

    def load(self, rows: Iterable[tuple[Key, Any]]) -> None:
        self._rows.update((key[0], np.array(values, np.float64)) for key, values in rows)

    def _row(self, key: Key) -> Any:
        values = self._rows.get(key[0])
        return None if values is None else tuple(values.tolist())

    def _declare(self, model: ElementModel) -> None:
        pass

    def _long_enough(self, row: int, column: int) -> npt.NDArray[np.float64]:
        self._touch((row,))
        values = self._rows.get(row, np.zeros(0))
        if column >= len(values):
            values = np.concatenate([values, np.zeros(column + 1 - len(values))])
            self._rows[row] = values
        return values


def _column(column: int) -> int:
    INT.conform(column, "a column")
    if not 0 <= column < LARGEST_COLUMN:
        raise IndexError(f"column {column} of a DenseMatrix is not in 0 to {LARGEST_COLUMN - 1}: use a Matrix")
    return column


__all__ = ["OVERFLOWED", "DenseMatrix", "Matrix"]
