"""Compaction of the table of a Delta sink by the library, beside the commits of the sink.

The library plans, rewrites files, and then commits one version that replaces them, on top of the versions that others
have committed meanwhile. It does not separate these steps, so that no lock is held; the log decides between both
writers:

- A commit of the sink is made without retries. If the compaction has landed since its version was read, it conflicts,
  reads the marker again, and is repeated.
- Versions that only add files do not conflict with the compaction. One that replaces a file which the compaction has
  rewritten (a sink with keys) does: the compaction is planned again.

The commit of a compaction has no marker, and the log retains the markers of others.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import CommitProperties

from epochal.backends.delta_lake.schema import check_features
from epochal.backends.delta_lake.table import MARKED, DeltaLog
from epochal.contracts.backend import TableCompaction
from epochal.errors import SinkError

log = logging.getLogger(__name__)

MOST_TRIES: Final = 3
"""Maximum number of times that a compaction is planned, while its files are replaced."""
_COMPACTION: Final = "compaction"
"""Member of the information about a commit: an id of the compaction."""
_RECENT: Final = 100
"""Number of latest versions among which the version of a compaction is looked for."""


def compact(table: DeltaLog, file_bytes: int, note: Callable[[str], None]) -> TableCompaction:
    """Replace files smaller than ``file_bytes``, one file at a time. Raises ``SinkError``, ``SinkUnavailable``."""
    for _ in range(MOST_TRIES):
        latest = table.opened()
        if latest is None:
            raise SinkError(f"{table.subject}: the table does not exist any more. Restore it, and repeat the command.")
        with table.translated("compact its files"):
            check_features(table.subject, latest)
            note(_plan(latest, file_bytes))
            try:
                return _compacted(latest, file_bytes)
            except CommitFailedError as error:
                log.info("%s: the compaction is planned again: %s", table.subject, error)
    raise SinkError(
        f"{table.subject} could not be compacted: files were replaced meanwhile, {MOST_TRIES} times. The table and the "
        "epochs are not affected. Repeat the command while fewer rows are replaced, or set a longer `commit_every`."
    )


def _compacted(table: DeltaTable, file_bytes: int) -> TableCompaction:
    id = uuid.uuid4().hex
    metrics = table.optimize.compact(
        target_size=file_bytes,
        max_concurrent_tasks=1,
        commit_properties=CommitProperties(custom_metadata={MARKED: {_COMPACTION: id}}),
    )
    return TableCompaction(
        files_removed=metrics["numFilesRemoved"],
        files_added=metrics["numFilesAdded"],
        bytes_removed=json.loads(metrics["filesRemoved"])["totalSize"],
        bytes_added=json.loads(metrics["filesAdded"])["totalSize"],
        version=_version(table, id),
    )


def _version(table: DeltaTable, id: str) -> int | None:
    """The version that a compaction has committed; ``None`` if it had nothing to do."""
    for entry in table.history(_RECENT):
        marked: Any = entry.get(MARKED)
        if isinstance(marked, dict) and marked.get(_COMPACTION) == id:
            return int(entry["version"])
    return None


def _plan(table: DeltaTable, file_bytes: int) -> str:
    sizes = pa.table(table.get_add_actions()).column("size_bytes").to_pylist()
    small = sum(size < file_bytes for size in sizes)
    return f"compacting: {small} of {len(sizes)} files are smaller than {file_bytes / (1 << 20):g} MiB"
