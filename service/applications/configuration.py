"""An application's configuration is the engine's; what only the control plane can check of it is checked here."""

from __future__ import annotations

import re

from epochal.contracts import registry
from epochal.engine.settings import Configuration as ApplicationConfiguration
from epochal.engine.settings import RestartStrategy
from epochal.errors import OptionError

__all__ = ["ApplicationConfiguration", "RestartStrategy", "check_configuration"]

_SPARK_OPTION = re.compile(r"spark\.[A-Za-z0-9._-]{1,200}")


def check_configuration(configuration: ApplicationConfiguration) -> None:
    """Raises ``OptionError`` for an unknown state backend, or a Spark option that is none."""
    registry.find(registry.STATE_BACKENDS, configuration.state_backend)
    for option in configuration.spark:
        if not _SPARK_OPTION.fullmatch(option):
            raise OptionError(
                f"configuration.spark: {option!r} is not a Spark option; their names start with 'spark.'."
            )
