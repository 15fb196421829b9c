"""A chain: the files that make up one state table at one snapshot, as tasks, replicas and readers get it."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from epochal.contracts.identity import EpochKey
from epochal.snapshots.manifest import BaseFile, DeltaFile, Manifest
from epochal.state.expiry import StateClock

_KEPT: Final = 512
"""Links, in each process that is given chains."""
_KEPT_BYTES: Final = 8 << 10
"""Of a link that is kept, at most."""


@dataclass(frozen=True)
class Link:
    """One snapshot of the lineage and the deltas it added to the table (none, when the epoch did not touch it)."""

    key: EpochKey
    deltas: tuple[DeltaFile, ...]

    @cached_property
    def pickled(self) -> bytes:
        """What :func:`_link` reads."""
        return pickle.dumps((self.key, self.deltas), pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True)
class Chain:
    """Base (if any), then links oldest first; the last link's key is the snapshot.

    It goes to each task of each epoch, and differs from the one before by a link: so a link is pickled once, and a
    process that has read it knows it.

    A local store that is marked with the base's epoch or any link's key can catch up from there; any other mark means
    that it is ahead or not an ancestor, and it is discarded. Without a base the table was empty before the first link.
    ``clock``: the operator's at the snapshot, by which rows expire.
    """

    base_at: EpochKey | None
    bases: tuple[BaseFile, ...]
    links: tuple[Link, ...]
    clock: StateClock | None = None
    cached: CachedState | None = None
    """Of a state table that is not durable, which has no files: the names of what subtasks hold in caches."""

    @property
    def at(self) -> EpochKey | None:
        return self.links[-1].key if self.links else self.base_at

    def __reduce__(self) -> tuple[Any, ...]:
        return _chain, (self.base_at, self.bases, [link.pickled for link in self.links], self.clock, self.cached)

    def after(self, mark: EpochKey | None) -> tuple[Link, ...] | None:
        """The links that a store marked ``mark`` lacks; ``None`` when it has to restore from the base."""
        if mark == self.base_at:
            return self.links
        for position, link in enumerate(self.links):
            if link.key == mark:
                return self.links[position + 1 :]
        return None


def _chain(
    base_at: EpochKey | None,
    bases: tuple[BaseFile, ...],
    links: Sequence[bytes],
    clock: StateClock | None,
    cached: CachedState | None,
) -> Chain:
    return Chain(base_at, bases, tuple(map(_link, links)), clock, cached)


def _link(pickled: bytes) -> Link:
    return _kept_link(pickled) if len(pickled) <= _KEPT_BYTES else Link(*pickle.loads(pickled))


@lru_cache(_KEPT)
def _kept_link(pickled: bytes) -> Link:
    return Link(*pickle.loads(pickled))


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
