"""Paths in a store, as records of every layer name them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def _in_the_store(path: str) -> str:
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path or "\0" in path:
        raise ValueError("not a path in a store: relative to its root, by names, without . and ..")
    return path


StorePath = Annotated[str, AfterValidator(_in_the_store)]
"""Relative to the store's root, normalised. Nobody who reads a manifest, or is told of one, is led out of the store."""
