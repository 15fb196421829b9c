"""A state backend whose caches have other names in other slots, so that placement happens in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark import TaskContext

from epochal.backends.lmdb import LmdbBackend
from epochal.contracts.registry import find
from epochal.engine import assembly
from epochal.engine.placement import Slots

MACHINES = 2


class SlotNamedBackend(LmdbBackend):
    """The machine of a task is its partition's number modulo :data:`MACHINES`.

    A task in the last stage of a job with several branches has a higher number than its slot, so that its subtask seems
    to have run elsewhere.
    """

    @property
    def cache_name(self) -> str:
        context = TaskContext.get()
        return f"machine-{0 if context is None else context.partitionId() % MACHINES}"


@contextmanager
def placed_lmdb() -> Iterator[None]:
    """Applications with the backend ``lmdb`` have a placement on :data:`MACHINES` machines in the block."""

    def replaced(group: str, name: str) -> Any:
        found = find(group, name)
        return SlotNamedBackend if found is LmdbBackend else found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "find", replaced)
        patch.setattr(Slots, "impossible", None)
        yield
