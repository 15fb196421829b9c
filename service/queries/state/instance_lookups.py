"""Look-ups of partial state by its own key: what each instance has, and what they have together.

Together only where the merge is built in (``StateTable.reconcile``): no author's code runs in the control plane.
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
from epochal.state.json_form import key_from_json, key_from_path, to_json
from epochal.state.row_codec import RowCodec
from epochal.state.table import BY_PROGRAM, GROUP, MergedColumns, StateKind, StateScope, StateTable

Object = dict[str, Any]
MOST_ROWS: Final = 100_000
"""So many rows of instances a batch may read."""


@dataclass(frozen=True)
class InstanceFormat:
    """Keys and values of a table over all of its instances. A key without the number of an instance is that of all."""

    table: StateTable

    @cached_property
    def rows(self) -> RowFormat:
        """The form of the rows of each instance."""
        return RowFormat(self.table)

    @cached_property
    def has_together(self) -> bool:
        """Whether the values of instances can be merged here."""
        return self.table.reconcile is not None and self.table.reconcile != BY_PROGRAM

    def of_all(self, path: str) -> tuple[Any, ...] | None:
        """The key that is that of all instances, percent-encoded; ``None`` where the path names an instance.

        Raises ``InvalidKey``.
        """
        own = self.table.sub_key
        if not own:
            return () if not path else None
        return key_from_path(path, own) if path.count(",") + 1 == len(own) else None

    def check_is_of_one(self, path: str) -> None:
        """Raises ``InvalidKey`` for a key of all instances where one is to be named."""
        if self.of_all(path) is not None:
            raise InvalidKey(
                f"State {self.table.id!r} is partial state, and each instance has a history of its own: begin the key "
                f"with the number of one, {'0' if not path else f'0,{path}'}."
            )

    def names_all(self, keys: Sequence[Any]) -> bool:
        """Whether a batch is of all instances. Raises ``InvalidKey`` where some of its keys are, and others are not."""
        of_one = [isinstance(key, dict) and GROUP.name in key for key in keys]
        if any(of_one) and not all(of_one):
            raise InvalidKey(
                f"State {self.table.id!r} is partial state: give {GROUP.name!r}, the number of an instance, in all "
                "keys of a batch, or in none, for the values of all instances together."
            )
        return not any(of_one)

    def key_of(self, key: Any) -> tuple[Any, ...]:
        """As :meth:`of_all`, of a key of a batch, an object. Raises ``InvalidKey``."""
        if not isinstance(key, dict):
            raise InvalidKey(f"A key is an object by column name, not {key!r}.")
        if not self.has_together:
            raise InvalidKey(
                f"State {self.table.id!r} is partial state, and only its program can say what its instances have "
                f"together: name one by {GROUP.name!r}, or look a key up by itself, which shows all of them."
            )
        return key_from_json(key, self.table.sub_key)

    def check_number(self, keys: Sequence[Any], instances: int) -> None:
        """Raises ``InvalidInput`` where more rows would be read than are read at once."""
        if len(keys) * instances > MOST_ROWS:
            raise InvalidInput(
                f"{len(keys)} keys of state {self.table.id!r} in {instances} instances are more rows than the "
                f"{MOST_ROWS:,} that are read at once: ask for {MOST_ROWS // instances} keys at a time."
            )

    def key_json(self, key: Sequence[Any]) -> bytes:
        columns = zip(self.table.sub_key, key, strict=True)
        return orjson.dumps({column.name: to_json(value, column.type) for column, value in columns})

    def keys(self, key: Sequence[Any], instances: int) -> list[bytes]:
        """The keys of a key's row in each of so many instances."""
        return [self.rows.encode_key((number, *key)) for number in range(instances)]

    def instances(self, rows: Sequence[bytes | None]) -> list[Object]:
        """``rows``: of each instance, in order. Those that have one, ``{instance, value}``."""
        return [
            {"instance": number, "value": self.rows.value_object(row)}
            for number, row in enumerate(rows)
            if row is not None
        ]

    def together(self, rows: Sequence[Sequence[bytes | None]]) -> list[Object | None]:
        """``rows``: of each key those of all instances, in order. One value of each key; ``None`` where nobody has any,
        or only the program could say."""
        found = [row for of_key in rows for row in of_key if row is not None]
        columns = self.table.reconcile
        if not found or columns is None or columns == BY_PROGRAM:
            return [None] * len(rows)
        there = np.array([[row is not None for row in of_key] for of_key in rows], bool)
        try:
            total = _merged(columns, RowCodec(self.table.value_schema).decode(found), there)
        except OverflowError as error:
            raise InvalidInput(
                f"State {self.table.id!r}: what its instances have does not merge: {error}. Name an instance to see "
                "its own value."
            ) from error
        visible = [(column.name, column.type) for column in self.table.visible]
        objects = ({name: to_json(row[name], type) for name, type in visible} for row in total.to_pylist())
        has_some: list[bool] = np.any(there, axis=1).tolist()
        return [each if some else None for each, some in zip(objects, has_some, strict=True)]


def _merged(columns: Sequence[MergedColumns], values: pa.Table, there: npt.NDArray[np.bool_]) -> pa.Table:
    """``values``: the rows that are ``there``, of each key those of all instances. A row of each key; null where none
    is there."""
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
    """``None`` where there are no instances, or their rows have nothing to do with one another, as those of lists."""
    if table.scope is not StateScope.PARTIAL or table.kind is StateKind.LIST:
        return None
    return _format(table.model_dump_json())


@lru_cache(maxsize=256)
def _format(table: str) -> InstanceFormat:
    return InstanceFormat(StateTable.model_validate_json(table))
