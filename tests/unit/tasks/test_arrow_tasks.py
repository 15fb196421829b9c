"""A worker excludes imported objects from the garbage collection that Spark runs after every task."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

import pytest

from epochal.tasks import arrow_tasks


def test_later_imports_are_frozen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(len(sys.modules)))
    monkeypatch.setattr(arrow_tasks, "_modules", 0)
    for _ in range(2):
        arrow_tasks.prepare_worker()
    assert len(frozen) == 1
    for number in range(arrow_tasks.MANY_MODULES):
        monkeypatch.setitem(sys.modules, f"imported_later_{number}", ModuleType(f"imported_later_{number}"))
    for _ in range(2):
        arrow_tasks.prepare_worker()
    assert len(frozen) == 2
