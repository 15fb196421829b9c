"""State that is not durable, as manifests have it: not what it holds, but the names of what a subtask holds in a cache.

A name is good where the cache is, in the same branch and at the same parallelism. Who does not find it begins empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from epochal.snapshots.manifest import Manifest

MEMBER = "cached"
"""Of ``Manifest.extras``."""


class CachedState(BaseModel):
    """One state table at a snapshot: by subtask the name of what it holds, empty where it holds nothing.

    ``began_empty``: the subtasks that held something before this epoch, or in whose place others did, and did not find
    it.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    branch: str = ""
    parallelism: int
    held: tuple[str, ...] = ()
    began_empty: tuple[int, ...] = ()

    @property
    def holds_something(self) -> bool:
        return any(self.held)

    def of(self, branch: str, parallelism: int, subtask: int) -> str:
        """What a subtask may go on from; empty where that is nothing."""
        if (branch, parallelism) != (self.branch, self.parallelism) or subtask >= len(self.held):
            return ""
        return self.held[subtask]


def cached_state(manifest: Manifest, table: str) -> CachedState | None:
    """``None`` for a state table that is durable, or not there."""
    if all(declared.durable or declared.id != table for declared in manifest.tables):
        return None
    known = manifest.extras.get(MEMBER, {}).get(table, {"parallelism": manifest.parallelism})
    return CachedState.model_validate({**known, "branch": manifest.branch})


def cached_extras(parallelism: int, answers: Iterable[tuple[int, Mapping[str, tuple[str, bool]]]]) -> dict[str, Any]:
    """What ``Manifest.extras`` has of an epoch: of each subtask, by state table, what it holds, and whether it had to
    begin empty."""
    tables: dict[str, dict[int, tuple[str, bool]]] = {}
    for subtask, held in answers:
        for table, found in held.items():
            tables.setdefault(table, {})[subtask] = found
    return (
        {
            MEMBER: {
                table: CachedState(
                    parallelism=parallelism,
                    held=tuple(found.get(subtask, ("", False))[0] for subtask in range(parallelism)),
                    began_empty=tuple(subtask for subtask, (_, empty) in sorted(found.items()) if empty),
                ).model_dump(mode="json", exclude={"branch"})
                for table, found in sorted(tables.items())
            }
        }
        if tables
        else {}
    )


def began_empty(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """By state table the subtasks that had to begin empty in this epoch."""
    found = {
        table: CachedState.model_validate(state).began_empty for table, state in manifest.extras.get(MEMBER, {}).items()
    }
    return {table: subtasks for table, subtasks in found.items() if subtasks}
