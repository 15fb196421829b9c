"""A state backend under a name of its own."""

from __future__ import annotations

from epochal.backends.heap import HeapBackend


class OneFileState(HeapBackend):
    """Epochal's heap, called otherwise."""

    @property
    def kind(self) -> str:
        return "one-file-state"
