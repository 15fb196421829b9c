"""E5 of one shard: the fence and the rows of the shard, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from epochal.backends.dbms.access import TableAccess
from epochal.backends.dbms.applying import apply, compacted, refused_row, waited
from epochal.backends.dbms.failures import commit_outcome, refusal
from epochal.backends.dbms.fence import FIRST_SHARD, Fence
from epochal.backends.write_ahead_log import WriteAheadLog, has_log, of_shard, shards_of
from epochal.contracts.backend import SinkPlace
from epochal.contracts.handle import Handle
from epochal.contracts.identity import EpochKey, EpochScope
from epochal.errors import RowRefused
from epochal.faults import declare

FENCE_MOVED = declare("E5.dbms.fence-moved", "the fence has moved within the transaction, no row is applied")
APPLIED = declare("E5.dbms.applied", "fence and rows are applied within the transaction, which is not committed")
SHARD_COMMITTED = declare("E5.dbms.shard-committed", "the transaction of one shard is committed, others may not be")

CHUNK_ROWS = 64 * 1024
"""Number of rows sent to the database in one chunk; the next chunk is prepared meanwhile."""


@dataclass(frozen=True)
class ShardPart:
    """The part of an epoch that is applied in one transaction.

    ``handles`` name the rows of ``shard``. ``others``: shards without rows in this epoch, whose fences move in the same
    transaction.
    """

    epoch: EpochScope
    shard: int
    handles: tuple[Handle, ...]
    others: tuple[int, ...] = ()

    @property
    def fences(self) -> list[int]:
        """All shards whose fences move, ascending: all transactions lock rows in one order."""
        return sorted((self.shard, *self.others))


def parts_of(epoch: EpochScope, handles: Sequence[Handle], fences: int) -> list[ShardPart]:
    """Divide an epoch into one part for each shard with rows, at least one.

    The handles determine the number of shards of the rows, ``fences`` that of the rows in the fence table: each of them
    is moved by exactly one part.
    """
    divided = {shard: tuple(of_shard(handle, shard) for handle in handles) for shard in range(shards_of(handles))}
    filled = [shard for shard, mine in divided.items() if any(map(has_log, mine))]
    first, *further = filled or [FIRST_SHARD]
    others = tuple(shard for shard in range(fences) if shard != first and shard not in further)
    return [
        ShardPart(epoch, first, divided[first], others),
        *(ShardPart(epoch, shard, divided[shard]) for shard in further),
    ]


class ShardWriter:
    """Applies parts of epochs. Serialisable: connections stay in the process."""

    def __init__(self, place: SinkPlace, access: TableAccess) -> None:
        self._access = access
        self._log = WriteAheadLog(place)
        self._fence = Fence(place.sink, access.writing, access.address.place)
        self._refused: tuple[tuple[EpochKey, int, str], str | None] | None = None

    def commit(self, part: ShardPart) -> None:
        """Apply the part once, however often it is called. Raises ``Fenced``, ``RowRefused``, ``OutcomeUnknown``,
        ``SinkError``."""
        try:
            self._commit(part)
        except RowRefused as refused:
            cause = refused.__cause__
            if self._access.address.dialect != "postgresql" or cause is None:
                raise
            row = self._refused_row(part, refused)
            if row is None:
                raise
            raise refusal(f"{self._access.subject}, epoch {part.epoch.epoch}: ", row, cause) from cause
        SHARD_COMMITTED.hit(part.epoch.epoch)

    def _commit(self, part: ShardPart) -> None:
        epoch, access = part.epoch, self._access
        with access.transaction(f"commit epoch {epoch.epoch}") as connection, waited(connection) as heard:
            moved = [shard for shard in part.fences if self._fence.advance(connection, epoch, shard)]
            if not moved:
                return
            FENCE_MOVED.hit(epoch.epoch)
            if part.shard in moved:
                apply(connection, access.writing, heard(self._chunks(part)))
            APPLIED.hit(epoch.epoch)
            with commit_outcome(access.subject, access.address):
                connection.commit()

    def _refused_row(self, part: ShardPart, refused: RowRefused) -> str | None:
        """Find the refused row, once: each repetition of the commit raises the same refusal."""
        access = self._access
        known = (part.epoch.key, part.shard, refused.message)
        if self._refused is None or self._refused[0] != known:
            with access.transaction("find the refused row") as connection:
                row = refused_row(connection, access.writing, self._chunks(part), access.address)
                connection.rollback()
            self._refused = known, row
        return self._refused[1]

    def _chunks(self, part: ShardPart) -> Iterator[pa.Table]:
        """Yield the part's rows in order. With keys, each chunk has one row per key; later chunks take precedence."""
        writing = self._access.writing
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in self._log.read(part.epoch, part.handles):
            held.append(batch)
            rows += batch.num_rows
            # The order column applies to all rows of the epoch.
            if rows >= CHUNK_ROWS and writing.order_by is None:
                yield compacted(pa.Table.from_batches(held), writing)
                held, rows = [], 0
        if held:
            yield compacted(pa.Table.from_batches(held), writing)
