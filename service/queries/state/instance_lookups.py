"""Look-ups of partial state by its own key: the value of each instance, and the merged value.

Values are merged only by built-in merges (``StateTable.reconcile``): no author's code runs in the control plane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from epochal.aggregates.kept_merges import merged
from epochal.errors import InvalidInput, InvalidKey
from epochal.service.runtime.replicas.row_format import RowFormat
from epochal.snapshots.manifest import Manifest
from epochal.state.json_form import key_from_json, key_from_path, to_json
from epochal.state.row_codec import RowCodec
from epochal.state.table import BY_PROGRAM, GROUP, MergedColumns, StateKind, StateScope, StateTable

Object = dict[str, Any]
MOST_ROWS: Final = 100_000
"""Maximum number of instance rows that a batch reads."""


@dataclass(frozen=True)
class InstanceFormat:
    """Keys and values of a table over all of its instances. A key without an instance number selects all instances."""

    table: StateTable

    @cached_property
    def rows(self) -> RowFormat:
        """Format of the rows of each instance."""
        return RowFormat(self.table)

    def number_in(self, manifest: Manifest) -> int:
        """Number of instances in a snapshot."""
        return manifest.parallelism_of(self.table.operator)

    @cached_property
    def has_together(self) -> bool:
        """Return whether the values of instances can be merged here."""
        return self.table.reconcile is not None and self.table.reconcile != BY_PROGRAM

    def of_all(self, path: str) -> tuple[Any, ...] | None:
        """The key, percent-encoded in the path, for all instances; ``None`` if the path names an instance.

        Raises ``InvalidKey``.
        """
        own = self.table.sub_key
        if not own:
            return () if not path else None
        return key_from_path(path, own) if path.count(",") + 1 == len(own) else None

    def check_is_of_one(self, path: str) -> None:
        """Raise ``InvalidKey`` for a key without an instance number where one is required."""
        if self.of_all(path) is not None:
            raise InvalidKey(
                f"State {self.table.id!r} is partial state, and each instance has its own history: begin the key with "
                f"an instance number, {'0' if not path else f'0,{path}'}."
            )

    def names_all(self, keys: Sequence[Any]) -> bool:
        """Return whether a batch is for all instances. Raises ``InvalidKey`` for a mixture."""
        of_one = [isinstance(key, dict) and GROUP.name in key for key in keys]
        if any(of_one) and not all(of_one):
            raise InvalidKey(
                f"State {self.table.id!r} is partial state: give {GROUP.name!r}, the instance number, in all keys of "
                "a batch, or in none to merge all instances."
            )
        return not any(of_one)

    def key_of(self, key: Any) -> tuple[Any, ...]:
        """Like :meth:`of_all`, for a key of a batch, an object. Raises ``InvalidKey``."""
        if not isinstance(key, dict):
            raise InvalidKey(f"A key must be an object with values by column name, not {key!r}.")
        if not self.has_together:
            raise InvalidKey(
                f"State {self.table.id!r} is partial state that only its program can merge: choose an instance with "
                f"{GROUP.name!r}, or look up a single key, which shows all instances."
            )
        return key_from_json(key, self.table.sub_key)

    def check_number(self, keys: Sequence[Any], instances: int) -> None:
        """Raise ``InvalidInput`` above the maximum number of rows."""
        if len(keys) * instances > MOST_ROWS:
            raise InvalidInput(
                f"{len(keys)} keys of state {self.table.id!r} in {instances} instances exceed the maximum of "
                f"{MOST_ROWS:,} rows: request at most {MOST_ROWS // instances} keys in one call."
            )

    def key_json(self, key: Sequence[Any]) -> bytes:
        columns = zip(self.table.sub_key, key, strict=True)
        return orjson.dumps({column.name: to_json(value, column.type) for column, value in columns})

    def keys(self, key: Sequence[Any], instances: int) -> list[bytes]:
        """Keys of a row in each instance."""
        return [self.rows.encode_key((number, *key)) for number in range(instances)]

    def instances(self, rows: Sequence[bytes | None]) -> list[Object]:
        """``rows``: one for each instance, in order. Returns the existing ones as ``{instance, value}``."""
        return [
            {"instance": number, "value": self.rows.value_object(row)}
            for number, row in enumerate(rows)
            if row is not None
        ]

    def together(self, rows: Sequence[Sequence[bytes | None]]) -> list[Object | None]:
        """``rows``: for each key the rows of all instances, in order. Returns one value for each key; ``None``
        without a row, or if only the program can merge."""
        found = [row for of_key in rows for row in of_key if row is not None]
        columns = self.table.reconcile
        if not found or columns is None or columns == BY_PROGRAM:
            return [None] * len(rows)
        there = np.array([[row is not None for row in of_key] for of_key in rows], bool)
        try:
            total = _merged(columns, RowCodec(self.table.value_schema).decode(found), there)
        except OverflowError as error:
            raise InvalidInput(
                f"State {self.table.id!r}: the values of its instances cannot be merged: {error}. Choose an instance "
                "to see its value."
            ) from error
        visible = [(column.name, column.type) for column in self.table.visible]
        objects = ({name: to_json(row[name], type) for name, type in visible} for row in total.to_pylist())
        has_some: list[bool] = np.any(there, axis=1).tolist()
        return [each if some else None for each, some in zip(objects, has_some, strict=True)]


def _merged(columns: Sequence[MergedColumns], values: pa.Table, there: npt.NDArray[np.bool_]) -> pa.Table:
    """``values``: the existing rows (``there``), for each key those of all instances. Returns a row for each key;
    null without any."""
    places = np.cumsum(there.ravel()).reshape(there.shape) - 1
    so_far = np.full(len(there), -1)
    for number in np.flatnonzero(there.any(axis=0)):
        mine = there[:, number]
        both = mine & (so_far >= 0)
        sides = (values.take(pa.array(each[both])).combine_chunks() for each in (so_far, places[:, number]))
        so_far = np.where(mine, places[:, number], so_far)
        so_far[both] = values.num_rows + np.arange(np.count_nonzero(both))
        values = pa.concat_tables([values, merged(columns, *sides)])
    return values.take(pa.array(so_far, mask=so_far < 0))


def instance_format(table: StateTable) -> InstanceFormat | None:
    """``None`` without instances, or if their rows are unrelated, as for lists."""
    if table.scope is not StateScope.PARTIAL or table.kind is StateKind.LIST:
        return None
    return _format(table.model_dump_json())


@lru_cache(maxsize=256)
def _format(table: str) -> InstanceFormat:
    return InstanceFormat(StateTable.model_validate_json(table))
