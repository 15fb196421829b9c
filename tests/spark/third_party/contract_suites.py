"""The shipped contract suites over an installed backend; ``test_third_party.py`` runs them with it on the path."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epochal.backends import heap, recent
from epochal.contracts.registry import SINKS, STATE_BACKENDS, find
from epochal.contracts.state import StateBackend
from epochal.snapshots.store import SnapshotStore
from epochal.testing.contract import (
    DegradedSinkHarness,
    FileAnswers,
    Losses,
    SinkBackendContract,
    SinkHarness,
    StateBackendContract,
    StateHarness,
)
from epochal.testing.state_world import OWNER


class OneFile(SinkHarness):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "out.jsonl"

    def make(self):
        return find(SINKS, "one-file")(str(self.path))

    def visible(self):
        return [json.loads(line) for line in self.path.read_text().splitlines()[1:]] if self.path.exists() else []

    def leftovers(self):
        return [str(path) for path in self.path.parent.rglob("*") if path.is_file() and path != self.path]


class TestOneFile(SinkBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SinkHarness:
        return OneFile(tmp_path)


class TestOneFileDegraded(SinkBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> SinkHarness:
        return DegradedSinkHarness(OneFile(tmp_path), Losses(FileAnswers()))


class OneFileStore(StateHarness):
    def __init__(self, folder: Path) -> None:
        self._store = SnapshotStore(str(folder / "store"))

    @property
    def store(self) -> SnapshotStore:
        return self._store

    def make(self) -> StateBackend:
        return find(STATE_BACKENDS, "one-file-state")(OWNER, self._store, "unused")

    def new_worker(self) -> None:
        for module in (heap, recent):
            module.forget()

    def new_machine(self) -> None:
        self.new_worker()


class TestOneFileState(StateBackendContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> StateHarness:
        return OneFileStore(tmp_path)
