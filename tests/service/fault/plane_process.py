"""A control plane with scripted drivers, as a process: ``python -m tests.service.fault.plane_process DATA PORT``."""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn

from epochal.service.app import create_app
from epochal.service.domain.settings import Settings
from tests.service.conftest import StandInBuilder, StandInSupervisor


def main() -> None:
    data, port = sys.argv[1:]
    settings = Settings(data=Path(data), port=int(port))
    app = create_app(settings, lambda *_: StandInBuilder(), lambda *_: StandInSupervisor())
    uvicorn.run(app, host=settings.host, port=settings.port, log_level="warning", proxy_headers=False)


if __name__ == "__main__":
    main()
