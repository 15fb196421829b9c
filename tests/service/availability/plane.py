"""``epochal up`` without builds of pipelines, with the drivers of ``driver.py``, and with a host name per process."""

from __future__ import annotations

import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Self

from epochal.cli import main as command_line
from epochal.cli import serving, up
from epochal.service import app, composition
from epochal.service.domain.settings import Settings
from epochal.service.runtime.launchers import local
from tests.service.availability.installation import HOST
from tests.service.conftest import StandInBuilder

ROOT = Path(__file__).parents[3]
DRIVER = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.service.availability.driver import main; main()",
)


class _ScriptedLauncher(local.LocalLauncher):
    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.logs_directory, DRIVER)


def main() -> None:
    socket.gethostname = lambda: os.environ[HOST]
    for module in (up, local):
        module.check_java = lambda environment: None  # type: ignore[attr-defined]
    composition.find = lambda group, name: _ScriptedLauncher  # type: ignore[attr-defined]
    serving.create_app = partial(app.create_app, make_builder=lambda *_: StandInBuilder())  # type: ignore[attr-defined]
    command_line.main(sys.argv[1:])


if __name__ == "__main__":
    main()
