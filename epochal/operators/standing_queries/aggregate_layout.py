"""The layout of a group's partial aggregates: integers and doubles that are added, and integers with their minimum.

==============  ========================================================================================
first           ``integers``: the rows of the group
count(x)        ``integers``: how many are not null
sum, avg        ``integers``: how many are not null; of integers and decimals also the sum of their lower 32
                bits and that of the others, so that no sum is ever inexact; of floats ``doubles``: the sum
min, max        ``integers``: how many are not null; ``least``: for ``min``, the value as an integer whose order
                is that of the values, of ``max`` its complement
==============  ========================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.contracts.conditions import as_datetime
from epochal.operators.standing_queries.evaluation import Mask, Rows, arrow_type, remembered, whole_numbers
from epochal.standing_queries.query import AVERAGED, COUNTED, GREATEST, LEAST, SUMMED, Aggregate, Query
from epochal.standing_queries.types import FLOATS
from epochal.state.json_form import from_json, to_json
from epochal.state.table import Column
from epochal.state.type_names import decimal_of

Integers = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]
NOTHING: Final = 2**63 - 1
"""The minimum of no values."""
_BIGINT: Final = 2**63
_EXACT: Final = Context(prec=80)


@dataclass(frozen=True)
class Place:
    """The positions of the partials of one aggregate: ``integers`` and the others are the first positions in their
    lists."""

    aggregate: Aggregate
    integers: int
    doubles: int
    least: int

    @property
    def is_exact(self) -> bool:
        """True if a sum is over integers or decimals."""
        assert self.aggregate.argument is not None  # only counts have none
        return self.aggregate.argument.type not in FLOATS


@dataclass(frozen=True)
class Layout:
    """The layout of all groups of a query. ``integers`` and the others: the lengths of the lists."""

    places: tuple[Place, ...]
    integers: int
    doubles: int
    least: int


@lru_cache(maxsize=4096)
def layout_of(query: Query) -> Layout:
    places = []
    integers, doubles, least = 1, 0, 0
    for aggregate in query.aggregates:
        place = Place(aggregate, integers, doubles, least)
        places.append(place)
        if aggregate.argument is None:
            continue
        integers += 1
        if aggregate.function in (SUMMED, AVERAGED):
            integers += 2 * place.is_exact
            doubles += not place.is_exact
        elif aggregate.function in (LEAST, GREATEST):
            least += 1
    return Layout(tuple(places), integers, doubles, least)


def ordered(values: pa.Array) -> Integers:
    """Values as integers in the same order; the integer of null is undefined."""
    type = values.type
    if pa.types.is_floating(type):
        doubles = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
        doubles = np.where(np.isnan(doubles), np.nan, doubles)
        bits = doubles.view(np.int64)
        found: Integers = np.where(bits < 0, bits ^ (_BIGINT - 1), bits)
        return found
    return whole_numbers(values)


def results(query: Query, integers: Integers, doubles: Doubles, least: Integers) -> tuple[list[Any], list[str | None]]:
    """For each group the values of its aggregates, in order, in JSON form, and an error, if there is one.

    The arrays have a row for each group.
    """
    columns: list[list[Any]] = []
    wrong: list[list[str]] = [[] for _ in range(len(integers))]
    for place in layout_of(query).places:
        columns.append(_values(place, integers, doubles, least, wrong))
    rows = list(map(list, zip(*columns, strict=True))) if len(integers) else []
    return rows, ["; ".join(found) or None for found in wrong]


def shown(query: Query, values: Sequence[Sequence[Any]], before: Mapping[str, Sequence[Any]]) -> list[str]:
    """The JSON of results: aggregates, and the remembered values. Arguments as in :func:`fulfils`."""
    columns = {aggregate.name: [row[place] for row in values] for place, aggregate in enumerate(query.aggregates)}
    columns |= {each.name: list(before[each.of]) if values else [] for each in query.remembered}
    rows = zip(*columns.values(), strict=True)
    return [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, separators=(",", ":")) for row in rows]


def fulfils(
    query: Query,
    values: Sequence[Sequence[Any]],
    errors: Sequence[str | None],
    before: Mapping[str, Sequence[Any]],
) -> Mask:
    """A mask of the groups that fulfil ``HAVING`` or have an error. ``values`` and ``errors``: from :func:`results`;
    ``before``: the previous values of recalled aggregates, in the same form."""
    if not query.having or not values:
        return np.ones(len(values), np.bool_)
    columns = {
        aggregate.name: _typed(aggregate, [row[place] for row in values])
        for place, aggregate in enumerate(query.aggregates)
    }
    columns |= {remembered(aggregate.name): _typed(aggregate, before[aggregate.name]) for aggregate in query.recalled}
    found = Rows(pa.RecordBatch.from_pydict(columns))
    holds = np.ones(len(values), np.bool_)
    for condition in query.having:
        holds &= found.mask(condition)
    return holds | np.array([error is not None for error in errors], np.bool_)


def _typed(aggregate: Aggregate, values: Sequence[Any]) -> pa.Array:
    column = Column(name=aggregate.name, type=aggregate.type)
    return pa.array([from_json(value, column) for value in values], arrow_type(aggregate.type))


def _values(
    place: Place, integers: Integers, doubles: Doubles, least: Integers, wrong: Sequence[list[str]]
) -> list[Any]:
    aggregate, type = place.aggregate, place.aggregate.type
    counts: list[Any] = integers[:, place.integers if aggregate.argument is not None else 0].tolist()
    if aggregate.argument is None:
        return counts
    if aggregate.function == COUNTED:
        return counts
    if aggregate.function in (LEAST, GREATEST):
        kept = least[:, place.least]
        return _shown(kept.copy() if aggregate.function == LEAST else ~kept, counts, type)
    if not place.is_exact:
        sums = doubles[:, place.doubles].tolist()
        of = counts if aggregate.function == AVERAGED else [1] * len(counts)
        return [to_json(s / by, "double") if n else None for s, by, n in zip(sums, of, counts, strict=True)]
    lows, highs = (integers[:, place.integers + beside].tolist() for beside in (1, 2))
    exact = [None if not n else (high << 32) + low for high, low, n in zip(highs, lows, counts, strict=True)]
    if aggregate.function == SUMMED:
        return [_sum(value, place, wrong[row]) for row, value in enumerate(exact)]
    decimal = decimal_of(aggregate.argument.type)
    if decimal is None:
        return [None if value is None else value / n for value, n in zip(exact, counts, strict=True)]
    scale = (decimal_of(type) or (0, 0))[1]
    return [
        None if value is None else str(_rounded(_EXACT.divide(Decimal(value).scaleb(-decimal[1]), Decimal(n)), scale))
        for value, n in zip(exact, counts, strict=True)
    ]


def _sum(value: int | None, place: Place, wrong: list[str]) -> Any:
    if value is None:
        return None
    assert place.aggregate.argument is not None
    decimal = decimal_of(place.aggregate.argument.type)
    if decimal is not None:
        return str(_rounded(Decimal(value).scaleb(-decimal[1], _EXACT), decimal[1]))
    if -_BIGINT <= value < _BIGINT:
        return value
    wrong.append(f"{place.aggregate.name} leaves the range of bigint")
    return None


def _rounded(value: Decimal, scale: int) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=_EXACT)


def _shown(kept: Integers, counts: Sequence[int], type: str) -> list[Any]:
    """The values of integers from :func:`ordered`."""
    if type in FLOATS:
        bits = np.where(kept < 0, kept ^ (_BIGINT - 1), kept).view(np.float64)
        return [to_json(value, "double") if n else None for value, n in zip(bits.tolist(), counts, strict=True)]
    return [_of_whole(value, type) if n else None for value, n in zip(kept.tolist(), counts, strict=True)]


def _of_whole(value: int, type: str) -> Any:
    decimal = decimal_of(type)
    if decimal is not None:
        return str(_rounded(Decimal(value).scaleb(-decimal[1], _EXACT), decimal[1]))
    if type == "boolean":
        return bool(value)
    if type == "date":
        return to_json(pa.scalar(value, pa.int32()).cast(pa.date32()).as_py(), "date")
    if type == "timestamp":
        return to_json(as_datetime(value), "timestamp")
    return value
