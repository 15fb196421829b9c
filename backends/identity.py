"""Whose rows a local store holds: never shared between stores, applications, branches or shapes of an operator."""

from __future__ import annotations

import hashlib

from epochal.contracts.state import StateTaskScope
from epochal.snapshots.store import SnapshotStore
from epochal.state.key_codec import FORM


def cache_identity(store: SnapshotStore, scope: StateTaskScope) -> str:
    """A short name, fit for a folder, of everything that a local store's content depends on but its mark."""
    parts = [
        f"keys of form {FORM}",
        store.url,
        scope.epoch.application,
        scope.epoch.branch,
        scope.owner,
        str(scope.max_parallelism),
    ]
    parts += [table.model_dump_json() for table in scope.tables]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
