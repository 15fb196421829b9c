"""Identities of epochs and subtasks, and paths in a store: frozen values that all layers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator


@dataclass(frozen=True, order=True, slots=True)
class EpochKey:
    """One epoch of one branch. Everything is keyed by both, never by the epoch alone."""

    branch: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.branch}/{self.epoch}"


@dataclass(frozen=True, slots=True)
class EpochScope:
    """An epoch while it is being run or committed.

    ``parent`` is the snapshot that the epoch builds on: ``None`` for the first epoch of an application.
    Epoch numbers of a branch rise, with gaps where epochs were aborted; a parent need not be ``epoch - 1``.
    """

    application: str
    key: EpochKey
    attempt: int
    parent: EpochKey | None

    @property
    def branch(self) -> str:
        return self.key.branch

    @property
    def epoch(self) -> int:
        return self.key.epoch

    @property
    def parent_in_branch(self) -> int | None:
        """The epoch of the same branch that this one follows; ``None`` for the branch's first."""
        return self.parent.epoch if self.parent is not None and self.parent.branch == self.branch else None


@dataclass(frozen=True, slots=True)
class TaskScope:
    """One subtask of an operator or a sink in one epoch."""

    epoch: EpochScope
    owner: str
    subtask: int


def _in_the_store(path: str) -> str:
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path or "\0" in path:
        raise ValueError("not a path in a store: relative to its root, by names, without . and ..")
    return path


StorePath = Annotated[str, AfterValidator(_in_the_store)]
"""Normalised path relative to the store's root. A manifest or a request cannot name a file outside the store."""


@dataclass(frozen=True, slots=True)
class PackPlace:
    """Where a small file lies: ``path`` of a pack, and the offset of the file's first byte in it."""

    path: StorePath
    offset: int
