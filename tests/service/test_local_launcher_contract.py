"""The launcher contract for the local launcher."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.service.runtime.launchers.base import Launcher
from epochal.service.runtime.launchers.local import LocalLauncher
from tests.kit.launching import LauncherContract, Launching, orders_of


@pytest.fixture
def launching(tmp_path: Path) -> Iterator[Launching]:
    made: list[LocalLauncher] = []

    def make(program: str) -> Launcher:
        # Drivers are found by their command line; the folder distinguishes the drivers of this test.
        command = (sys.executable, "-c", f"{program}\n# {tmp_path}")
        made.append(LocalLauncher(tmp_path / "logs", command))
        return made[-1]

    yield Launching(make, lambda attempt, _: orders_of(tmp_path, attempt), tmp_path / "logs")
    for launcher in made:
        for reference in launcher.drivers().values():
            launcher.terminate(reference, kill=True)
        launcher.close()


class TestLocalLauncher(LauncherContract):
    pass
