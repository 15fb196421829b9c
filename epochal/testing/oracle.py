"""A sequential oracle: the expected state and output, computed in plain Python, one epoch after the other.

It is independent of Spark, key groups, deltas, retries and recovery. Its only input from the real run is the slices of
the decided manifests, in order::

    counts = KeyedOracle("counts", source="events", sink="out", key=("sensor",), step=count)
    for manifest, expected in zip(manifests, expectations([counts], map(slices, manifests)), strict=True): ...
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochal.contracts.source import Slice
from epochal.snapshots.manifest import Manifest

Row = Mapping[str, Any]
FrozenRow = tuple[tuple[str, Any], ...]
Rows = Counter[FrozenRow]
"""Rows as a multiset, without order."""
Step = Callable[[Row | None, Sequence[Row]], tuple[Row | None, Sequence[Row]]]


@dataclass(frozen=True)
class KeyedOracle:
    """One stateful operator, defined by its effect on one key in one epoch.

    ``step(before, rows) -> (after, output)``: ``before`` and ``after`` are the value columns of the state table
    ``table`` (``None``: no row), ``rows`` the key's input of the epoch, ordered by ``order_by``, never empty;
    ``output`` goes to ``sink``. Must not change its arguments.
    """

    table: str
    source: str
    sink: str
    key: tuple[str, ...]
    step: Step
    order_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """The expected contents after a commit: all rows of each state table, and the rows of the epoch in each sink."""

    state: Mapping[str, Rows]
    output: Mapping[str, Rows]


def expectations(
    operators: Sequence[KeyedOracle], epochs: Iterable[Mapping[str, Sequence[Row]]]
) -> Iterator[Expectation]:
    """One expectation for each epoch, from its input by source."""
    states: dict[str, dict[FrozenRow, Row]] = {operator.table: {} for operator in operators}
    for inputs in epochs:
        output: dict[str, Rows] = {operator.sink: Counter() for operator in operators}
        for operator in operators:
            rows = inputs.get(operator.source, ())
            output[operator.sink] += _run(operator, states[operator.table], rows)
        yield Expectation({table: _rows_of(state) for table, state in states.items()}, output)


def slices(manifest: Manifest) -> dict[str, list[Row]]:
    """The input of an epoch by source, read again from the files of JSON lines that its manifest recorded."""
    return {name: json_lines(slice) for name, slice in manifest.slices.items()}


def json_lines(slice: Slice) -> list[Row]:
    """The rows of a slice of the files source, in the order of its files."""
    return [
        json.loads(line)
        for file in slice.detail["files"]
        for line in Path(file["path"]).read_text().splitlines()
        if line.strip()
    ]


def frozen(row: Row) -> FrozenRow:
    """A hashable form of a row."""
    return tuple(sorted(row.items()))


def multiset(rows: Iterable[Row]) -> Rows:
    return Counter(map(frozen, rows))


def _run(operator: KeyedOracle, state: dict[FrozenRow, Row], rows: Sequence[Row]) -> Rows:
    by_key: dict[FrozenRow, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[frozen({name: row[name] for name in operator.key})].append(row)
    output: Rows = Counter()
    for key, of_key in by_key.items():
        ordered = sorted(of_key, key=lambda row: tuple(row[name] for name in operator.order_by))
        after, produced = operator.step(state.get(key), ordered)
        if after is None:
            state.pop(key, None)
        else:
            state[key] = after
        output += multiset(produced)
    return output


def _rows_of(state: Mapping[FrozenRow, Row]) -> Rows:
    return multiset({**dict(key), **value} for key, value in state.items())
