"""Test support for users: a pipeline harness, contract suites for backends, faulty processes, invariants, servers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epochal.testing.harness import Harness

__all__ = ["Harness"]


def __getattr__(name: str) -> Any:
    """Import on first use: the contract suites must not load Spark."""
    if name != "Harness":
        raise AttributeError(f"module 'epochal.testing' has no attribute {name!r}")
    return import_module("epochal.testing.harness").Harness
