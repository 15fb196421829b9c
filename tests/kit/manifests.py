"""Manifests of otherwise empty epochs for tests."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from epochal.contracts.conditions import Clock, EpochConditions, microseconds
from epochal.snapshots.manifest import Manifest


def plain_manifest(epoch: int, **fields: Any) -> Manifest:
    """Return the manifest of an epoch without parent, tables, slices and sinks on branch ``main``. ``fields`` override
    it."""
    usual: dict[str, Any] = {
        "application": "application",
        "branch": "main",
        "parent": None,
        "execution": "execution",
        "attempt": 1,
        "artifact": "0" * 64,
        "parallelism": 1,
        "max_parallelism": 8,
        "created_at": datetime.now(UTC),
    }
    created_at = fields.get("created_at", usual["created_at"])
    usual["conditions"] = EpochConditions(clock=Clock(epoch_time=microseconds(created_at)))
    given = {name: value for name, value in fields.items() if name != "conditions" or value is not None}
    return Manifest(epoch=epoch, **{**usual, **given})
