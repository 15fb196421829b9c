"""The calls that the epochs of a trial have taken: out of the inboxes of the applications that took them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from epochal.contracts.catalog import ManifestReference
from epochal.contracts.inbox import CallBatch
from epochal.contracts.source import Slice
from epochal.declarations.entry import ENTRIES
from epochal.errors import InvalidInput
from epochal.service.catalog.database import Database
from epochal.service.catalog.inboxes import InboxRepository, inbox_of_branch
from epochal.service.catalog.models import InboxBatch
from epochal.snapshots.lineage import history
from epochal.snapshots.manifest import Manifest
from epochal.snapshots.store import SnapshotStore

MOST_BYTES = 64 << 20
"""Of calls of one trial: they are held in memory, here and where they are run again."""


def calls_to_try_again(
    database: Database, store: SnapshotStore, head: ManifestReference, epochs: int
) -> tuple[CallBatch, ...]:
    """In their order. Raises ``InvalidInput``, which says why not, where some are not kept any more or never were in
    this catalog, or are more than :data:`MOST_BYTES`; what the store says of manifests."""
    found, size = list[CallBatch](), 0
    for place, manifest in enumerate(islice(history(store, head), epochs)):
        slice = manifest.slices.get(ENTRIES)
        if slice is None:
            continue
        mine = list(_calls(database, manifest, slice))
        if sum(len(batch.request_ids) for batch in mine) != slice.rows:
            raise InvalidInput(
                f"Epoch {manifest.epoch} of {manifest.branch} has taken {slice.rows} calls of entries, and they are "
                "not in the inbox: they came before the application was imported, or are older than the calls that "
                f"are kept. {_fewer(place)}"
            )
        size += sum(len(text) for batch in mine for part in (batch.request_ids, batch.arguments) for text in part)
        if size > MOST_BYTES:
            raise InvalidInput(
                f"The calls of entries that these {epochs} epochs have taken are more than the {MOST_BYTES >> 20} MiB "
                f"that a trial takes. {_fewer(place)}"
            )
        found[:0] = mine
    return tuple(found)


def _calls(database: Database, manifest: Manifest, slice: Slice) -> Iterator[CallBatch]:
    """Those of one epoch. A fork has an inbox of its own: what its snapshot came from, another application took."""
    after, through = int(slice.start["through"]), int(slice.end["through"])
    with database.reading() as session:
        application = inbox_of_branch(session, manifest.branch)
        while application is not None and after < through:
            _, batches = InboxRepository(session, application).page(after, through)
            if not batches:
                return
            for batch in batches:
                yield _batch(batch).within(after, through)
            after = batches[-1].last


def _batch(row: InboxBatch) -> CallBatch:
    content = json.loads(row.content)
    return CallBatch(
        entry=row.entry, first=row.first, request_ids=content["request_ids"], arguments=content["arguments"]
    )


def _fewer(epochs: int) -> str:
    return f"Try the last {epochs} epochs." if epochs else "These epochs cannot be tried again."
