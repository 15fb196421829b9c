"""Key groups: which one a key is in, and which subtask owns it (thesis 4.2.1).

``key_group = pmod(hash(key columns), max_parallelism)`` with Spark's own hash; ``subtask = key_group % parallelism``.
With a parallelism that divides the maximum, Spark's own hash partitioning puts every key group on its subtask already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from epochal.state.column_bytes import Columns
from epochal.state.murmur3 import hash_columns, hash_key
from epochal.state.type_names import quoted

Groups = npt.NDArray[np.int32]


def key_group_expression(keys: Sequence[str], max_parallelism: int) -> str:
    """The key group as Spark SQL (int, never null), over a DataFrame with these key columns."""
    return f"pmod(hash({', '.join(map(quoted, keys))}), {max_parallelism})"


def key_group(key: Sequence[Any], schema: pa.Schema, max_parallelism: int) -> int:
    """The key group of one key: Python values in the order of the operator's key columns (without sub-key)."""
    return hash_key(key, schema) % max_parallelism


def key_groups(keys: Columns, schema: pa.Schema, max_parallelism: int) -> Groups:
    """The key group of each row; the schema names the operator's key columns (without sub-key)."""
    return np.mod(hash_columns(keys, schema), np.int32(max_parallelism))


@overload
def subtask_of(key_group: int, parallelism: int) -> int: ...
@overload
def subtask_of(key_group: Groups, parallelism: int) -> Groups: ...
def subtask_of(key_group: Any, parallelism: int) -> Any:
    """The subtask that owns a key group; total, and balanced within one."""
    return key_group % parallelism


def groups_of(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups of a subtask, ascending."""
    return range(subtask, max_parallelism, parallelism)
