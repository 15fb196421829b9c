"""A deliberately wrong protocol: one change to the real code, and the tests that must detect it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutant:
    """``apply`` changes the code in the process of the tests, before they are collected."""

    name: str
    apply: Callable[[], None]
    tests: str


MUTANTS: list[Mutant] = []
"""The mutants that the modules of this package declare."""


def mutant(name: str, tests: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(apply: Callable[[], None]) -> Callable[[], None]:
        MUTANTS.append(Mutant(name, apply, tests))
        return apply

    return register


def change(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace ``owner.name`` with the result of ``make(owner.name)``."""
    setattr(owner, name, make(getattr(owner, name)))
