"""Chains: the files, or the cache entries, that make up one state table at one snapshot."""

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

_KEPT_BASES: Final = 64
"""Number of lists of runs that a process caches unpickled."""
_KEPT: Final = 512
"""Number of unpickled links that a process caches."""
_KEPT_BYTES: Final = 8 << 10
"""Maximum size of a cached link."""


@dataclass(frozen=True)
class Link:
    """One snapshot of the lineage and its deltas of the table; empty if the epoch did not change the table."""

    key: EpochKey
    deltas: tuple[DeltaFile, ...]

    @cached_property
    def pickled(self) -> bytes:
        """Pickled form, for :func:`_link`."""
        return pickle.dumps((self.key, self.deltas), pickle.HIGHEST_PROTOCOL)


class RunList(tuple[BaseFile, ...]):
    """The runs of one state table at its last bases, oldest first."""

    @cached_property
    def pickled(self) -> bytes:
        """Pickled form, for :func:`_kept_runs`."""
        return pickle.dumps(tuple(self), pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True)
class Chain:
    """Bases, if any, and links, both oldest first; the key of the last link is the snapshot.

    A chain is sent to each task of each epoch, and differs from the previous epoch's by one link. The bases and each
    link are therefore pickled once, and processes cache them unpickled.

    A local store marked with the epoch of the bases or the key of a link can catch up from there. A store with another
    mark is ahead or not an ancestor, and is discarded. Without bases the table was empty before the first link.
    ``clock``: the operator's clock at the snapshot, by which rows expire.
    """

    base_at: EpochKey | None
    bases: tuple[BaseFile, ...]
    links: tuple[Link, ...]
    clock: StateClock | None = None
    cached: CachedState | None = None
    """Cache entries of a state table that is not durable and has no files."""

    def __post_init__(self) -> None:
        if not isinstance(self.bases, RunList):
            object.__setattr__(self, "bases", RunList(sorted(self.bases, key=lambda run: run.age)))

    @property
    def at(self) -> EpochKey | None:
        return self.links[-1].key if self.links else self.base_at

    def __reduce__(self) -> tuple[Any, ...]:
        assert isinstance(self.bases, RunList)
        links = [link.pickled for link in self.links]
        return _chain, (self.base_at, self.bases.pickled, links, self.clock, self.cached)

    def after(self, mark: EpochKey | None) -> tuple[Link, ...] | None:
        """Links missing in a store marked ``mark``; ``None`` if it must restore from the bases."""
        if mark == self.base_at:
            return self.links
        for position, link in enumerate(self.links):
            if link.key == mark:
                return self.links[position + 1 :]
        return None


def _chain(
    base_at: EpochKey | None,
    runs: bytes,
    links: Sequence[bytes],
    clock: StateClock | None,
    cached: CachedState | None,
) -> Chain:
    return Chain(base_at, _kept_runs(runs), tuple(map(_link, links)), clock, cached)


@lru_cache(_KEPT_BASES)
def _kept_runs(pickled: bytes) -> RunList:
    return RunList(pickle.loads(pickled))


def _link(pickled: bytes) -> Link:
    return _kept_link(pickled) if len(pickled) <= _KEPT_BYTES else Link(*pickle.loads(pickled))


@lru_cache(_KEPT)
def _kept_link(pickled: bytes) -> Link:
    return Link(*pickle.loads(pickled))


MEMBER = "cached"
"""Key in ``Manifest.extras``."""


class CachedState(BaseModel):
    """Cache entries of one state table at a snapshot, which are not durable.

    An entry is valid in the cache that holds it, for the same branch and parallelism; a missing entry means empty
    state. ``held``: name of the entry by subtask, empty without one. ``began_empty``: subtasks that did not find the
    entry of the parent.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    branch: str = ""
    parallelism: int
    held: tuple[str, ...] = ()
    began_empty: tuple[int, ...] = ()

    @property
    def has_entries(self) -> bool:
        return any(self.held)

    def of(self, branch: str, parallelism: int, subtask: int) -> str:
        """Entry from which a subtask continues; empty without one."""
        if (branch, parallelism) != (self.branch, self.parallelism) or subtask >= len(self.held):
            return ""
        return self.held[subtask]


def cached_state(manifest: Manifest, table: str) -> CachedState | None:
    """Cache entries of a state table; ``None`` if the table is durable or not declared."""
    if all(declared.durable or declared.id != table for declared in manifest.tables):
        return None
    known = manifest.extras.get(MEMBER, {}).get(table, {})
    operator = next(declared.operator for declared in manifest.tables if declared.id == table)
    known = {"parallelism": manifest.parallelism_of(operator), **known}
    return CachedState.model_validate({**known, "branch": manifest.branch})


def cached_extras(answers: Iterable[tuple[int, int, Mapping[str, tuple[str, bool]]]]) -> dict[str, Any]:
    """Cache entries for ``Manifest.extras``. ``answers``: of each subtask, the number of subtasks of its operator, its
    own number, and by state table the entry and whether it began empty."""
    tables: dict[str, dict[int, tuple[str, bool]]] = {}
    numbers: dict[str, int] = {}
    for parallelism, subtask, held in answers:
        for table, found in held.items():
            tables.setdefault(table, {})[subtask] = found
            numbers[table] = parallelism
    return (
        {
            MEMBER: {
                table: CachedState(
                    parallelism=numbers[table],
                    held=tuple(found.get(subtask, ("", False))[0] for subtask in range(numbers[table])),
                    began_empty=tuple(subtask for subtask, (_, empty) in sorted(found.items()) if empty),
                ).model_dump(mode="json", exclude={"branch"})
                for table, found in sorted(tables.items())
            }
        }
        if tables
        else {}
    )


def began_empty(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """Subtasks that began empty in this epoch, by state table."""
    found = {
        table: CachedState.model_validate(state).began_empty for table, state in manifest.extras.get(MEMBER, {}).items()
    }
    return {table: subtasks for table, subtasks in found.items() if subtasks}
