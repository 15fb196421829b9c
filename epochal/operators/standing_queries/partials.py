"""Partial aggregates of an epoch's rows by standing query, window and group, computed before the shuffle.

Evaluation is shared: over a chunk of rows each distinct condition, value, set of conditions and grouping is computed
once for all queries. Only the sum over the groups of the selected rows is computed per query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from epochal.operators.standing_queries.aggregate_layout import Doubles, Integers, Place, layout_of, ordered
from epochal.operators.standing_queries.evaluation import Mask, Rows, whole_numbers
from epochal.standing_queries.active import StandingQuery, decoded
from epochal.standing_queries.expression import Expression
from epochal.standing_queries.query import COUNTED, LEAST, SUMMED, Group
from epochal.state.json_form import to_json
from epochal.tasks.arrow_tasks import prepare_worker
from epochal.tasks.windows import timestamps

QUERY, WINDOW_END, GROUP = "query", "window_end", "group"
INTEGERS, DOUBLES, LEAST_OF = "integers", "doubles", "least"
CHUNK_ROWS: Final = 1 << 17
_FEW: Final = 1 << 16
PARTIALS: Final = pa.schema(
    [
        pa.field(QUERY, pa.int64()),
        pa.field(WINDOW_END, pa.timestamp("us", tz="UTC")),
        pa.field(GROUP, pa.string()),
        pa.field(INTEGERS, pa.list_(pa.int64())),
        pa.field(DOUBLES, pa.list_(pa.float64())),
        pa.field(LEAST_OF, pa.list_(pa.int64())),
    ]
)
"""A group is the JSON of its columns. A row without window has the number of late rows of a query."""


@dataclass(frozen=True)
class PartialsTask:
    """The function of ``mapInArrow`` before the shuffle. ``time``: the event-time column; ``late``: the watermark of
    the epoch, in microseconds, up to which windows have closed."""

    operator: str
    queries: bytes
    time: str
    late: int
    chunk_rows: int = CHUNK_ROWS

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare_worker()
        queries = decoded(self.queries).of(self.operator)
        for chunk in _chunks(batches, self.chunk_rows):
            yield from Chunk(chunk, self.time, self.late).partials(queries)


def _chunks(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Batches combined to chunks of at least ``rows`` rows, to share the computation per chunk."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield _united(held)
            held, count = [], 0
    if count:
        yield _united(held)


def _united(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


@dataclass(frozen=True)
class _Grouping:
    """Rows by pane and group: ``codes`` of rows; for each code, the start of its pane and the JSON of its group."""

    codes: Integers
    panes: Integers
    texts: pa.StringArray

    def __len__(self) -> int:
        return len(self.panes)


@dataclass(frozen=True)
class _Selection:
    """The rows of a grouping that fulfil some conditions. ``rows``: their positions; ``None``: all. ``present``: the
    codes that occur, with their ``counts``; ``slots``: the position of each row's code in ``present``."""

    rows: Integers | None
    present: Integers
    counts: Integers
    slots: Integers


class Chunk:
    """A chunk of rows, with the cached results that queries share."""

    def __init__(self, rows: pa.RecordBatch, time: str, late: int) -> None:
        self._rows = Rows(rows)
        self._times = whole_numbers(rows.column(time).cast(pa.timestamp("us", rows.column(time).type.tz)))
        self._late = late
        self._groupings: dict[tuple[int, tuple[str, ...]], _Grouping] = {}
        self._panes: dict[int, tuple[Integers, Integers]] = {}
        self._columns: dict[str, tuple[Integers, list[Any]]] = {}
        self._positions: dict[frozenset[str], Integers | None] = {}
        self._selections: dict[tuple[int, tuple[str, ...], frozenset[str]], _Selection] = {}
        self._sums: dict[tuple[int, str, str], tuple[Any, ...]] = {}
        self._arguments: dict[tuple[str, str], tuple[Mask | None, Any]] = {}

    def partials(self, queries: Sequence[StandingQuery]) -> Iterator[pa.RecordBatch]:
        """One batch with the partials of all queries, or none."""
        found = [part for query in queries for part in self._of(query)]
        if found:
            yield _batch(found)

    def _of(self, standing: StandingQuery) -> Iterator[_Partials]:
        query = standing.query
        keys = tuple(group.expression.key for group in query.groups)
        grouping = self._grouping(query.slide, keys, query.groups)
        selection = self._selected(query.slide, keys, grouping, query.where)
        if not len(selection.present):
            return
        panes = grouping.panes[selection.present]
        # The windows of a pane end between its own end and ``size`` after its start.
        steps = np.arange(1, query.windows_of_a_row + 1) * query.slide
        ends = panes[:, None] + steps
        needed = (ends - query.size >= standing.since) & (ends > self._late)
        late = (panes + query.size <= self._late) & (panes >= standing.since)
        if late.any():
            yield _Partials.late(standing.id, int(selection.counts[late].sum()))
        slots, step = np.nonzero(needed)
        if not len(slots):
            return
        layout = layout_of(query)
        integers = np.empty((len(selection.present), layout.integers), np.int64)
        doubles = np.empty((len(selection.present), layout.doubles), np.float64)
        least = np.empty((len(selection.present), layout.least), np.int64)
        integers[:, 0] = selection.counts
        for place in layout.places:
            self._fill(place, selection, integers, doubles, least)
        texts = grouping.texts.take(pa.array(selection.present[slots]))
        yield _Partials(standing.id, ends[slots, step], texts, integers[slots], doubles[slots], least[slots])

    def _grouping(self, slide: int, keys: tuple[str, ...], groups: Sequence[Group]) -> _Grouping:
        names = (slide, (*keys, *(group.name for group in groups)))
        found = self._groupings.get(names)
        if found is None:
            found = self._groupings[names] = self._grouped(slide, groups)
        return found

    def _grouped(self, slide: int, groups: Sequence[Group]) -> _Grouping:
        if slide not in self._panes:
            panes = np.floor_divide(self._times, slide)
            least = panes.min()
            self._panes[slide] = _compact(panes - least, int(panes.max() - least) + 1)
            codes, used = self._panes[slide]
            self._panes[slide] = codes, (used + least) * slide
        codes, starts = self._panes[slide]
        used = np.arange(len(starts))
        parts: list[tuple[Integers, list[str]]] = []
        for group in groups:
            of_column, texts = self._column(group.expression)
            codes, combined = _compact(codes * len(texts) + of_column, len(used) * len(texts))
            before, own = np.divmod(combined, len(texts))
            parts = [(positions[before], values) for positions, values in parts]
            parts.append((own, [f"{json.dumps(group.name, ensure_ascii=False)}:{text}" for text in texts]))
            used = used[before]
        return _Grouping(codes, starts[used], _texts(parts, len(used)))

    def _column(self, expression: Expression) -> tuple[Integers, list[str]]:
        """The codes of rows, and the value of each code as JSON."""
        found = self._columns.get(expression.key)
        if found is None:
            encoded = self._rows.value(expression).dictionary_encode(null_encoding="encode")
            values = encoded.dictionary.to_pylist()
            texts = [json.dumps(to_json(value, expression.type), ensure_ascii=False) for value in values]
            codes = encoded.indices.cast(pa.int64()).to_numpy(zero_copy_only=False)
            found = self._columns[expression.key] = codes, texts
        return found

    def _where(self, conditions: Sequence[Expression], keys: frozenset[str]) -> Integers | None:
        """The positions of the rows that fulfil all conditions; ``None``: all rows."""
        if not conditions:
            return None
        if keys not in self._positions:
            first, *others = (self._rows.mask(condition) for condition in conditions)
            mask = first.copy() if others else first
            for other in others:
                mask &= other
            self._positions[keys] = np.flatnonzero(mask)
        return self._positions[keys]

    def _selected(
        self, slide: int, keys: tuple[str, ...], grouping: _Grouping, conditions: Sequence[Expression]
    ) -> _Selection:
        demanded = frozenset(condition.key for condition in conditions)
        found = self._selections.get((slide, keys, demanded))
        if found is None:
            rows = self._where(conditions, demanded)
            codes = grouping.codes if rows is None else grouping.codes[rows]
            slots, present = _compact(codes, len(grouping))
            counts = np.bincount(slots, minlength=len(present))
            found = self._selections[slide, keys, demanded] = _Selection(rows, present, counts, slots)
        return found

    def _fill(self, place: Place, selection: _Selection, integers: Integers, doubles: Doubles, least: Integers) -> None:
        aggregate = place.aggregate
        if aggregate.argument is None:
            return
        kind = aggregate.function if aggregate.function in (COUNTED, LEAST, "max") else SUMMED
        key = id(selection), aggregate.argument.key, kind
        if key not in self._sums:
            self._sums[key] = self._summed(aggregate.argument, kind, place, selection)
        counts, *values = self._sums[key]
        integers[:, place.integers] = counts
        if kind == SUMMED and place.is_exact:
            integers[:, place.integers + 1], integers[:, place.integers + 2] = values
        elif kind == SUMMED:
            doubles[:, place.doubles] = values[0]
        elif kind != COUNTED:
            least[:, place.least] = values[0]

    def _summed(self, argument: Expression, kind: str, place: Place, selection: _Selection) -> tuple[Any, ...]:
        groups = len(selection.present)
        valid, values = self._argument(argument, kind, kind == SUMMED and not place.is_exact)
        slots = selection.slots
        if selection.rows is not None:
            values = values[selection.rows]
            valid = None if valid is None else valid[selection.rows]
        if valid is not None and not valid.all():
            slots, values = slots[valid], values[valid]
            counts = np.bincount(slots, minlength=groups)
        else:
            counts = selection.counts
        if kind == COUNTED:
            return (counts,)
        if kind != SUMMED:
            found = np.full(groups, 2**63 - 1, np.int64)
            np.minimum.at(found, slots, values)
            return counts, found
        if not place.is_exact:
            return counts, np.bincount(slots, weights=values, minlength=groups)
        # Sums of doubles are exact below 2**53: the halves of at most CHUNK_ROWS numbers stay far below it.
        lows, highs = values & 0xFFFFFFFF, values >> 32
        return (
            counts,
            np.bincount(slots, weights=lows, minlength=groups).astype(np.int64),
            np.bincount(slots, weights=highs, minlength=groups).astype(np.int64),
        )

    def _argument(self, argument: Expression, kind: str, inexact: bool) -> tuple[Mask | None, Any]:
        """A mask of the rows with a value (``None``: all), and the values in the form that the aggregate requires."""
        form = "count" if kind == COUNTED else "double" if inexact else "whole" if kind == SUMMED else kind
        found = self._arguments.get((argument.key, form))
        if found is None:
            values = self._rows.value(argument)
            valid = np.asarray(pc.is_valid(values)) if values.null_count else None
            if form == "count":
                taken: Any = np.zeros(len(values), np.int8)
            elif form == "double":
                taken = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
            elif form == "whole":
                taken = whole_numbers(values)
            else:
                taken = ordered(values) if kind == LEAST else ~ordered(values)
            found = self._arguments[argument.key, form] = valid, taken
        return found


@dataclass(frozen=True)
class _Partials:
    """The partials of one query. ``ends``: ends of windows; the last three fields have a row for each window and
    group."""

    query: int
    ends: Integers | None
    texts: pa.StringArray
    integers: Integers
    doubles: Doubles
    least: Integers

    @classmethod
    def late(cls, query: int, rows: int) -> _Partials:
        none: Any = np.empty((1, 0))
        return cls(query, None, pa.nulls(1, pa.string()), np.array([[rows]]), none, none.astype(np.int64))

    @property
    def ends_or_null(self) -> pa.Array:
        return pa.nulls(1, PARTIALS.field(WINDOW_END).type) if self.ends is None else timestamps(self.ends)


def _batch(parts: Sequence[_Partials]) -> pa.RecordBatch:
    ids = np.repeat([part.query for part in parts], [len(part.texts) for part in parts])
    columns = [
        pa.array(ids, pa.int64()),
        pa.concat_arrays([part.ends_or_null for part in parts]),
        pa.concat_arrays([part.texts for part in parts]),
        lists([part.integers for part in parts], pa.int64()),
        lists([part.doubles for part in parts], pa.float64()),
        lists([part.least for part in parts], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=PARTIALS)


def lists(blocks: Sequence[npt.NDArray[Any]], type: pa.DataType) -> pa.ListArray:
    """The rows of all blocks as lists; the lists of a block have equal lengths."""
    lengths = np.repeat([block.shape[1] for block in blocks], [block.shape[0] for block in blocks])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = np.concatenate([block.ravel() for block in blocks]) if blocks else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, type))


def _compact(codes: Integers, bound: int) -> tuple[Integers, Integers]:
    """Codes renumbered without gaps, and the old code of each new one. ``bound``: an upper bound of codes,
    exclusive."""
    if bound <= max(_FEW, 4 * len(codes)):
        used = np.flatnonzero(np.bincount(codes, minlength=bound))
        if len(used) == bound:
            return codes, used
        numbers = np.zeros(bound, np.int64)
        numbers[used] = np.arange(len(used))
        return numbers[codes], used
    used, found = np.unique(codes, return_inverse=True)
    return found.astype(np.int64), used


def _texts(parts: Sequence[tuple[Integers, list[str]]], groups: int) -> pa.StringArray:
    """The JSON of groups, built from the JSON of their columns."""
    if not parts:
        return pa.array(["{}"] * groups, pa.string())
    columns = [pa.array(texts, pa.string()).take(pa.array(positions)) for positions, texts in parts]
    joined = pc.binary_join_element_wise(*columns, ",") if len(columns) > 1 else columns[0]
    return pc.binary_join_element_wise(pa.scalar("{"), joined, pa.scalar("}"), "")
