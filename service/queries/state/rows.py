"""Rows of snapshots, which may be of an older declaration than the latest, as the JSON objects that answers have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from epochal.state.json_form import to_json
from epochal.state.table import StateTable

Object = dict[str, Any]


def key_object(table: StateTable, row: Mapping[str, Any]) -> Object:
    """The columns of the address."""
    return {column.name: to_json(row[column.name], column.type) for column in table.address}


def value_object(table: StateTable, row: Mapping[str, Any] | None) -> Object | None:
    """The value columns, and those that are computed from them; ``None`` where there is no row."""
    if row is None:
        return None
    values = {column.name: to_json(row[column.name], column.type) for column in table.visible}
    return values | {column.name: to_json(value, column.type) for column, value in table.shown_of(row)}


def leading_object(table: StateTable, key: Sequence[Any]) -> Object:
    """An address, or only the operator's, from its values in order."""
    return {column.name: to_json(value, column.type) for column, value in zip(table.address, key, strict=False)}
