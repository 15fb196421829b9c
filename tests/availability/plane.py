"""``epochal up`` as it is, but for two things: pipelines are not built, and drivers are those of ``driver.py``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from epochal.cli import main as command_line
from epochal.cli import serving, up
from epochal.service import app, composition
from epochal.service.runtime.launchers import local
from tests.service.conftest import StandInBuilder

ROOT = Path(__file__).parents[2]
DRIVER = (
    sys.executable,
    "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.availability.driver import main; main()",
)


def main() -> None:
    for module in (up, local):
        module.check_java = lambda environment: None  # type: ignore[attr-defined]
    composition.find = lambda group, name: partial(local.LocalLauncher, command=DRIVER)  # type: ignore[attr-defined]
    serving.create_app = partial(app.create_app, make_builder=lambda *_: StandInBuilder())  # type: ignore[attr-defined]
    command_line.main(sys.argv[1:])


if __name__ == "__main__":
    main()
