"""T2 of the join of rows with the newest versions that there are when they are processed.

The versions of the epoch come first, then its rows. Which version a row gets depends on the epoch that it comes in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochal.state.column_bytes import Mask
from epochal.tasks.interval_matching import Integers
from epochal.tasks.join_rows import ROW, KeyedRows, Side
from epochal.tasks.operator import Subtask
from epochal.tasks.row_digests import row_digests
from epochal.tasks.slices import delta_rows, gathered
from epochal.tasks.temporal_join import DELETED, OUTPUT_ROWS, with_versions
from epochal.tasks.values import column_of

_CODE, _KNOWN = "_code", "_known"


@dataclass(frozen=True)
class LatestJoinWork:
    """``versions``: their table has the newest of each key by its ``time``, null before all, then by digest.

    ``outer``: rows without a version come out, too.
    """

    rows: Side
    versions: Side
    outer: bool
    output_rows: int = OUTPUT_ROWS
    needs_order: ClassVar[bool] = False

    def run(self, subtask: Subtask, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slice = gathered(rows)
        new, versions = KeyedRows.of(slice, (self.rows, self.versions))
        newest, of_code = self._newest(subtask, versions)
        places = of_code[new.codes]
        found = places >= 0
        found[found] &= ~_deleted(newest)[places[found]]
        chosen = newest.take(pa.array(places, mask=~found))
        shown = np.arange(len(new)) if self.outer else np.flatnonzero(found)
        yield from self._batches(subtask, new.rows, chosen, shown)
        if self.outer:
            yield from self._batches(subtask, new.keyless, None, np.arange(new.keyless.num_rows))

    def _newest(self, subtask: Subtask, new: KeyedRows) -> tuple[pa.Table, Integers]:
        """Versions of the keys of the epoch, and for each code which is the newest, or -1. New ones are staged."""
        table = self.versions.table
        found, stored = subtask.transaction.view(table.id).lookup(new.groups, new.encoded)
        rows = new.rows.select(list(self.versions.kept))
        rows = rows.append_column(ROW, row_digests(rows, self.versions.kept_schema)).cast(table.value_schema)
        versions = pa.concat_tables([stored.filter(pa.array(found)), rows]).combine_chunks()
        codes = np.concatenate([np.flatnonzero(found), new.codes])
        sorting = versions.select([self.versions.time, ROW]).append_column(_CODE, pa.array(codes))
        sorting = sorting.append_column(_KNOWN, pc.is_valid(column_of(versions, self.versions.time)))
        keys = [(name, "ascending") for name in (_CODE, _KNOWN, self.versions.time, ROW)]
        # In the order of arrival where all is equal: what is in state stays, and is not written again.
        backwards = pa.array(np.arange(len(codes))[::-1])
        order = backwards.take(pc.sort_indices(sorting.take(backwards), sort_keys=keys))
        order = order.to_numpy()
        ordered = codes[order]
        last = np.append(ordered[1:] != ordered[:-1], True)[: len(order)]
        of_code = np.full(len(new.encoded), -1, np.int64)
        of_code[ordered[last]] = order[last]
        fresh = of_code[of_code >= int(found.sum())]
        if len(fresh):
            whose = codes[fresh]
            columns = [*new.keys.take(pa.array(whose)).columns, *versions.take(pa.array(fresh)).columns]
            subtask.transaction.stage(table.id, delta_rows(table, new.groups[whose], "put", columns))
        return versions, of_code

    def _batches(
        self, subtask: Subtask, rows: pa.Table, versions: pa.Table | None, places: Integers
    ) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(places), self.output_rows):
            part = places[start : start + self.output_rows]
            yield with_versions(subtask.output, self.rows, rows, self.versions, versions, part)


def _deleted(versions: pa.Table) -> Mask:
    if DELETED not in versions.column_names:
        return np.zeros(versions.num_rows, np.bool_)
    mask: Mask = column_of(versions, DELETED).fill_null(False).to_numpy(zero_copy_only=False)
    return mask
