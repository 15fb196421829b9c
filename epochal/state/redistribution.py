"""Rows of a state table in another number of key groups: where each of them lies then, by its scope."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from epochal.state.column_bytes import column
from epochal.state.keygroups import Groups
from epochal.state.table import GROUP, StateScope, StateTable


def redistributed(table: StateTable, rows: pa.Table, before: int, after: int) -> tuple[pa.Table, Groups]:
    """``rows`` of a state in ``before`` key groups, as they are in ``after`` of them, and the key group of each.

    Rows with a key keep it, and it says where they lie. The elements of operator and union state get new addresses,
    since their key group is a part of these: counted row by row through (``_index``, ``_group``), in which order their
    lists are, and dealt anew. So no two get the same, their order stays, and they are spread over the new groups.
    Instances of partial state stay what they are: there must be a key group for each.
    """
    match table.scope:
        case StateScope.KEYED | StateScope.BROADCAST | StateScope.PARTIAL:
            return rows, table.key_groups(rows, after)
        case StateScope.OPERATOR | StateScope.UNION:
            (index,) = table.sub_key_schema
            place = column(rows, index).to_numpy() * before + table.key_groups(rows, before)
            groups = (place % after).astype(np.int32)
            for field, values in ((table.owner_schema.field(GROUP.name), groups), (index, place // after)):
                position = rows.schema.get_field_index(field.name)
                rows = rows.set_column(position, field, pa.array(values, field.type))
            return rows, groups
