"""A state backend with its own name."""

from __future__ import annotations

from epochal.backends.heap import HeapBackend


class OneFileState(HeapBackend):
    """Epochal's heap under another name."""

    @property
    def kind(self) -> str:
        return "one-file-state"
