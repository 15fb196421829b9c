"""Partial state in one subtask: its own instance, at the address (``_group``,) of the subtask's number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from epochal.contracts.state import StateView
from epochal.state.table import StateKind, StateTable
from epochal.tasks.keyed_state import Cursor
from epochal.tasks.keys import KeyChunk
from epochal.tasks.list_state import KeyedList
from epochal.tasks.map_state import KeyedMap
from epochal.tasks.operator import Ownership
from epochal.tasks.value_state import KeyedValue

InstanceState = KeyedValue | KeyedList | KeyedMap
_STATES: Mapping[StateKind, type[InstanceState]] = {
    StateKind.VALUE: KeyedValue,
    StateKind.LIST: KeyedList,
    StateKind.MAP: KeyedMap,
}


def instance_state(table: StateTable, view: StateView, ownership: Ownership) -> InstanceState:
    """The access to a subtask's instance: as keyed state of the one key that there is."""
    state = _STATES[table.kind](table, view, ownership.max_parallelism, Cursor())
    number = np.array([ownership.subtask], np.int32)
    only = pa.table([pa.array(number)], schema=table.owner_schema)
    state.begin(KeyChunk(table.key, only, number))
    return state
