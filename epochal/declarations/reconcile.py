"""Declared merges of two instances of partial state: built-in merges, or an author's function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from epochal.declarations.names import closest, listed
from epochal.errors import PipelineError
from epochal.state.table import BY_PROGRAM, Column, MergedColumns
from epochal.state.type_names import decimal_of, nested_type
from epochal.state.types import INTEGER_BITS

Reconcile = Callable[[Any, Any], Any]
"""Returns the merged value of the values of two instances. It must be associative and commutative: see
:func:`epochal.testing.reconciling.check_reconcile`."""

Reconciling = str | Mapping[str, str] | Reconcile
"""``"sum"`` for all value columns, ``{"total": "sum", "price": "last(at)", "at": "max"}``, or a function."""

_OF_NUMBERS: Final = ("sum", "count")
_SIMPLE: Final = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}
_BY_ORDER: Final = re.compile(r"(?P<which>first|last)\((?P<order>.+)\)")
_BUILT_IN: Final = (*_SIMPLE, "first(column)", "last(column)")


def reconciling_of(
    state: str, columns: Sequence[Column], reconcile: Reconciling | None
) -> tuple[MergedColumns, ...] | Literal["program"] | None:
    """The declaration in the form of the state table. Raises ``PipelineError`` with the fix."""
    if reconcile is None:
        return None
    if isinstance(reconcile, str):
        reconcile = dict.fromkeys((column.name for column in columns), reconcile)
    if not isinstance(reconcile, Mapping):
        return BY_PROGRAM
    types = {column.name: column.type for column in columns}
    for name in reconcile:
        if name not in types:
            raise PipelineError(
                f"{state}: reconcile names {name!r}, which is not a value column.{closest(str(name), types)}"
            )
    if missing := [name for name in types if name not in reconcile]:
        raise PipelineError(f"{state}: reconcile does not declare how column {missing[0]!r} is merged. Add it.")
    return tuple(_merged(state, name, str(reconcile[name]), types) for name in types)


def _merged(state: str, name: str, merge: str, types: Mapping[str, str]) -> MergedColumns:
    where, type = f"{state}: reconcile, column {name!r}", types[name]
    if merge in _SIMPLE:
        if merge in _OF_NUMBERS and not _is_number(type):
            raise PipelineError(f"{where}: {type} has no {merge}. Use min or max, last(column), or a function.")
        if not _has_order(type):
            raise PipelineError(f"{where}: {type} has no order. Use last(column), or a function.")
        return MergedColumns(function="simple", columns={"value": name}, options={"kind": _SIMPLE[merge]})
    found = _BY_ORDER.fullmatch(merge)
    if found is None:
        raise PipelineError(f"{where}: unknown merge {merge!r}; use one of {listed(_BUILT_IN)}, or a function.")
    order = found["order"].strip()
    if order not in types or order == name:
        raise PipelineError(f"{where}: {merge} requires another value column to compare by.{closest(order, types)}")
    if not _has_order(types[order]) or not (_has_order(type) or type.startswith("struct")):
        raise PipelineError(f"{where}: {type} by {types[order]} cannot be compared. Use a function.")
    largest = found["which"] == "last"
    return MergedColumns(function="extreme", columns={"value": name, "order": order}, options={"largest": largest})


def _has_order(type: str) -> bool:
    return nested_type(type) is None and type != "variant"


def _is_number(type: str) -> bool:
    return type in INTEGER_BITS or type in ("float", "double") or decimal_of(type) is not None
